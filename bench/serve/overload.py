"""A daemon under far more load than it can carry: how fast it refuses, what the accepted requests feel, what is left.

The daemon is this script's own, with --max-queued-requests (and, after --, any flags). Requests are unary, token ids
in, counts out, and made before they are sent; each has a random prompt of its own. The phases, one after the other:

  idle      single requests: their median is what "normal" means at the end
  limit     closed loop of as many clients as the daemon runs and queues (or --clients): the queue is full all the time
            and, after the start, nobody is refused. Requests answered per second are the sustainable rate
  overload  open loop, Poisson, --factor times that rate, for --seconds
  recovery  single requests, one after the other, from the last planned request on

The queue has to be full before anything is compared: `limit` begins to count when it has had as many answers as there
are clients, and of the overload those accepted requests count that were sent after the first refusal.

  refused_ms    overload: request sent to RESOURCE_EXHAUSTED received; target: p99 <= 50
  retry_info    share of the refusals with a RetryInfo
  ttft_ms       of accepted requests: time in the queue and in prefill, as the daemon's answer tells
  e2e_ms        of accepted requests: sent to answer received
  against_limit p99 in the overload / p99 at the limit; target: 0.8 to 1.2
  rss           resident memory of the daemon, twice a second in the overload; flat: largest / smallest is near 1
  client_cpu    processor time of this process over wall time, in cores of the same machine; daemon_cpu likewise
  lag_ms        sent later than planned, by the client's own fault; where it is large, distrust refused_ms
  drain_s       last request of the overload sent to last accepted one answered: what waited is still worked off
  queue_empty_s last accepted request of the overload answered to nothing running or waiting (GetStats, every 20 ms)
  recovered_s   the same to the moment from which a single request takes no longer than --normal times the idle median;
                target: <= 5
"""

import asyncio
import itertools
import math
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import uvloop
from client import generate_request, percentiles, random_ids, served_by
from daemon import Daemon, own_cpu_s, parser_of
from google.rpc import error_details_pb2
from grpc_status import rpc_status

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import inference_pb2, types_pb2

REFUSED_PAUSE_S = 1.0  # of a client of the closed loop, which only its first moments refuse
GENERATE = "/llmsrv.v1.InferenceService/Generate"


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are seconds on the client's monotonic clock."""

    planned: float
    sent: float
    ended: float
    ttft_s: float = 0.0
    error: grpc.aio.AioRpcError | None = None

    @property
    def refused(self):
        return self.error is not None and self.error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


class Caller:
    """Sends bytes made beforehand: what a request costs on this side is little more than the call."""

    def __init__(self, target, channels):
        self._channels = [grpc.aio.insecure_channel(target, [("bench.channel", i)]) for i in range(channels)]
        answer = inference_pb2.GenerateResponse.FromString
        self._calls = [each.unary_unary(GENERATE, None, answer) for each in self._channels]
        self._turn = itertools.cycle(self._calls)

    async def send(self, message, planned):
        sent = time.perf_counter()
        try:
            response = await next(self._turn)(message)
        except grpc.aio.AioRpcError as error:
            return Answer(planned, sent, time.perf_counter(), error=error)
        timing = response.timing
        ttft_s = (timing.queue.ToNanoseconds() + timing.prefill.ToNanoseconds()) / 1e9
        return Answer(planned, sent, time.perf_counter(), ttft_s)

    async def close(self):
        for channel in self._channels:
            await channel.close()


def messages(seed, count, options, vocab_size):
    """Serialized requests."""
    output = types_pb2.OutputOptions(text=False)
    return [
        generate_request(
            random_ids(f"{seed}/{i}", options.input_tokens, vocab_size), options.output_tokens, output=output
        ).SerializeToString()
        for i in range(count)
    ]


class ClosedLoop:
    """Clients that keep the queue full. Counts from the moment at which there were as many answers as clients."""

    def __init__(self, caller, clients, pool):
        self._caller, self._clients, self._pool = caller, clients, pool
        self._ended = asyncio.Event()
        self._settled = asyncio.Event()
        self.answers = []
        self.refused = 0

    async def _one_client(self):
        while not self._ended.is_set():
            answer = await self._caller.send(next(self._pool), time.perf_counter())
            if answer.refused:
                self.refused += 1
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            if answer.error:
                raise answer.error
            self.answers.append(answer)
            if len(self.answers) >= self._clients:
                self._settled.set()

    async def run(self, seconds):
        """The moments between which it counted. All its requests are answered when it returns."""
        clients = asyncio.gather(*(self._one_client() for _ in range(self._clients)))
        settling = asyncio.ensure_future(self._settled.wait())
        await asyncio.wait({clients, settling}, return_when=asyncio.FIRST_COMPLETED)
        began = time.perf_counter()
        await asyncio.wait({clients}, timeout=seconds)
        ended = time.perf_counter()
        self._ended.set()
        await clients
        return began, ended


async def open_loop(caller, rate, pool, seed):
    """Every message of the pool at its time."""
    rng, tasks = random.Random(seed), []
    at = time.perf_counter()
    for message in pool:
        at += rng.expovariate(rate)
        wait_s = at - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        elif len(tasks) % 16 == 0:
            await asyncio.sleep(0)  # behind its plan: the answers must be read all the same
        tasks.append(asyncio.ensure_future(caller.send(message, at)))
    return tasks


class Watch:
    """Samples the daemon's memory, and the processor time of both sides, while it is entered."""

    def __init__(self, daemon):
        self._daemon = daemon
        self.rss_mib = []

    async def _sample(self):
        while True:
            self.rss_mib.append(self._daemon.rss_mib())
            await asyncio.sleep(0.5)

    async def __aenter__(self):
        self._began, self._own, self._its = time.perf_counter(), own_cpu_s(), self._daemon.cpu_s()
        self._task = asyncio.ensure_future(self._sample())
        return self

    async def __aexit__(self, *unused):
        self._task.cancel()
        self.rss_mib.append(self._daemon.rss_mib())
        seconds = time.perf_counter() - self._began
        self.client_cpu = round((own_cpu_s() - self._own) / seconds, 3)
        self.daemon_cpu = round((self._daemon.cpu_s() - self._its) / seconds, 3)

    def figures(self):
        low, high = min(self.rss_mib), max(self.rss_mib)
        return {
            "rss_mib": {"first": round(self.rss_mib[0], 1), "low": round(low, 1), "high": round(high, 1)},
            "rss_high_over_low": round(high / low, 4),
            "client_cpu": self.client_cpu,
            "daemon_cpu": self.daemon_cpu,
        }


def accepted_figures(answers, began, ended=math.inf):
    """Of accepted requests that were sent between these moments."""
    good = [each for each in answers if each.error is None and began <= each.sent < ended]
    return {
        "accepted": len(good),
        "ttft_ms": percentiles([each.ttft_s * 1e3 for each in good]),
        "e2e_ms": percentiles([(each.ended - each.sent) * 1e3 for each in good]),
    }


def retry_info_share(refusals):
    described = sum(
        any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in rpc_status.from_call(each.error).details)
        for each in refusals
    )
    return round(described / len(refusals), 4) if refusals else None


def overload_figures(answers, limit):
    refusals = [each for each in answers if each.refused]
    if not refusals:
        raise RuntimeError("nothing was refused: the load is too small or too short")
    accepted = accepted_figures(answers, min(each.ended for each in refusals))
    if not accepted["accepted"]:
        raise RuntimeError("nothing was accepted after the first refusal: --seconds is too short for this machine")
    last_accepted = max(each.ended for each in answers if each.error is None)
    return {
        "requests": len(answers),
        "refused": len(refusals),
        "other_errors": sum(each.error is not None for each in answers) - len(refusals),
        "refused_ms": percentiles([(each.ended - each.sent) * 1e3 for each in refusals]),
        "retry_info": retry_info_share(refusals),
        **accepted,
        "against_limit": {name: round(accepted[name]["p99"] / limit[name]["p99"], 3) for name in ("ttft_ms", "e2e_ms")},
        "drain_s": round(last_accepted - max(each.sent for each in answers), 3),
        "lag_ms": percentiles([(each.sent - each.planned) * 1e3 for each in answers]),
    }


def overload_sentence(figures):
    refused, against, rss = figures["refused_ms"], figures["against_limit"], figures["rss_mib"]
    return (
        f"overload  {figures['offered']:.0f} requests/s: {figures['refused']} of {figures['requests']} refused after"
        f" p50/p99 {refused['p50']:.1f}/{refused['p99']:.1f} ms, {figures['retry_info']:.1%} with RetryInfo,"
        f" {figures['other_errors']} other errors\n"
        f"          {figures['accepted']} accepted: TTFT p99 {figures['ttft_ms']['p99']:.0f} ms,"
        f" {against['ttft_ms']:.2f} of the limit's; E2E p99 {figures['e2e_ms']['p99']:.0f} ms,"
        f" {against['e2e_ms']:.2f} of the limit's\n"
        f"          RSS {rss['low']:.1f} to {rss['high']:.1f} MiB, {figures['rss_high_over_low']:.4f}; cores: client"
        f" {figures['client_cpu']:.2f}, daemon {figures['daemon_cpu']:.2f}; lag p99 {figures['lag_ms']['p99']:.1f} ms"
    )


class Bench:
    """The phases on one daemon, in order."""

    def __init__(self, options, daemon, served, report):
        self._options = options
        self._daemon = daemon
        self._report = report
        self._caller = Caller(daemon.target, options.channels)
        self._vocab_size = served.vocab_size
        self._singles = itertools.cycle(messages(f"{options.seed}/single", 64, options, served.vocab_size))

    async def run(self):
        idle_s = await self._idle()
        limit, rate = await self._limit()
        last_accepted = await self._overload(limit, rate)
        await self._recovery(idle_s, last_accepted)
        await self._caller.close()

    async def _single(self):
        answer = await self._caller.send(next(self._singles), time.perf_counter())
        if answer.error:
            raise answer.error
        return answer

    async def _idle(self):
        for _ in range(2):
            await self._single()
        times = [(each.ended - each.sent) for each in [await self._single() for _ in range(7)]]
        idle_s = statistics.median(times)
        text = f"idle      a single request takes {idle_s * 1e3:.0f} ms"
        self._report.add(text, name="idle", single_ms=round(idle_s * 1e3, 1))
        return idle_s

    async def _limit(self):
        options = self._options
        pool = itertools.cycle(messages(f"{options.seed}/limit", 4096, options, self._vocab_size))
        loop = ClosedLoop(self._caller, options.clients, pool)
        async with Watch(self._daemon) as watch:
            began, ended = await loop.run(options.limit_seconds)
        rate = sum(began <= each.ended < ended for each in loop.answers) / (ended - began)
        figures = accepted_figures(loop.answers, began, ended)
        if rate == 0 or not figures["accepted"]:
            raise RuntimeError("nothing was answered at the limit: --limit-seconds is too short for this machine")
        text = (
            f"limit     {rate:.1f} requests/s with {options.clients} clients, TTFT p99 {figures['ttft_ms']['p99']:.0f}"
            f" ms, E2E p99 {figures['e2e_ms']['p99']:.0f} ms; {loop.refused} refused"
        )
        self._report.add(text, name="limit", rate=round(rate, 2), refused=loop.refused, **figures, **watch.figures())
        return figures, rate

    async def _overload(self, limit, rate):
        options = self._options
        offered = rate * options.factor
        pool = messages(f"{options.seed}/overload", int(offered * options.seconds), options, self._vocab_size)
        async with Watch(self._daemon) as watch:
            tasks = await open_loop(self._caller, offered, pool, options.seed)
        answers = await asyncio.gather(*tasks)
        figures = {
            "offered": round(offered, 1),
            **overload_figures(answers, limit),
            **watch.figures(),
        }
        self._report.add(overload_sentence(figures), name="overload", seconds=options.seconds, **figures)
        return max(each.ended for each in answers if each.error is None)

    async def _recovery(self, idle_s, last_accepted):
        """REQUIRES: every request of the overload is answered."""
        while (stats := await asyncio.to_thread(self._daemon.stats)).running or stats.waiting:
            await asyncio.sleep(0.02)
        queue_empty_s = time.perf_counter() - last_accepted
        singles = []
        while not singles or (singles[-1][1] > self._options.normal * idle_s and len(singles) < 100):
            answer = await self._single()
            singles.append((answer.sent - last_accepted, answer.ended - answer.sent))
        recovered_s, took_s = singles[-1]
        text = (
            f"recovery  queue empty {queue_empty_s:.2f} s after the last accepted answer; normal again after"
            f" {recovered_s:.2f} s: single requests take {', '.join(f'{each[1] * 1e3:.0f}' for each in singles[:5])} ms"
        )
        self._report.add(
            text,
            name="recovery", queue_empty_s=round(queue_empty_s, 3), recovered_s=round(recovered_s, 3),
            single_ms=round(took_s * 1e3, 1), singles=len(singles), load_1m=round(os.getloadavg()[0], 2),
        )  # fmt: skip


async def measure(options):
    flags = ("--model", options.model, "--max-queued-requests", str(options.max_queued_requests), *options.flags)
    with Daemon(*flags) as daemon:
        served = await served_by(daemon.target)
        if options.clients is None:
            options.clients = served.max_running + served.max_waiting
        report = Report("overload", options.json, seed=options.seed, daemon=daemon.flags, **served.context)
        await Bench(options, daemon, served, report).run()


def parsed():
    parser = parser_of(__doc__, input_tokens=128, output_tokens=64)
    parser.add_argument("--max-queued-requests", type=int, default=64, help="of the daemon, whose own default is 1024")
    parser.add_argument("--clients", type=int, help="of the phase `limit`")
    parser.add_argument("--factor", type=float, default=20.0, help="offered load over the sustainable rate")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--limit-seconds", type=float, default=30.0, help="of the phase `limit`")
    parser.add_argument("--normal", type=float, default=1.2, help="a request this much slower than idle is normal")
    parser.add_argument("--channels", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(measure(parsed()))
