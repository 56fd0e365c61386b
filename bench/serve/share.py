"""What the service leaves of the engine's speed: the same requests to the engine alone, over gRPC, over HTTP, in turns.

    python bench/serve/share.py
    python bench/serve/share.py --streams 64 --requests 192 -- --threads 2

Two processes have the model loaded, one computes at a time: one with the engine and nothing above it (no text, no
server), and a daemon with the flags that follow --, which both get. Requests are random token ids, greedy, ignore_eos,
without prefix cache; `--streams` of them are under way at any time. The first round does not count. Words:
  tokens/s    generated tokens / (first request sent to last token received)
  share       median of a protocol's tokens/s / median of the engine's; at least 0.88 is wanted at 64 streams
  client_cpu  processor time of the client, which runs on the same machine, as a share of one core: on two cores it is
              part of what the daemon loses
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

import uvloop
from client import Client, HttpClient, Job, Progress, closed_loop, random_ids, summary
from daemon import Daemon, own_cpu_s, parser_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report


def alone(flags, pipe):
    """The engine's process: each message is a list of prompts with their lengths of output; answers tokens/s."""
    from llmsrv.config import ServeConfig
    from llmsrv.engine import load_engine
    from llmsrv.flags import parse_settings

    model = load_engine(parse_settings(ServeConfig, prog="share.py", description="", arguments=flags).options)
    pipe.send(model.vocab_size)
    while jobs := pipe.recv():
        pipe.send(speed_alone(model, jobs))
    model.engine.shutdown()


def speed_alone(model, jobs):
    from llmsrv.params import SamplingParams

    began = time.perf_counter()
    for i, (ids, output_tokens) in enumerate(jobs):
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, seed=0)
        request, _ = model.engine.build(str(i), ids, model.resolve(params))
        model.engine.submit(request)
    left, tokens = len(jobs), 0
    while left:
        for output in model.engine.wait_outputs(1000):
            tokens += len(output.token_ids)
            left -= output.final
    return tokens / (time.perf_counter() - began)


async def speed_served(client, name, job, options):
    progress = Progress(name, options.requests)
    before, began = own_cpu_s(), time.perf_counter()
    figures = summary(await closed_loop(client, [job] * options.requests, options.streams, progress))
    assert figures["output_tokens"] == options.requests * options.output_tokens, figures
    return figures["output_tokens_per_s"], (own_cpu_s() - before) / (time.perf_counter() - began)


async def compare(options):
    flags = ["--model", options.model, "--no-prefix-cache", "--max-num-seqs", str(options.streams), *options.flags]
    ours, theirs = multiprocessing.Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=alone, args=(flags, theirs), daemon=True)
    engine.start()
    vocab_size = ours.recv()
    report = Report("share", options.json, seed=options.seed, cores=os.cpu_count(), model=options.model)
    job = Job(0.0, options.input_tokens, options.output_tokens)
    with Daemon(*flags, "--http-port", str(options.http_port)) as daemon:
        clients = {
            "grpc": Client(daemon.target, 2, vocab_size, options.seed),
            "http": HttpClient(f"127.0.0.1:{options.http_port}", vocab_size, options.seed),
        }
        found = {"engine": [], **{name: [] for name in clients}}
        for number in range(options.rounds + 1):
            ids = [random_ids(f"{options.seed}/{i}", job.input_tokens, vocab_size) for i in range(options.requests)]
            ours.send([(each, job.output_tokens) for each in ids])
            found["engine"].append((await asyncio.to_thread(ours.recv), 0.0))
            for name, client in clients.items():
                found[name].append(await speed_served(client, name, job, options))
            if number == 0:  # memory was new, caches were cold
                found = {name: [] for name in found}
        for client in clients.values():
            await client.close()
    ours.send([])
    engine.join(20)
    tell(report, found, options)


def tell(report, found, options):
    speeds = {name: statistics.median(speed for speed, _ in runs) for name, runs in found.items()}
    for name, runs in found.items():
        share, client_cpu = speeds[name] / speeds["engine"], statistics.median(cpu for _, cpu in runs)
        report.add(
            f"{name}, {options.streams} streams: {speeds[name]:.0f} tokens/s, {share:.3f} of the engine alone"
            + (f" (the client took {client_cpu:.2f} of a core)" if client_cpu else ""),
            load_1m=round(os.getloadavg()[0], 2),
            transport=name,
            streams=options.streams,
            requests=options.requests,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            tokens_per_s=round(speeds[name], 1),
            share=round(share, 4),
            client_cpu=round(client_cpu, 3),
            runs=[round(speed, 1) for speed, _ in runs],
        )


def main():
    parser = parser_of(__doc__, input_tokens=128, output_tokens=64, flags_of="both, for example -- --threads 2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=192, help="of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--http-port", type=int, default=18080)
    uvloop.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
