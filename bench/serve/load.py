"""Load on a running daemon over gRPC, from one asyncio process: how fast, and how late, as its clients see it.

    python bench/serve/load.py --target 127.0.0.1:50051 --concurrency 1,8,32 --requests 64
    python bench/serve/load.py --rate 2.5 --requests 150
    python bench/serve/load.py --trace azure_conv.jsonl --time-scale 0.5

Closed loop (--concurrency): N clients, each sends its next request when it has its answer. Open loop (--rate: Poisson
arrivals; --trace: the file's own times): requests are sent at their time, however many are under way; only this is fair
to latency, because a slow server does not slow its clients down. A trace is JSON lines with timestamp (ms),
input_length and output_length, as in the Mooncake traces.

Prompts are random token ids from the seed, greedy, ignore_eos: every request generates exactly what was asked for.
One sentence per result goes to standard output, one JSON line to --json FILE, with commit, flags, machine and seed.

Words, over the requests that ended well:
  ttft_ms   request sent to first token received
  tpot_ms   (last token - first token) / (tokens - 1), of one request
  itl_ms    gap between two messages of one stream; a message may hold several tokens
  e2e_ms    request sent to end received
  lag_ms    open loop: sent later than planned; that is the client's own delay, and if it is large, distrust the figures
  output_tokens_per_s   generated tokens / (first request sent to last token received)
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc, types_pb2


@dataclass(frozen=True)
class Job:
    """One request to be sent: `at_s` after the start (open loop), prompt and output in tokens."""

    at_s: float
    input_tokens: int
    output_tokens: int


@dataclass
class Sample:
    """What became of one request. Times are seconds on the client's monotonic clock."""

    planned: float
    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens) of each message
    ended: float = 0.0
    input_tokens: int = 0
    error: str = ""

    @property
    def tokens(self):
        return sum(tokens for _, tokens in self.arrivals)


class Client:
    """Sends jobs over a few channels: one TCP connection is not the bottleneck that is measured."""

    def __init__(self, target, channels, vocab_size, seed):
        self._channels = [grpc.aio.insecure_channel(target, [("bench.channel", i)]) for i in range(channels)]
        self._stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in self._channels]
        self._vocab_size = vocab_size
        self._seed = seed

    def request(self, index, job):
        rng = random.Random(f"{self._seed}/{index}")
        ids = [rng.randrange(self._vocab_size) for _ in range(job.input_tokens)]
        request = inference_pb2.GenerateRequest(
            token_ids=types_pb2.TokenIds(ids=ids),
            sampling=types_pb2.SamplingParams(temperature=0.0),
            stopping=types_pb2.StoppingParams(max_tokens=job.output_tokens, ignore_eos=True),
        )
        return inference_pb2.GenerateStreamRequest(request=request)

    async def run(self, index, job, planned):
        request = self.request(index, job)
        sample = Sample(planned, time.perf_counter(), input_tokens=job.input_tokens)
        try:
            async for message in self._stubs[index % len(self._stubs)].GenerateStream(request):
                tokens = sum(delta.token_count for delta in message.deltas)
                if tokens:
                    sample.arrivals.append((time.perf_counter(), tokens))
        except grpc.aio.AioRpcError as error:
            sample.error = error.code().name
        sample.ended = time.perf_counter()
        return sample

    async def close(self):
        for channel in self._channels:
            await channel.close()


class Progress:
    """How many requests are done: a line that is rewritten on a terminal, a line every five seconds elsewhere."""

    def __init__(self, label, total):
        self._label, self._total, self._done, self._tokens = label, total, 0, 0
        self._began = self._shown = time.monotonic()

    def note(self, sample):
        self._done += 1
        self._tokens += sample.tokens
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if self._done == self._total or now - self._shown >= (0.2 if terminal else 5.0):
            self._shown = now
            speed = self._tokens / max(now - self._began, 1e-9)
            text = f"{self._label}: {self._done}/{self._total} requests, {speed:.0f} output tokens/s"
            print(f"\r{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal and self._done == self._total:
            print(file=sys.stderr)


async def closed_loop(client, jobs, concurrency, progress):
    """`concurrency` clients that share the list of jobs."""
    waiting = iter(enumerate(jobs))
    samples = []

    async def one_client():
        for index, job in waiting:
            sample = await client.run(index, job, time.perf_counter())
            samples.append(sample)
            progress.note(sample)

    await asyncio.gather(*(one_client() for _ in range(concurrency)))
    return samples


async def open_loop(client, jobs, progress):
    """Each job at its time."""
    began = time.perf_counter()

    async def send(index, job):
        planned = began + job.at_s
        await asyncio.sleep(max(planned - time.perf_counter(), 0.0))
        sample = await client.run(index, job, planned)
        progress.note(sample)
        return sample

    return await asyncio.gather(*(send(index, job) for index, job in enumerate(jobs)))


def percentiles(values):
    """p50, p90, p99 by linear interpolation, and the mean."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share):
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return round(ordered[low] + (place - low) * (ordered[high] - ordered[low]), 3)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "mean": round(sum(ordered) / len(ordered), 3)}


def summary(samples):
    """The figures of one run, as the head of this file defines them."""
    good = [sample for sample in samples if not sample.error and sample.arrivals]
    errors = {}
    for sample in samples:
        if sample.error:
            errors[sample.error] = errors.get(sample.error, 0) + 1
    began = min(sample.sent for sample in samples)
    last = max((sample.arrivals[-1][0] for sample in good), default=began)
    seconds = max(last - began, 1e-9)
    gaps = [
        (later - earlier) * 1e3
        for sample in good
        for (earlier, _), (later, _) in zip(sample.arrivals, sample.arrivals[1:], strict=False)
    ]
    return {
        "requests": len(samples),
        "ok": len(good),
        "errors": errors,
        "seconds": round(seconds, 3),
        "output_tokens": sum(sample.tokens for sample in good),
        "output_tokens_per_s": round(sum(sample.tokens for sample in good) / seconds, 1),
        "input_tokens_per_s": round(sum(sample.input_tokens for sample in good) / seconds, 1),
        "ttft_ms": percentiles([(sample.arrivals[0][0] - sample.sent) * 1e3 for sample in good]),
        "tpot_ms": percentiles(
            [
                (sample.arrivals[-1][0] - sample.arrivals[0][0]) * 1e3 / (sample.tokens - 1)
                for sample in good
                if sample.tokens > 1
            ]
        ),
        "itl_ms": percentiles(gaps),
        "e2e_ms": percentiles([(sample.ended - sample.sent) * 1e3 for sample in good]),
        "lag_ms": percentiles([(sample.sent - sample.planned) * 1e3 for sample in samples]),
    }


def sentence(label, figures):
    """One result for people."""
    late = ", ".join(
        f"{name} p50/p99 {figures[key]['p50']:.1f}/{figures[key]['p99']:.1f} ms"
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"))
        if figures[key]
    )
    failed = f", failed: {figures['errors']}" if figures["errors"] else ""
    return f"{label}: {figures['output_tokens_per_s']:.1f} output tokens/s, {late}{failed}"


def trace_jobs(path, time_scale, limit):
    """Jobs of a trace, times from its first request."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()][:limit]
    first = rows[0]["timestamp"]
    return [
        Job((row["timestamp"] - first) / 1e3 * time_scale, int(row["input_length"]), max(int(row["output_length"]), 1))
        for row in rows
    ]


def poisson_jobs(options):
    """Jobs at random times of the given mean rate."""
    rng = random.Random(options.seed)
    at_s, jobs = 0.0, []
    for _ in range(options.requests):
        jobs.append(Job(at_s, options.input_tokens, options.output_tokens))
        at_s += rng.expovariate(options.rate)
    return jobs


def runs(options):
    """(what distinguishes the run, its jobs, concurrency or None for open loop)."""
    if options.trace:
        jobs = trace_jobs(options.trace, options.time_scale, options.requests)
        return [({"mode": "open", "trace": Path(options.trace).name, "time_scale": options.time_scale}, jobs, None)]
    if options.rate:
        return [({"mode": "open", "rate": options.rate}, poisson_jobs(options), None)]
    jobs = [Job(0.0, options.input_tokens, options.output_tokens)] * options.requests
    return [({"mode": "closed", "concurrency": n}, jobs, n) for n in options.concurrency]


async def measure(options):
    async with grpc.aio.insecure_channel(options.target) as channel:
        served = await model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest())
        info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest())
    report = Report(
        "serve",
        options.json,
        model=served.model.name,
        dtype=served.model.weight_dtype,
        device=", ".join(info.devices),
        cores=os.cpu_count(),
        seed=options.seed,
    )
    client = Client(options.target, options.channels, served.model.vocab_size, options.seed)
    for what, jobs, concurrency in runs(options):
        label = " ".join(f"{key} {value}" for key, value in what.items())
        if options.warmup:
            await closed_loop(client, jobs[:1] * options.warmup, options.warmup, Progress("warm-up", options.warmup))
        progress = Progress(label, len(jobs))
        if concurrency is None:
            samples = await open_loop(client, jobs, progress)
        else:
            samples = await closed_loop(client, jobs, concurrency, progress)
        figures = summary(samples)
        report.add(sentence(label, figures), load_1m=round(os.getloadavg()[0], 2), **what, **figures)
    await client.close()


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:50051")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    load.add_argument("--rate", type=float, help="requests per second, Poisson")
    load.add_argument("--trace", help="JSON lines with timestamp, input_length, output_length")
    parser.add_argument("--requests", type=int, default=64, help="of each run; of a trace, at most")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--time-scale", type=float, default=1.0, help="0.5 sends a trace twice as fast")
    parser.add_argument("--warmup", type=int, default=2, help="requests before each run that do not count")
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="append one JSON line per result to this file")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(measure(parsed()))
