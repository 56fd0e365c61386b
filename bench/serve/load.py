"""Load on a running daemon, several runs at once: how fast, and how late, as its clients see it. See `llmsrv bench`.

    python bench/serve/load.py --target 127.0.0.1:50051 --concurrency 1,8,32 --requests 64
    python bench/serve/load.py --http 127.0.0.1:8000 --concurrency 64
    python bench/serve/load.py --rate 2.5 --requests 150
    python bench/serve/load.py --trace azure_conv.jsonl --time-scale 0.5

Closed loop (--concurrency): N clients, each sends its next request when it has its answer. Open loop (--rate: Poisson
arrivals; --trace: the file's own times): requests are sent at their time, however many are under way; only this is fair
to latency, because a slow server does not slow its clients down. A trace is what `llmsrv bench` takes.

One sentence per result goes to standard output, one JSON line to --json FILE, with commit, flags, machine and seed.
The words are defined in client.py and by `llmsrv bench`.
"""

import argparse
import os
import sys
from pathlib import Path

import uvloop
from client import (
    Client,
    HttpClient,
    Job,
    Progress,
    closed_loop,
    open_loop,
    poisson_jobs,
    sentence,
    served_by,
    summary,
    trace_jobs,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report


def runs(options):
    """(what distinguishes the run, its jobs, concurrency or None for open loop)."""
    if options.trace:
        jobs = trace_jobs(Path(options.trace), time_scale=options.time_scale, limit=options.requests)
        return [({"mode": "open", "trace": Path(options.trace).name, "time_scale": options.time_scale}, jobs, None)]
    job = Job(0.0, options.input_tokens, options.output_tokens)
    if options.rate:
        jobs = poisson_jobs(job, options.requests, options.rate, options.seed)
        return [({"mode": "open", "rate": options.rate}, jobs, None)]
    jobs = [job] * options.requests
    return [({"mode": "closed", "concurrency": n}, jobs, n) for n in options.concurrency]


async def measure(options):
    served = await served_by(options.target)
    transport = "http" if options.http else "grpc"
    report = Report("serve", options.json, seed=options.seed, transport=transport, **served.context)
    if options.http:
        client = HttpClient(options.http, served.vocab_size, options.seed)
    else:
        client = Client(options.target, options.channels, served.vocab_size, options.seed)
    for what, jobs, concurrency in runs(options):
        label = " ".join(f"{key} {value}" for key, value in what.items())
        if options.warmup:
            warm, progress = jobs[:1] * options.warmup, Progress("warm-up", options.warmup)
            await closed_loop(client, warm, options.warmup, progress, first_index=-options.warmup)
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
    parser.add_argument("--target", default="127.0.0.1:50051", help="over gRPC, which also says what is served")
    parser.add_argument("--http", help="send the load here, over HTTP; for example 127.0.0.1:8000")
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
