"""Processor time of a daemon that nobody uses.

    python bench/serve/idle.py --model smollm2-135m --seconds 20

The daemon serves a few requests first, so that all its threads have worked, then is left alone.

  idle_percent   user and system time of the whole process, as a share of one core; by_thread: likewise, by name
  wakeups        voluntary context switches of all its threads per second: how often one of them woke
"""

import os
import re
import sys
import time
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon import Daemon, parser_of
from report import Report

from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2

SETTLE_S = 1.0


def by_thread(pid, figure):
    """A figure of all threads so far, added up by the thread's name."""
    sums = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        name = (thread / "comm").read_text().strip()
        sums[name] = sums.get(name, 0) + figure(thread)
    return sums


def wakeups(thread):
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.MULTILINE)
    return int(found[1])


def cpu_s(thread):
    return int((thread / "schedstat").read_text().split()[0]) / 1e9


def rates(pid, seconds):
    """Wake-ups per second and shares of a core, by thread, over so many seconds."""
    figures = (wakeups, cpu_s)
    before, began = [by_thread(pid, figure) for figure in figures], time.perf_counter()
    time.sleep(seconds)
    after, took = [by_thread(pid, figure) for figure in figures], time.perf_counter() - began
    return [
        {name: (now[name] - then.get(name, 0)) / took for name in now} for then, now in zip(before, after, strict=True)
    ]


def warm_up(target, options):
    with grpc.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for _ in range(3):
            message = inference_pb2.GenerateRequest(
                text="word " * options.input_tokens,
                stopping=types_pb2.StoppingParams(max_tokens=options.output_tokens),
            )
            stub.Generate(message)


def main():
    parser = parser_of(__doc__, input_tokens=32, output_tokens=16)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    report = Report("idle", options.json, model=options.model, cores=os.cpu_count())
    with Daemon("--model", options.model, "--dtype", "auto", *options.flags) as daemon:
        warm_up(daemon.target, options)
        time.sleep(SETTLE_S)
        woken, busy = rates(daemon.pid, options.seconds)
    percent = 100 * sum(busy.values())
    shares = {name: round(100 * share, 3) for name, share in sorted(busy.items(), key=lambda each: -each[1])[:5]}
    shown = ", ".join(f"{name} {share:.2f} %, {woken[name]:.1f}/s" for name, share in shares.items())
    report.add(
        f"idle: {percent:.2f} % of a core over {options.seconds:.0f} s, {sum(woken.values()):.1f} wakeups/s ({shown})",
        daemon_flags=options.flags,
        seconds=options.seconds,
        idle_percent=round(percent, 3),
        by_thread=shares,
        wakeups=round(sum(woken.values()), 2),
    )


if __name__ == "__main__":
    main()
