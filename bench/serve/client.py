"""What the load generators share: requests to a daemon from one asyncio process, and the figures of them.

Prompts are random token ids from the seed, greedy, ignore_eos: every request generates exactly what was asked for.

Words, over the requests that ended well:
  ttft_ms   request sent to first token received
  tpot_ms   (last token - first token) / (tokens - 1), of one request
  itl_ms    gap between two messages of one stream; a message may hold several tokens
  e2e_ms    request sent to end received
  lag_ms    open loop: sent later than planned; that is the client's own delay, and if it is large, distrust the figures
  output_tokens_per_s   generated tokens / (first request sent to last token received)
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field

import grpc
import grpc.aio

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


def random_ids(seed, count, vocab_size):
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(count)]


def generate_request(ids, output_tokens, **fields):
    return inference_pb2.GenerateRequest(
        token_ids=types_pb2.TokenIds(ids=ids),
        sampling=types_pb2.SamplingParams(temperature=0.0),
        stopping=types_pb2.StoppingParams(max_tokens=output_tokens, ignore_eos=True),
        **fields,
    )


class Client:
    """Sends jobs over a few channels: one TCP connection is not the bottleneck that is measured.

    `fields`: what else stands in every GenerateRequest.
    """

    def __init__(self, target, channels, vocab_size, seed, **fields):
        self._channels = [grpc.aio.insecure_channel(target, [("bench.channel", i)]) for i in range(channels)]
        self._stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in self._channels]
        self._vocab_size = vocab_size
        self._seed = seed
        self._fields = fields

    async def run(self, index, job, planned):
        """The job with a random prompt of its index."""
        ids = random_ids(f"{self._seed}/{index}", job.input_tokens, self._vocab_size)
        return await self.send(index, ids, job.output_tokens, planned)

    async def send(self, index, ids, output_tokens, planned):
        message = generate_request(ids, output_tokens, **self._fields)
        request = inference_pb2.GenerateStreamRequest(request=message)
        sample = Sample(planned, time.perf_counter(), input_tokens=len(ids))
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


class HttpClient:
    """The same over HTTP, on sockets: a client library would cost more than the server that is measured.

    A connection is used again by later requests, unless `reuse` is off. An event does not say how many tokens it has:
    each counts as one, and the last gets what the usage at the end has more.
    """

    def __init__(self, target, vocab_size, seed, *, reuse=True, **fields):
        self._host, _, self._port = target.rpartition(":")
        self._reuse = reuse
        self._vocab_size = vocab_size
        self._seed = seed
        self._fields = fields
        self._idle = []

    async def run(self, index, job, planned):
        """The job with a random prompt of its index."""
        ids = random_ids(f"{self._seed}/{index}", job.input_tokens, self._vocab_size)
        return await self.send(index, ids, job.output_tokens, planned)

    async def send(self, index, ids, output_tokens, planned):
        fields = {"prompt": ids, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({**fields, **streamed, **self._fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        sample = Sample(planned, time.perf_counter(), input_tokens=len(ids))
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            if status == "200":
                await self._read_events(reader, sample)
            else:
                sample.error = status
            if status == "200" and self._reuse:
                self._idle.append((reader, writer))
            else:
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            sample.error = type(error).__name__
        sample.ended = time.perf_counter()
        return sample

    async def _read_events(self, reader, sample):
        usage = None
        while size := int(await reader.readline(), 16):
            chunk = (await reader.readexactly(size + 2))[:size]
            events = chunk.count(b'"finish_reason":null')
            if events:
                sample.arrivals.append((time.perf_counter(), events))
            if b'"choices":[]' in chunk:
                event = next(line for line in chunk.split(b"\n") if b'"choices":[]' in line)
                usage = json.loads(event.removeprefix(b"data: "))
        await reader.readline()
        if usage is not None and sample.arrivals:
            last, _ = sample.arrivals.pop()
            sample.arrivals.append((last, usage["usage"]["completion_tokens"] - sample.tokens))

    async def close(self):
        for _, writer in self._idle:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


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
    """`concurrency` clients that share the jobs."""
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


@dataclass(frozen=True)
class Served:
    """What a daemon says of itself."""

    context: dict  # for Report
    vocab_size: int
    max_running: int
    max_waiting: int


async def served_by(target):
    async with grpc.aio.insecure_channel(target) as channel:
        model = (await model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest())).model
        info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest())
    context = {
        "model": model.name,
        "dtype": model.weight_dtype,
        "device": ", ".join(info.devices),
        "cores": os.cpu_count(),
    }
    return Served(context, model.vocab_size, info.max_running, info.max_waiting)
