"""Which share of the held KV slots carries a token, with a real model under a trace's own load.

The requests of --trace (JSON lines with timestamp in ms, input_length and output_length) are submitted to an engine in
this process at their own times, or faster with --time-scale below 1: random prompts of the trace's lengths, greedy,
exactly as many output tokens as the trace has. stats() is sampled every --interval seconds.

Words:
  slots        tokens that fit into the blocks that requests hold: blocks held times the block size
  utilization  stats().utilization: slots that carry a token, or get it in the running step, over slots held. `mean` is
               over the samples of the steady load, those between --settle and the last arrival in which something is
               held; `by_slots` weighs each of them by the slots held; target: mean >= 0.94
  running      requests that run, mean over the same samples; when `waiting` is not near 0 the engine is slower than the
               trace
  lag_ms       submitted later than planned
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from in_process import batches, make_request, open_weights, random_prompt

from llmsrv import _core
from llmsrv.config import DEFAULT_DTYPE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report


@dataclass(frozen=True)
class Arrival:
    """One request of the trace: when after the start, and its lengths in tokens."""

    at_s: float
    input_tokens: int
    output_tokens: int


def read_trace(path, time_scale, limit):
    rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()][:limit]
    first = rows[0]["timestamp"]
    return [
        Arrival((row["timestamp"] - first) / 1e3 * time_scale, row["input_length"], max(row["output_length"], 1))
        for row in rows
    ]


class Sampler(threading.Thread):
    """Keeps (seconds since the start, stats) of an engine, every `interval_s`, until stop()."""

    def __init__(self, engine, interval_s):
        super().__init__(daemon=True)
        self._engine, self._interval_s, self._ended = engine, interval_s, threading.Event()
        self.samples = []

    def run(self):
        began = time.perf_counter()
        while not self._ended.wait(self._interval_s):
            self.samples.append((time.perf_counter() - began, self._engine.stats()))

    def stop(self):
        self._ended.set()
        self.join()


def replay(engine, trace, prompts):
    """Submits the trace at its times and waits for its end; how late each request was, in ms."""
    keys, lags_ms, began = [], [], time.perf_counter()
    for number, (arrival, prompt) in enumerate(zip(trace, prompts, strict=True)):
        time.sleep(max(began + arrival.at_s - time.perf_counter(), 0.0))
        lags_ms.append((time.perf_counter() - began - arrival.at_s) * 1e3)
        keys.append(engine.submit(make_request(str(number), prompt, arrival.output_tokens)))
    failed = sum(output.error is not None for _, outputs in batches(engine, keys) for output in outputs)
    if failed:
        raise RuntimeError(f"{failed} requests failed")
    return lags_ms


def figures(samples, settle_s, last_arrival_s, total_blocks):
    steady = [stats for moment, stats in samples if settle_s <= moment <= last_arrival_s and stats.kv_blocks_held > 0]
    held = sum(stats.kv_blocks_held for stats in steady)
    return {
        "samples": len(steady),
        "mean": round(statistics.fmean(stats.utilization for stats in steady), 4),
        "by_slots": round(sum(stats.utilization * stats.kv_blocks_held for stats in steady) / held, 4),
        "lowest": round(min(stats.utilization for stats in steady), 4),
        "running": round(statistics.fmean(stats.running for stats in steady), 2),
        "waiting": round(statistics.fmean(stats.waiting for stats in steady), 2),
        "held_of_pool": round(held / len(steady) / total_blocks, 4),
        "preemptions": samples[-1][1].preemptions,
    }


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, metavar="FILE")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default=DEFAULT_DTYPE, choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--requests", type=int, help="only so many first ones")
    parser.add_argument("--time-scale", type=float, default=1.0, help="0.5 submits a trace twice as fast")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds until the load counts as steady")
    parser.add_argument("--interval", type=float, default=0.02)
    parser.add_argument("--block-size", type=int, default=16, choices=[8, 16, 32])
    parser.add_argument("--kv-cache-memory", type=int, default=512 << 20, metavar="BYTES")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    return parser.parse_args()


def main():
    args = parsed()
    trace = read_trace(args.trace, args.time_scale, args.requests)
    weights, vocab_size = open_weights(args.model, args.dtype, args.threads)
    config = _core.EngineConfig(
        max_model_len=max(each.input_tokens + each.output_tokens for each in trace),
        block_size=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_cache_memory=args.kv_cache_memory,
        prefix_cache=not args.no_prefix_cache,
    )
    engine = _core.Engine(weights, config, threads=args.threads)
    generator = np.random.default_rng(args.seed)
    prompts = [random_prompt(generator, each.input_tokens, vocab_size) for each in trace]
    sampler = Sampler(engine, args.interval)
    sampler.start()
    lags_ms = replay(engine, trace, prompts)
    sampler.stop()
    result = figures(sampler.samples, args.settle, trace[-1].at_s, engine.plan.kv_blocks)
    report = Report("utilization", args.json, model=args.model, dtype=args.dtype, device=engine.device, seed=args.seed)
    report.add(
        f"utilization {result['mean']:.2%} (by slots {result['by_slots']:.2%}, lowest {result['lowest']:.2%}) over"
        f" {result['samples']} samples; running {result['running']:.1f}, waiting {result['waiting']:.1f}, held"
        f" {result['held_of_pool']:.1%} of the pool; {result['preemptions']} preemptions; lag at most"
        f" {max(lags_ms):.0f} ms",
        trace=Path(args.trace).name, requests=len(trace), time_scale=args.time_scale, block_size=args.block_size,
        lag_ms_max=round(max(lags_ms), 1), load_1m=round(os.getloadavg()[0], 2), **result,
    )  # fmt: skip
    engine.shutdown()


if __name__ == "__main__":
    main()
