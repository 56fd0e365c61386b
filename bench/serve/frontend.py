"""What it costs to bring tokens to clients: both protocols over a scripted engine that computes nothing.

    python bench/serve/frontend.py --streams 1,8,32,64 --rate 2000
    python bench/serve/frontend.py --streams 64 --rate 20000 --one-core

A process of its own serves gRPC and HTTP; its engine gives every stream one token per step, at a pace that makes
`--rate` tokens per second of all streams together. The protocols take turns. Words:
  cpu_us_per_token    processor time of the server process per token delivered, the scripted engine's own included
  messages_per_token  below 1 where deltas were merged because the server was late
  delivered           tokens/s from the first request sent to the last token received, as a share of the rate
Processor time does not depend on who else uses the machine; `delivered` does. With --one-core the server has a core to
itself and the client the others: delivered should be 1 at 20,000 tokens/s.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import uvloop
from client import Client, HttpClient, Job, Progress, closed_loop, summary

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit"))

from fakes import FakeEngine, FakeOutput, fake_model, finish
from report import Report

VOCAB = 256
TEXT = b"the quick brown fox jumps over the lazy dog "


class PacedEngine(FakeEngine):
    """One token for every request in each step, so many tokens per second together."""

    def __init__(self, tokens_per_s):
        super().__init__()
        self._tokens_per_s = tokens_per_s
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        given, due = {}, time.perf_counter()
        while True:
            with self.condition:
                live = list(self.live)
            outputs = [self._next(key, given) for key in live]
            self.push(outputs)
            due = max(due + len(live) / self._tokens_per_s, time.perf_counter() - 0.1)
            time.sleep(max(due - time.perf_counter(), 0.0005))

    def _next(self, key, given):
        count = given[key] = given.get(key, 0) + 1
        done = count == self.submitted[key].params.max_tokens
        ending = finish("length") if done else None
        return FakeOutput(key, 0, [TEXT[count % len(TEXT)]], finish=ending, final=done)


def serve(tokens_per_s, core, pipe):
    if core is not None:
        os.sched_setaffinity(0, {core})
    uvloop.run(_serve(tokens_per_s, pipe))


async def _serve(tokens_per_s, pipe):
    from llmsrv.config import ServeConfig
    from llmsrv.serve.grpc_server import GrpcServer
    from llmsrv.serve.http_api.server import HttpServer
    from llmsrv.service import GenerationService

    config = ServeConfig(model="fake", port=0, http_port=0)
    service = GenerationService(fake_model(PacedEngine(tokens_per_s)))
    servers = [GrpcServer(config), HttpServer(config)]
    pipe.send([await each.start() for each in servers])
    for each in servers:
        await each.serve(service)
    while await asyncio.to_thread(pipe.recv):  # each message asks for the processor time so far
        pipe.send(time.process_time())
    for each in servers:
        await each.stop()
    await service.close()


async def measure(client, streams, tokens, cpu_s):
    jobs = [Job(0.0, 16, tokens)] * streams
    await closed_loop(client, [Job(0.0, 16, 4)] * streams, streams, Progress("warm-up", streams))
    before = cpu_s()
    samples = await closed_loop(client, jobs, streams, Progress(f"{streams} streams", streams))
    spent = cpu_s() - before
    figures = summary(samples)
    assert figures["output_tokens"] == streams * tokens, figures
    messages = sum(len(each.arrivals) for each in samples)
    return spent / figures["output_tokens"] * 1e6, messages / figures["output_tokens"], figures["output_tokens_per_s"]


async def compare(options):
    ours, theirs = multiprocessing.Pipe()
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if options.one_core and len(cores) > 1 else None
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(options.rate, core, theirs), daemon=True)
    server.start()
    if core is not None:
        os.sched_setaffinity(0, cores[1:])
    grpc_port, http_port = ours.recv()

    def cpu_s():
        ours.send(True)
        return ours.recv()

    clients = {
        "grpc": Client(f"127.0.0.1:{grpc_port}", 2, VOCAB, options.seed),
        "http": HttpClient(f"127.0.0.1:{http_port}", VOCAB, options.seed),
    }
    report = Report(
        *("frontend", options.json), seed=options.seed, cores=len(cores), rate=options.rate, one_core=core is not None
    )
    for streams in options.streams:
        tokens = max(round(options.seconds * options.rate / streams), 8)
        found = {name: [] for name in clients}
        for _ in range(options.rounds):
            for name, client in clients.items():
                found[name].append(await measure(client, streams, tokens, cpu_s))
        for name, runs in found.items():
            cpu_us, messages, speed = (statistics.median(column) for column in zip(*runs, strict=True))
            report.add(
                f"{name}, {streams} streams: {cpu_us:.1f} us of the server per token, "
                f"{messages:.2f} messages per token, {speed:.0f} tokens/s of {options.rate:.0f}",
                load_1m=round(os.getloadavg()[0], 2),
                transport=name,
                streams=streams,
                cpu_us_per_token=round(cpu_us, 2),
                messages_per_token=round(messages, 3),
                delivered=round(speed / options.rate, 3),
            )
    for client in clients.values():
        await client.close()
    ours.send(False)
    server.join(10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32, 64])
    parser.add_argument("--rate", type=float, default=2000.0, help="tokens per second, of all streams together")
    parser.add_argument("--one-core", action="store_true", help="give the server one core, the client the others")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="append one JSON line per result to this file")
    uvloop.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
