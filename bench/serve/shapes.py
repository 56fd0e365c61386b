"""What a client of many streams can save: the same tokens as plain streams, as held streams, and as one session.

    python bench/serve/shapes.py --streams 64 --rate 20000

The server is frontend.py's: a scripted engine that gives every stream one token per step. The shapes take turns. Words:
  plain     GenerateStream, every step sent unless the server is late
  held      GenerateStream with max_coalesce_delay = --delay-ms
  session   GenerateSession: all streams in one call, every step sent
  cpu_us_per_token, messages_per_token, delivered: as in frontend.py
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

import grpc.aio
import uvloop
from frontend import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import inference_pb2, inference_pb2_grpc


def request_of(index, tokens):
    return inference_pb2.GenerateRequest(
        request_id=f"r{index}", text="the quick brown", stopping={"max_tokens": tokens, "ignore_eos": True}
    )


def counted(response):
    return sum(delta.token_count for delta in response.deltas)


async def streams(stub, count, tokens, delay_ms):
    """Messages and tokens that came."""

    async def one(index):
        request = inference_pb2.GenerateStreamRequest(request=request_of(index, tokens))
        if delay_ms:
            request.stream.max_coalesce_delay.FromMilliseconds(delay_ms)
        sizes = [counted(message) async for message in stub.GenerateStream(request)]
        return len(sizes), sum(sizes)

    return [sum(each) for each in zip(*await asyncio.gather(*(one(i) for i in range(count))), strict=True)]


async def session(stub, count, tokens):
    call = stub.GenerateSession()
    for index in range(count):
        start = inference_pb2.GenerateStreamRequest(request=request_of(index, tokens))
        await call.write(inference_pb2.GenerateSessionRequest(start=start))
    await call.done_writing()
    messages = received = 0
    async for message in call:
        messages += 1
        received += sum(counted(item.response) for item in message.items)
    return messages, received


async def compare(options):
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(options.rate, theirs), daemon=True)
    server.start()
    port, _ = ours.recv()

    def cpu_s():
        ours.send(True)
        return ours.recv()

    tokens = max(round(options.seconds * options.rate / options.streams), 8)
    found = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        shapes = {
            "plain": lambda: streams(stub, options.streams, tokens, 0),
            "held": lambda: streams(stub, options.streams, tokens, options.delay_ms),
            "session": lambda: session(stub, options.streams, tokens),
        }
        for _ in range(options.rounds):
            for name, run in shapes.items():
                before, began = cpu_s(), time.perf_counter()
                messages, received = await run()
                took, spent = time.perf_counter() - began, cpu_s() - before
                assert received == options.streams * tokens
                found.setdefault(name, []).append((spent / received * 1e6, messages / received, received / took))
    report = Report("shapes", options.json, cores=os.cpu_count(), rate=options.rate, delay_ms=options.delay_ms)
    for name, runs in found.items():
        cpu_us, per_token, speed = (statistics.median(column) for column in zip(*runs, strict=True))
        report.add(
            f"{name}, {options.streams} streams: {cpu_us:.1f} us of the server per token, "
            f"{per_token:.3f} messages per token, {speed:.0f} tokens/s of {options.rate:.0f}",
            load_1m=round(os.getloadavg()[0], 2),
            shape=name,
            streams=options.streams,
            cpu_us_per_token=round(cpu_us, 2),
            messages_per_token=round(per_token, 4),
            delivered=round(speed / options.rate, 3),
        )
    ours.send(False)
    server.join(10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=20000.0, help="tokens per second, of all streams together")
    parser.add_argument("--delay-ms", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="append one JSON line per result to this file")
    uvloop.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
