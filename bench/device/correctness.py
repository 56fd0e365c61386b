"""Cases in processes that may hang or die, and what came of them."""

from __future__ import annotations

import importlib.util
import json
import selectors
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

CASES = Path(__file__).with_name("case_runner.py")
SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
SANITIZER_EXIT = 9


@dataclass
class Outcome:
    """What came of the cases of a part."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # what they need is not on this machine
    not_run: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def summary(self):
        text = f"{len(self.passed)} passed, {len(self.failed)} failed"
        if self.skipped:
            text += f", {len(self.skipped)} skipped"
        if self.not_run:
            text += f", {len(self.not_run)} not run: {', '.join(self.not_run)}"
        return f"{text}{'; ' + self.note if self.note else ''}"

    def as_result(self):
        return {
            "passed": self.passed, "failed": self.failed, "skipped": self.skipped, "not_run": self.not_run,
            "note": self.note,
        }  # fmt: skip


class Lines:
    """The lines of a process, as far as they come before a deadline."""

    def __init__(self, command, environment, deadline):
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._deadline = deadline
        self._said = b""

    def __iter__(self):
        with selectors.DefaultSelector() as selector:
            for stream in (self._process.stdout, self._process.stderr):
                selector.register(stream, selectors.EVENT_READ)
            rest = b""
            while selector.get_map():
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return
                for key, _ in selector.select(left):
                    data = key.fileobj.read1(65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._process.stderr:
                        self._said += data
                    else:
                        *whole, rest = (rest + data).split(b"\n")
                        yield from (line.decode() for line in whole)

    def finish(self):
        """(exit code, None when it had to be ended; what it said to stderr)"""
        code = None
        try:
            code = self._process.wait(max(self._deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
        return code, self._said.decode(errors="replace").strip()


def run_once(run, names, deadline, outcome, on, prefix=()):
    """One process; (the names that it did not come to, its exit code, what it said beside the lines of cases)."""
    lines = Lines([*prefix, sys.executable, str(CASES), "--on", on, *names], run.environment, deadline)
    left, current, others = list(names), None, []
    for text in lines:
        if not text.startswith("{"):
            others.append(text)
            continue
        line = json.loads(text)
        if "begin" in line:
            current = line["begin"]
            left.remove(current)
        elif "error" in line:
            outcome.failed[line["end"]], current = line["error"], None
        elif "skipped" in line:
            outcome.skipped[line["end"]], current = line["skipped"], None
        else:
            outcome.passed.append(line["end"])
            current = None
    code, said = lines.finish()
    last = said.splitlines()[-1] if said else ""
    if current is not None:
        outcome.failed[current] = f"still running when the time was up ({last})" if code is None else f"died: {last}"
    return left, code, "\n".join([*others, said])


def run_cases(run, names, deadline):
    """Every case, in as many processes as it takes: one that dies takes only the case with it that it was at."""
    on = "emulator" if run.emulated else "device"
    outcome, left = Outcome(), list(names)
    while left and time.monotonic() < deadline:
        before = len(left)
        left, code, said = run_once(run, left, deadline, outcome, on)
        if len(left) == before:
            outcome.note = f"the process ended before the first case: {said[-600:]}" if code is not None else ""
            break
    outcome.not_run = left
    return outcome


def run_sanitizer(run, names):
    """The cases under compute-sanitizer; on the emulator, under the race checker."""
    deadline = run.deadline("sanitizer")
    outcome = Outcome()
    if run.emulated:
        if importlib.util.find_spec("llmsrv._emulated_race") is None:
            outcome.note = "this build has no race checker"
            return outcome
        outcome.not_run, _, _ = run_once(run, names, deadline, outcome, "race checker")
        outcome.note = "race checker of the emulator"
        return outcome
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        outcome.note = "compute-sanitizer is not installed"
        return outcome
    run.environment["LLMSRV_DEVICE_GUARD_BYTES"] = "0"  # every byte beside an array is foreign
    for tool in SANITIZER_TOOLS:
        sanitize(run, sanitizer, tool, names, deadline, outcome)
    del run.environment["LLMSRV_DEVICE_GUARD_BYTES"]
    return outcome


def sanitize(run, sanitizer, tool, names, deadline, total):
    """One tool over all cases. What it had no time for is said and no failure: it is much slower than the kernels."""
    share = time.monotonic() + (deadline - time.monotonic()) / (len(SANITIZER_TOOLS) - SANITIZER_TOOLS.index(tool))
    prefix = [sanitizer, "--tool", tool, "--error-exitcode", str(SANITIZER_EXIT), "--print-limit", "3"]
    outcome = Outcome()
    left, code, said = run_once(run, names, share, outcome, "device", prefix)
    if "Device not supported" in said:
        total.note = "compute-sanitizer does not work on this machine: device not supported"
        return
    total.passed += [f"{tool} {name}" for name in outcome.passed]
    total.skipped |= outcome.skipped
    if code is not None:
        total.failed |= {f"{tool} {name}": error for name, error in outcome.failed.items()}
    if code == SANITIZER_EXIT:
        total.failed[tool] = said[:2000]
    if code is None:
        total.note += f"{tool} had time for {len(outcome.passed)} of {len(names)}; "
    elif left:
        total.failed[tool] = f"ended early with exit code {code}: {said[-600:]}"
