"""What it costs to run out of KV blocks: swap, recompute and auto against a run in which nobody is ever preempted.

Every request reads --input tokens and writes --output of them, greedy, and needs B blocks at its end. The pools:

    --requests 6 --pool 2     6 requests, room for 2 of them
    --requests 48 --pool 8    48 requests, room for 8; 256 requests on it take some five times as long

All requests are submitted at once. The configurations share pool, weights and prompts, and take turns in one run:

  whole      max_num_seqs is what fits to the end of all outputs: nothing is ever preempted; the measure of the others
  swap, recompute, auto
             max_num_seqs is --max-num-seqs, so that more start than the pool can hold to their ends

Words:
  seconds           first submit to last output taken; median of the rounds
  ratio             seconds / seconds of `whole`, of the medians; targets: swap 1.25, recompute 1.7, auto the better of
                    these two + 5 %
  preemptions       how often a request lost its blocks; of one round, median; `most` is the most of one request
  swapped_blocks    moved out / moved in
  recomputed        tokens computed again
  overtakings       requests that ended after one that was submitted later, in another step; must be 0
  oldest_stalls     batches of outputs without a token of the oldest unfinished request; must be 0
  unequal           requests whose tokens differ from those of `whole`, and, for --solo of the first round, from those
                    of a run alone; must be 0
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from in_process import batches, make_request, open_weights, random_prompts

from llmsrv import _core
from llmsrv.config import DEFAULT_DTYPE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

BLOCK_SIZE = 16
MODES = ("swap", "recompute", "auto")
COUNTERS = ("preemptions", "swapped_out_blocks", "swapped_in_blocks", "recomputed_tokens", "steps", "prompt_tokens")


@dataclass
class Outcome:
    """What came of all requests of one round, in the order of submission."""

    seconds: float = 0.0
    texts: list[list[int]] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    overtakings: int = 0
    oldest_stalls: int = 0
    counters: dict[str, int] = field(default_factory=dict)


def counters(engine):
    stats = engine.stats()
    return {name: getattr(stats, name) for name in COUNTERS}


def run(engine, prompts, output_tokens):
    """Submits all prompts at once and follows them to their ends."""
    before, outcome = counters(engine), Outcome()
    began = time.perf_counter()
    keys = [engine.submit(make_request(str(i), prompt, output_tokens)) for i, prompt in enumerate(prompts)]
    texts = {key: [] for key in keys}
    ended_in_batch, preemptions = {}, {}
    for number, (moment, outputs) in enumerate(batches(engine, keys)):
        outcome.seconds = moment - began
        oldest = next(key for key in keys if key not in ended_in_batch)
        outcome.oldest_stalls += all(output.request != oldest for output in outputs)
        for output in outputs:
            if output.error is not None:
                raise output.error
            texts[output.request] += output.token_ids
            if output.final:
                ended_in_batch[output.request] = number
                preemptions[output.request] = output.timing.preemptions
    latest = -1
    for key in keys:
        outcome.overtakings += ended_in_batch[key] < latest
        latest = max(latest, ended_in_batch[key])
    outcome.texts = [texts[key] for key in keys]
    outcome.preemptions = [preemptions[key] for key in keys]
    after = counters(engine)
    outcome.counters = {name: after[name] - before[name] for name in COUNTERS}
    return outcome


class Case:
    """One pool, one number of requests, and an engine for each configuration."""

    def __init__(self, weights, requests, pool, prefix_cache, args):
        self.label = f"{requests} requests, room for {pool}, prefix cache {'on' if prefix_cache else 'off'}"
        self.requests = requests
        self._args = args
        self._weights = weights
        slots = args.input + args.output - 1  # the last token drawn is never computed
        self.blocks = pool * -(-slots // BLOCK_SIZE)
        self._prefix_cache = prefix_cache
        self.engines = {"whole": self._engine("auto", pool)}
        for mode in MODES:
            self.engines[mode] = self._engine(mode, args.max_num_seqs)
        self.rounds = {name: [] for name in self.engines}
        self.solo_unequal = 0

    def _engine(self, mode, max_num_seqs):
        args = self._args
        config = {
            "max_model_len": args.input + args.output,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": max_num_seqs,
            "preemption_mode": mode,
            "prefix_cache": self._prefix_cache,
        }
        spec = self._weights.spec
        wide = _core.EngineConfig(**config, kv_cache_memory=1 << 30)
        block_bytes = _core.plan_memory(spec, weights_dtype="auto", config=wide, threads=args.threads).kv_block_bytes
        tight = _core.EngineConfig(**config, kv_cache_memory=self.blocks * block_bytes)
        return _core.Engine(self._weights, tight, threads=args.threads)

    def measure(self, generator, vocab_size):
        """All rounds; the configurations take turns, each with the same prompts."""
        args = self._args
        for engine in self.engines.values():
            run(engine, random_prompts(generator, 4, args.input, vocab_size), args.output)
        for number in range(args.repeats):
            prompts = random_prompts(generator, self.requests, args.input, vocab_size)
            for name, engine in self.engines.items():
                outcome = run(engine, prompts, args.output)
                self.rounds[name].append(outcome)
                print(f"  round {number + 1}, {name}: {outcome.seconds:.2f} s", file=sys.stderr, flush=True)
            if number == 0:
                self.solo_unequal = self._count_unequal_to_solo(prompts)

    def _count_unequal_to_solo(self, prompts):
        unequal, engine = 0, self.engines["whole"]
        for place in range(0, len(prompts), -(-len(prompts) // self._args.solo)) if self._args.solo else ():
            engine.clear_prefix_cache()
            unequal += run(engine, [prompts[place]], self._args.output).texts[0] != self.rounds["whole"][0].texts[place]
        return unequal

    def figures(self, name):
        """Of one configuration."""
        rounds, whole = self.rounds[name], self.rounds["whole"]
        seconds = statistics.median(outcome.seconds for outcome in rounds)
        different = sum(
            text != wanted
            for outcome, other in zip(rounds, whole, strict=True)
            for text, wanted in zip(outcome.texts, other.texts, strict=True)
        )
        middle = {each: int(statistics.median(outcome.counters[each] for outcome in rounds)) for each in COUNTERS}
        return {
            "seconds": round(seconds, 3),
            "rounds_s": [round(outcome.seconds, 3) for outcome in rounds],
            "ratio": round(seconds / statistics.median(outcome.seconds for outcome in whole), 3),
            **middle,
            "most_preemptions": max(max(outcome.preemptions) for outcome in rounds),
            "oldest_preemptions": max(outcome.preemptions[0] for outcome in rounds),
            "overtakings": sum(outcome.overtakings for outcome in rounds),
            "oldest_stalls": sum(outcome.oldest_stalls for outcome in rounds),
            "unequal": different + self.solo_unequal,
        }

    def close(self):
        for engine in self.engines.values():
            engine.shutdown()


def sentence(name, figures):
    return (
        f"{name:10} {figures['seconds']:7.2f} s, ratio {figures['ratio']:.3f}; preemptions {figures['preemptions']}"
        f" (most {figures['most_preemptions']}), swapped blocks {figures['swapped_out_blocks']}"
        f"/{figures['swapped_in_blocks']}, recomputed {figures['recomputed_tokens']}, steps {figures['steps']};"
        f" overtakings {figures['overtakings']}, oldest stalls {figures['oldest_stalls']},"
        f" unequal {figures['unequal']}"
    )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default=DEFAULT_DTYPE, choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--requests", type=int, nargs="+", default=[6, 48])
    parser.add_argument(
        "--pool", type=int, nargs="+", default=[2, 8], help="whole requests that fit, for each of these"
    )
    parser.add_argument("--prefix-cache", nargs="+", choices=["on", "off"], default=["on", "off"])
    parser.add_argument("--input", type=int, default=32)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--solo", type=int, default=6, help="requests that are run alone as well, spread over all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()
    if len(args.pool) != len(args.requests):
        parser.error("--pool needs one number for each of --requests")
    return args


def main():
    args = parsed()
    weights, vocab_size = open_weights(args.model, args.dtype, args.threads)
    generator = np.random.default_rng(args.seed)
    report = None
    for prefix_cache in args.prefix_cache:
        for requests, pool in zip(args.requests, args.pool, strict=True):
            case = Case(weights, requests, pool, prefix_cache == "on", args)
            if report is None:
                device = case.engines["whole"].device
                report = Report(
                    "pressure", args.json, model=args.model, dtype=args.dtype, device=device, seed=args.seed
                )
            case.measure(generator, vocab_size)
            print(f"{case.label} ({case.blocks} blocks):")
            for name in case.engines:
                figures = case.figures(name)
                report.add(
                    sentence(name, figures),
                    name=name, requests=requests, pool=pool, blocks=case.blocks, prefix_cache=prefix_cache,
                    input=args.input, output=args.output, **figures,
                )  # fmt: skip
            case.close()


if __name__ == "__main__":
    main()
