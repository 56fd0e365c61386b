"""The scheduler alone: replays a trace against a fake model on a simulated clock, and times plan() and commit().

A step takes --step-ms plus --token-us for each of its tokens. Every request generates exactly the trace's output
length. Prompts are made up so that two share exactly the blocks that the trace names alike.

Traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens (no sharing), or JSON lines with timestamp (ms),
input_length, output_length and hash_ids (one name for every --hash-block-tokens of the prompt). bench/README.md says
where they are.

Definitions. Cost: plan() and commit() together, wall time, one thread. Utilization: token slots that carry a computed
token over token slots of held blocks, after each step, averaged over the steps between the first and the last tenth; a
shared block counts once. Hits: prompt tokens found in the prefix cache at first admission over prompt tokens. The bound
is what an infinite cache that knows every earlier prompt would find: in full hash blocks, and in tokens (at least one
of a prompt is always computed). Queue wait: simulated time from arrival to first admission.

--synthetic RUNNING measures the cost alone: RUNNING sequences decode, --waiting others wait, for several pools.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llmsrv import _testing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

# Extra waiting requests are as long as the trace's, up to this: there may be a hundred thousand.
EXTRA_PROMPT_MAX = 1024
SYNTHETIC_STEPS = 1000
RUNNING_STEPS = (64, 256, 1024, 4096)


class Request(NamedTuple):
    arrival_s: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    priority: int = 0
    tenant: str = ""


def read_trace(path):
    """All requests in order of arrival, the first one at second zero."""
    with open(path) as file:
        if file.read(1) == "{":
            file.seek(0)
            rows = [json.loads(line) for line in file]
            requests = [
                Request(row["timestamp"] / 1000, row["input_length"], row["output_length"], row.get("hash_ids", []))
                for row in rows
            ]
        else:
            file.seek(0)
            requests = [
                Request(
                    datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                    [],
                )
                for row in csv.DictReader(file)
            ]
    requests.sort(key=lambda request: request.arrival_s)
    start = requests[0].arrival_s
    return [request._replace(arrival_s=request.arrival_s - start) for request in requests]


def guess_hash_block_tokens(requests):
    per_name = [-(-request.input_length // len(request.hash_ids)) for request in requests if request.hash_ids]
    return 32 if not per_name or max(per_name) <= 32 else 512


def infinite_cache_bounds(requests, hash_block_tokens):
    """Shares of all prompt tokens that an infinite cache finds: (full hash blocks, tokens)."""
    filled = {}  # by name: tokens of the hash block that some earlier prompt had
    hash_hits = token_hits = 0
    for request in requests:
        whole = matched = 0
        matches = True
        for place, name in enumerate(request.hash_ids):
            own = min(hash_block_tokens, request.input_length - place * hash_block_tokens)
            known = filled.get(name, 0)
            if matches:
                matched += min(own, known)
                matches = known >= own
                whole += own if matches and own == hash_block_tokens else 0
            filled[name] = max(known, own)
        hash_hits += whole
        token_hits += min(matched, request.input_length - 1)
    total = sum(request.input_length for request in requests)
    return hash_hits / total, token_hits / total


def limits_of(args):
    limits = _testing.SchedulerLimits()
    limits.block_size, limits.blocks, limits.swap_blocks = args.block_size, args.blocks, args.swap_blocks
    limits.max_sequences = args.max_num_seqs
    limits.max_step_tokens = max(args.max_num_batched_tokens, args.max_num_seqs)
    limits.prefix_cache = args.prefix_cache
    limits.eviction = _testing.EvictionOrder.__members__[args.eviction]
    limits.preemption = _testing.PreemptionMode.__members__[args.preemption_mode]
    limits.policy = _testing.SchedulingPolicy.__members__[args.policy]
    return limits


def simulate(requests, args, limits, max_steps=None):
    model = _testing.FakeModel(
        step_s=args.step_ms / 1e3, token_s=args.token_us / 1e6, swapped_block_s=args.swap_us / 1e6
    )
    return _testing.simulate_scheduler(
        limits,
        requests,
        hash_block_tokens=args.hash_block_tokens or guess_hash_block_tokens(requests),
        model=model,
        max_steps=max_steps,
    )


def cost_figures(result):
    cost = result["plan_us"] + result["commit_us"]
    return {
        "cost_us_median": float(np.median(cost)),
        "cost_us_p99": float(np.quantile(cost, 0.99)),
        "cost_us_max": float(cost.max()),
        "plan_us_median": float(np.median(result["plan_us"])),
        "commit_us_median": float(np.median(result["commit_us"])),
    }


def cost_by_running(result):
    """Medians by the number of running sequences."""
    cost, running = result["plan_us"] + result["commit_us"], result["running"]
    medians, low = {}, 0
    for high in RUNNING_STEPS:
        chosen = (running > low) & (running <= high)
        if chosen.any():
            medians[f"{low + 1}-{high}"] = float(np.median(cost[chosen]))
        low = high
    return medians


def wait_by_claim(result, requests):
    """99th percentile of the queue wait by what the policy goes by; empty when nothing tells requests apart."""
    waits = defaultdict(list)
    for request, wait in zip(requests, result["queue_wait_s"], strict=True):
        waits[f"priority {request.priority}, {request.tenant or 'one tenant'}"].append(wait)
    if len(waits) == 1:
        return {}
    return {claim: float(np.quantile(wait, 0.99)) for claim, wait in sorted(waits.items())}


def steady(values):
    """Without the first and the last tenth."""
    edge = len(values) // 10
    return values[edge : len(values) - edge]


def trace_figures(result, requests, extra):
    """`requests`: those of the trace, which arrive after `extra` others."""
    filled, held = steady(result["filled_slots"]), steady(result["held_slots"])
    cached = result["cached_tokens"][extra:]
    wait = result["queue_wait_s"]
    return {
        **cost_figures(result),
        "steps": len(result["tokens"]),
        "step_tokens_mean": float(result["tokens"].mean()),
        "running_mean": float(result["running"].mean()),
        "running_max": int(result["running"].max()),
        "waiting_max": int(result["waiting"].max()),
        "utilization": float(np.mean(filled[held > 0] / held[held > 0])),
        "hit_share": float(cached.sum() / sum(request.input_length for request in requests)),
        "cost_us_median_by_running": cost_by_running(result),
        "preemptions": result["preemptions"],
        "swap_outs": result["swap_outs"],
        "recomputed_tokens": result["recomputed_tokens"],
        "wait_s_p99": float(np.quantile(wait, 0.99)),
        "wait_s_max": float(wait.max()),
        "simulated_s": result["simulated_s"],
        "wall_s": result["wall_s"],
        "times_real_time": result["simulated_s"] / result["wall_s"],
    }


def extra_requests(requests, count):
    """Requests that all arrive at the start and share nothing."""
    cycle = (requests[i % len(requests)] for i in range(count))
    return [
        request._replace(arrival_s=0.0, input_length=min(request.input_length, EXTRA_PROMPT_MAX), hash_ids=[])
        for request in cycle
    ]


def with_claims(requests, args):
    """The same requests; priorities and tenants in turn."""
    return [
        request._replace(priority=i % args.priorities, tenant=f"tenant {i % args.tenants}" if args.tenants > 1 else "")
        for i, request in enumerate(requests)
    ]


def trace_text(figures):
    by_running = ", ".join(f"{n}: {us:.1f} us" for n, us in figures["cost_us_median_by_running"].items())
    by_claim = "".join(f"  wait p99     {claim}: {s:.1f} s\n" for claim, s in figures["wait_s_p99_by_claim"].items())
    return (
        "  plan+commit  median {cost_us_median:.1f} us (plan {plan_us_median:.1f}, commit {commit_us_median:.1f}), "
        "p99 {cost_us_p99:.1f}, max {cost_us_max:.0f}; {steps} steps of {step_tokens_mean:.0f} tokens\n"
        f"  by running   {by_running}\n"
        "  load         running {running_mean:.0f} (max {running_max}), waiting max {waiting_max}, "
        "queue wait p99 {wait_s_p99:.1f} s, max {wait_s_max:.1f} s\n"
        f"{by_claim}"
        "  memory       utilization {utilization:.2%}, preemptions {preemptions} (swaps {swap_outs}), "
        "recomputed {recomputed_tokens} tokens\n"
        "  prefix       hits {hit_share:.4f} of prompt tokens; infinite cache {bound_tokens:.4f} "
        "(in full hash blocks {bound_hash_blocks:.4f})\n"
        "  time         {simulated_s:.0f} s simulated in {wall_s:.1f} s: {times_real_time:.0f}x real time"
    ).format(**figures)


def run_trace(args, report):
    requests = [request._replace(arrival_s=request.arrival_s / args.rate_scale) for request in read_trace(args.trace)]
    slots = args.blocks * args.block_size
    fitting = [request for request in requests if request.input_length + request.output_length <= slots]
    everything = with_claims(extra_requests(fitting, args.waiting) + fitting, args)
    result = simulate(everything, args, limits_of(args))
    figures = trace_figures(result, fitting, args.waiting)
    figures["wait_s_p99_by_claim"] = wait_by_claim(result, everything)
    figures["bound_hash_blocks"], figures["bound_tokens"] = infinite_cache_bounds(
        fitting, args.hash_block_tokens or guess_hash_block_tokens(fitting)
    )
    name = Path(args.trace).name
    print(
        f"{name}: {len(fitting)} requests ({len(requests) - len(fitting)} too long for the pool), {args.waiting} more "
        f"at the start; a step takes {args.step_ms:g} ms, {args.token_us:g} us/token, {args.swap_us:g} us/swapped block"
    )
    report.add(trace_text(figures), trace=name, requests=len(fitting), **figures)


def synthetic_cost(args, waiting, blocks):
    """Figures of steps in which all of args.synthetic sequences decode and nobody else gets in."""
    running = args.synthetic
    prompts = [args.block_size + i % args.block_size for i in range(running)]  # not all at a block's end at once
    steps = min(SYNTHETIC_STEPS, (blocks * 97 // 100 // running - 2) * args.block_size)
    requests = [Request(0.0, prompt, SYNTHETIC_STEPS + 1, []) for prompt in prompts]
    requests = with_claims(requests + [Request(0.0, 100, 100, [])] * waiting, args)
    limits = limits_of(args)
    limits.blocks, limits.max_sequences = blocks, running
    limits.max_step_tokens = max(args.max_num_batched_tokens, running)
    cost = {"plan_us": [], "commit_us": []}
    measured = 0
    while measured < SYNTHETIC_STEPS:
        result = simulate(requests, args, limits, max_steps=steps)
        decoding = (result["running"] == running) & (result["tokens"] == running)
        if not decoding.any():
            raise SystemExit(f"a pool of {blocks} blocks is too small for {running} sequences")
        measured += int(decoding.sum())
        for name, parts in cost.items():
            parts.append(result[name][decoding])
    return cost_figures({name: np.concatenate(parts) for name, parts in cost.items()})


def run_synthetic(args, report):
    for blocks in (10_000, 100_000):
        for waiting in sorted({0, 1000, 100_000, args.waiting}):
            figures = synthetic_cost(args, waiting, blocks)
            report.add(
                f"running {args.synthetic:5d}  waiting {waiting:6d}  pool {blocks:6d}   "
                "plan+commit median {cost_us_median:7.1f} us (plan {plan_us_median:.1f}, commit {commit_us_median:.1f})"
                "  p99 {cost_us_p99:7.1f}  max {cost_us_max:7.1f}".format(**figures),
                running=args.synthetic, waiting=waiting, blocks=blocks, **figures,
            )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", metavar="FILE")
    what.add_argument("--synthetic", type=int, metavar="RUNNING")
    parser.add_argument("--hash-block-tokens", type=int, help="default: guessed from the trace, 32 or 512")
    parser.add_argument("--rate-scale", type=float, default=1.0, help="arrivals come this many times as fast")
    parser.add_argument("--waiting", type=int, default=0, help="extra requests that arrive at the start")
    parser.add_argument("--step-ms", type=float, default=8.0)
    parser.add_argument("--token-us", type=float, default=40.0)
    parser.add_argument("--swap-us", type=float, default=20.0, help="per swapped block, one way")
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--swap-blocks", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--eviction", choices=["lru", "once-first"], default="once-first")
    parser.add_argument("--preemption-mode", choices=["auto", "swap", "recompute"], default="auto")
    parser.add_argument("--policy", choices=["fcfs", "priority", "fair"], default="fcfs")
    parser.add_argument("--priorities", type=int, default=1, help="levels that requests take in turn")
    parser.add_argument("--tenants", type=int, default=1, help="tenants that requests belong to in turn")
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()
    report = Report("scheduler_sim", args.json)
    if args.trace:
        run_trace(args, report)
    else:
        run_synthetic(args, report)


if __name__ == "__main__":
    main()
