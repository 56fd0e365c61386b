"""Processor time of a daemon that nobody uses.

    python bench/serve/idle.py --model smollm2-135m --seconds 20

The daemon serves a few requests first, so that all its threads have worked, then is left alone.

  idle_percent   user and system time of the whole process, as a share of one core
  wakeups        voluntary context switches of all its threads per second: how often one of them woke
"""

import os
import sys
import time
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon import Daemon, parser_of
from report import Report

from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2

SETTLE_S = 1.0


def wakeups(pid):
    """Voluntary context switches of all threads so far, by the thread's name."""
    counted = {}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        name = lines["Name"].strip()
        counted[name] = counted.get(name, 0) + int(lines["voluntary_ctxt_switches"])
    return counted


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
        cpu_s, woken, began = daemon.cpu_s(), wakeups(daemon.pid), time.perf_counter()
        time.sleep(options.seconds)
        took = time.perf_counter() - began
        percent = (daemon.cpu_s() - cpu_s) / took * 100
        rates = {name: (count - woken.get(name, 0)) / took for name, count in wakeups(daemon.pid).items()}
    busiest = dict(sorted(rates.items(), key=lambda each: -each[1])[:5])
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in busiest.items())
    report.add(
        f"idle: {percent:.2f} % of a core over {took:.0f} s; {sum(rates.values()):.1f} wakeups/s ({shown})",
        daemon_flags=options.flags,
        idle_percent=round(percent, 3),
        wakeups=round(sum(rates.values()), 2),
        wakeups_by_thread={name: round(rate, 2) for name, rate in busiest.items()},
    )


if __name__ == "__main__":
    main()
