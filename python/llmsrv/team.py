"""How many compute threads an engine has, and on which processors they run.

A pinned team has one core for each thread, so that two threads of it never share one while another core is free. That
is right only where the team has all cores that this process may use: then no other choice of cores exists. With fewer
threads than cores the system chooses better, for it knows who else is there: two daemons that pin two threads of a big
machine would both take the same two cores and leave the others idle. `--pin-threads` is for those who know.

On two cores that others used as well, decoding at one and at eight streams was as fast pinned as free, within noise, in
process and served.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmsrv.config import EngineOptions


@dataclass(frozen=True)
class Team:
    """The compute threads. `processors`: where each of them runs; empty when the system decides."""

    threads: int
    processors: tuple[int, ...] = ()

    @property
    def placement(self) -> str:
        """Where they run, in words."""
        if not self.processors:
            return "placed by the system"
        return f"pinned to processor{'s' if self.threads > 1 else ''} {', '.join(map(str, self.processors))}"


def choose_team(options: EngineOptions) -> Team:
    """What the options leave open is chosen from the cores that this process may use. Raises ValueError."""
    from llmsrv import _core

    cores = _core.core_processors()
    limit = processor_limit()
    is_limited = limit is not None and limit < len(cores)
    usable = max(1, int(limit)) if limit is not None and is_limited else len(cores)
    if options.threads is None and options.reserve_cpus >= usable > 1:
        raise ValueError(f"reserve_cpus: {options.reserve_cpus} leaves no core: this process may use {usable}")
    threads = options.threads or max(1, usable - options.reserve_cpus)
    pins = options.pin_threads
    if pins is None:
        pins = threads == len(cores) > 1 and not is_limited
    if not pins:
        return Team(threads)
    if threads > len(cores):
        raise ValueError(f"pin_threads: {threads} threads need as many cores, this process may use {len(cores)}")
    # The last ones: interrupts are mostly served by the first.
    return Team(threads, tuple(cores[-threads:]))


def processor_limit(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Processors' worth of time that the container around this process may use; None when nothing limits it."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[float]:
    """Of control groups version 2, then version 1."""
    for read in (_limit_v2, _limit_v1):
        try:
            limit = read(root)
        except (OSError, ValueError):
            continue
        if limit is not None:
            yield limit


def _limit_v2(root: Path) -> float | None:
    quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
    return None if quota == "max" else int(quota) / int(period)


def _limit_v1(root: Path) -> float | None:
    quota = int((root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
    return None if quota <= 0 else quota / int((root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
