"""What is sent, and when: fixed, at random times of a mean rate, or as a trace says."""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

BLOCK_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Job:
    """One request to be sent: `at_s` after the start (open loop), prompt and output in tokens.

    `blocks`: names of its prompt's blocks of `block_tokens` tokens, from the first on; equal names have equal tokens.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0


def poisson_jobs(job: Job, count: int, rate: float, seed: object) -> list[Job]:
    """The same at random times, `rate` each second on average, whatever the server does."""
    rng = random.Random(str(seed))
    at_s, jobs = 0.0, []
    for _ in range(count):
        jobs.append(replace(job, at_s=at_s))
        at_s += rng.expovariate(rate)
    return jobs


def trace_jobs(
    path: Path, *, time_scale: float = 1.0, limit: int | None = None, tokens_max: int | None = None
) -> list[Job]:
    """At the times of a trace, from its first request on. Raises ValueError with the line that is none.

    JSON lines with timestamp (ms), input_length, output_length and maybe hash_ids, as Mooncake publishes; or CSV with
    TIMESTAMP, ContextTokens and GeneratedTokens, as Azure does. `time_scale`: 0.5 is twice as fast. `tokens_max`:
    longer requests are left out.
    """
    with path.open(newline="") as file:
        is_json = file.read(1) == "{"
        file.seek(0)
        rows = (
            [_json_job(path, i, line) for i, line in enumerate(file, 1) if line.strip()]
            if is_json
            else _csv(path, file)
        )
    if tokens_max is not None:
        rows = [job for job in rows if job.input_tokens + job.output_tokens <= tokens_max]
    rows = sorted(rows, key=lambda job: job.at_s)[:limit]
    if not rows:
        raise ValueError(f"{path}: there is no request in it")
    first, block_tokens = rows[0].at_s, _block_tokens(rows)
    return [replace(job, at_s=(job.at_s - first) * time_scale, block_tokens=block_tokens) for job in rows]


def random_ids(seed: str, count: int, ids: range) -> list[int]:
    """So many token ids."""
    return random.Random(seed).choices(ids, k=count)


class Prompts:
    """Token ids for jobs: random, the same for the same seed, index and block names."""

    def __init__(self, seed: object, vocab_size: int, first_id: int = 0) -> None:
        self._seed = seed
        self._ids = range(first_id, vocab_size)

    def ids(self, index: int, job: Job) -> list[int]:
        """As many as the job says."""
        ids: list[int] = []
        for name in job.blocks:
            ids += random_ids(f"{self._seed}/block {name}", job.block_tokens, self._ids)
        missing = job.input_tokens - len(ids)
        if missing > 0:
            ids += random_ids(f"{self._seed}/{index}", missing, self._ids)
        return ids[: job.input_tokens]

    def words(self, index: int, job: Job) -> str:
        """Text of about as many tokens: common words, of which most vocabularies have each as one token."""
        return " ".join(WORDS[each % len(WORDS)] for each in self.ids(index, job))


def _json_job(path: Path, number: int, line: str) -> Job:
    try:
        row: dict[str, Any] = json.loads(line)
        blocks = tuple(int(each) for each in row.get("hash_ids") or ())
        output_tokens = max(int(row["output_length"]), 1)
        return Job(float(row["timestamp"]) / 1e3, max(int(row["input_length"]), 1), output_tokens, blocks)
    except (ValueError, TypeError, KeyError, AttributeError):
        wanted = "timestamp, input_length and output_length"
        raise ValueError(f"{path}, line {number}: needs an object with {wanted}") from None


def _csv(path: Path, file: Any) -> list[Job]:  # noqa: ANN401
    jobs = []
    for number, row in enumerate(csv.DictReader(file), 2):
        try:
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            jobs.append(Job(at_s, max(int(row["ContextTokens"]), 1), max(int(row["GeneratedTokens"]), 1)))
        except (ValueError, TypeError, KeyError):
            wanted = "TIMESTAMP, ContextTokens and GeneratedTokens"
            raise ValueError(f"{path}, line {number}: is neither a JSON object nor CSV with {wanted}") from None
    return jobs


def _block_tokens(jobs: Sequence[Job]) -> int:
    """The block size that fits all prompts; 0 where no names are given or none fits."""
    named = [job for job in jobs if job.blocks]
    if not named:
        return 0
    return next(
        (size for size in BLOCK_TOKENS if all(-(-job.input_tokens // size) == len(job.blocks) for job in named)), 0
    )


_TEXT = (
    "the of and to in is it that for was on are as with they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made "
    "over did down only way find use may water long little very after words called just where most know"
)
WORDS = tuple(_TEXT.split())
