"""What the prefix cache saves when it hits, and what it costs when it never does. Two daemons, on one machine.

  ttft        one request at a time: a random prompt of --prompt tokens (cold), then one with the same first --shared
              tokens and others after them (warm), --repeats times
  throughput  closed loop of --concurrency streams over --requests random prompts, none like another (0 % hits); the
              daemons with and without the cache take turns, --rounds times, each pair in turned order and with the
              same prompts; only one of the two is ever loaded

Words:
  ttft_ms       request sent to first token received; medians
  warm_of_cold  median of warm / median of cold; target: <= 0.15
  found         tokens found in the cache, of those looked up, over the warm prompts
  output_per_s  generated tokens / (first request sent to last token received)
  loss          1 - median over the pairs of (with the cache / without); target: <= 0.01. `spread` is the half-width
                between the quartiles of these ratios: a loss that is smaller than it cannot be told from none
"""

import os
import statistics
import sys
import time
from pathlib import Path

import uvloop
from client import Client, Job, Progress, closed_loop, random_ids, served_by, summary
from daemon import Daemon, parser_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import types_pb2


def ttft_ms(sample):
    if sample.error:
        raise RuntimeError(f"a request failed with {sample.error}")
    return (sample.arrivals[0][0] - sample.sent) * 1e3


async def first_tokens(daemon, vocab_size, options):
    """(cold, warm) times to first token, and tokens (found, looked up) of the warm ones."""
    client = Client(daemon.target, 1, vocab_size, options.seed, output=types_pb2.OutputOptions(text=False))
    cold, warm, found, looked_up = [], [], 0, 0
    for number in range(options.repeats + 1):
        prompt = random_ids(f"{options.seed}/prompt/{number}", options.prompt, vocab_size)
        tail = random_ids(f"{options.seed}/tail/{number}", options.prompt - options.shared, vocab_size)
        cold_ms = ttft_ms(await client.send(prompt, 1, time.perf_counter()))
        before = daemon.stats()
        warm_ms = ttft_ms(await client.send(prompt[: options.shared] + tail, 1, time.perf_counter()))
        after = daemon.stats()
        if number == 0:  # a warm-up
            continue
        cold.append(cold_ms)
        warm.append(warm_ms)
        found += after.prefix_cache_hits - before.prefix_cache_hits
        looked_up += after.prefix_cache_queries - before.prefix_cache_queries
    await client.close()
    return cold, warm, (found, looked_up)


async def throughput(daemon, seed, vocab_size, options):
    """Output tokens per second of one run."""
    client = Client(daemon.target, 2, vocab_size, seed, output=types_pb2.OutputOptions(text=False))
    jobs = [Job(0.0, options.input_tokens, options.output_tokens)] * options.requests
    samples = await closed_loop(client, jobs, options.concurrency, Progress(f"  {seed}", len(jobs)))
    await client.close()
    figures = summary(samples)
    if figures["ok"] != len(jobs):
        raise RuntimeError(f"requests failed: {figures['errors']}")
    return figures["output_tokens_per_s"]


async def pairs(daemons, vocab_size, options):
    """{"on": rates, "off": rates} of all rounds."""
    rates = {name: [] for name in daemons}
    for name, daemon in daemons.items():
        await throughput(daemon, f"{options.seed}/warm-up/{name}", vocab_size, options)
    for number in range(options.rounds):
        for name in ("on", "off") if number % 2 == 0 else ("off", "on"):
            rates[name].append(await throughput(daemons[name], f"{options.seed}/{number}", vocab_size, options))
    return rates


def loss_figures(rates):
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "output_per_s": {name: round(statistics.median(each), 1) for name, each in rates.items()},
        "loss": round(1 - middle, 4),
        "spread": round((high - low) / 2, 4),
        "ratios": [round(each, 4) for each in ratios],
    }


async def measure(options):
    flags = ("--model", options.model, *options.flags)
    with Daemon(*flags, "--prefix-cache") as with_cache, Daemon(*flags, "--no-prefix-cache") as without:
        served = await served_by(with_cache.target)
        report = Report("prefix", options.json, seed=options.seed, daemon=with_cache.flags, **served.context)
        cold, warm, (found, looked_up) = await first_tokens(with_cache, served.vocab_size, options)
        middle = {"cold": round(statistics.median(cold), 2), "warm": round(statistics.median(warm), 2)}
        ratio = round(middle["warm"] / middle["cold"], 4)
        report.add(
            f"ttft        {options.shared} of {options.prompt} tokens cached: {middle['warm']:.1f} ms, cold"
            f" {middle['cold']:.1f} ms: {ratio:.1%}; found {found} of {looked_up} tokens",
            name="ttft", prompt=options.prompt, shared=options.shared, ttft_ms=middle, warm_of_cold=ratio,
            cold_ms=[round(each, 2) for each in cold], warm_ms=[round(each, 2) for each in warm],
            found=found, looked_up=looked_up,
        )  # fmt: skip
        result = loss_figures(await pairs({"on": with_cache, "off": without}, served.vocab_size, options))
        rates = result["output_per_s"]
        report.add(
            f"throughput  {rates['on']:.1f} output tokens/s with the cache, {rates['off']:.1f} without: loss"
            f" {result['loss']:.2%}, spread {result['spread']:.2%} over {options.rounds} pairs",
            name="throughput", concurrency=options.concurrency, requests=options.requests, input=options.input_tokens,
            output=options.output_tokens, load_1m=round(os.getloadavg()[0], 2), **result,
        )  # fmt: skip


def parsed():
    parser = parser_of(__doc__, input_tokens=128, output_tokens=32, flags_of="both daemons")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a prompt in `ttft`")
    parser.add_argument("--shared", type=int, default=1400, help="of these, the same in the second prompt")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of runs in `throughput`")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64, help="of one run")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(measure(parsed()))
