"""The engine alone, without tokenizer and server: prefill and decode tokens per second.

Definitions: prefill is one prompt of --prefill tokens, its length over the time to its first token. A decode at
context C runs a batch of random prompts of C - --output tokens, greedy, ignoring the end of sequence, to C tokens
each; its rate is that of rates.steady_rate: while the whole batch runs. The prompts were read before and come from the
prefix cache. Medians of --repeats runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from in_process import batches, make_engine, make_request, open_weights, random_prompts

from llmsrv import _core
from llmsrv.config import DEFAULT_DTYPE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rates import steady_rate
from report import Report


def arrivals(engine, prompts, output_tokens):
    """(time, {request: new tokens}) of every batch of outputs, until all requests are done."""
    keys = [engine.submit(make_request(str(i), prompt, output_tokens)) for i, prompt in enumerate(prompts)]
    for moment, outputs in batches(engine, keys):
        yield moment, {output.request: len(output.token_ids) for output in outputs if output.token_ids}


def prefill_rate(engine, prompt):
    begin = time.perf_counter()
    *_, (end, _) = arrivals(engine, [prompt], 1)
    return len(prompt) / (end - begin)


def measure_prefill(engine, generator, vocab_size, tokens, repeats):
    prompts = random_prompts(generator, repeats + 1, tokens, vocab_size)
    return statistics.median([prefill_rate(engine, prompt) for prompt in prompts][1:])


def measure_decode(engine, prompts, output_tokens, repeats):
    for _ in arrivals(engine, prompts, 1):
        pass
    return statistics.median(
        steady_rate(arrivals(engine, prompts, output_tokens), len(prompts), output_tokens) for _ in range(repeats)
    )


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default=DEFAULT_DTYPE, choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--quantization", choices=["int8", "int4"], help="pack float weights while loading")
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--prefill", type=int, nargs="*", default=[256, 512, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()
    if min(args.contexts) <= args.output:
        parser.error(
            f"a context of {min(args.contexts)} tokens has no room for a prompt and {args.output} output tokens"
        )
    return args


def main():
    args = parsed()
    dtype = args.quantization or args.dtype
    weights, vocab_size = open_weights(args.model, dtype, args.threads)
    context_max = max(*args.contexts, *(tokens + 1 for tokens in args.prefill))
    engine = make_engine(weights, args.threads, max([1, *args.batches]), context_max)
    report = Report("offline", args.json, model=args.model, dtype=dtype, device=engine.device, seed=args.seed)
    generator = np.random.default_rng(args.seed)

    for tokens in args.prefill:
        rate = measure_prefill(engine, generator, vocab_size, tokens, args.repeats)
        report.add(
            f"prefill {tokens:5d} tokens               {rate:8.0f} tok/s", name="prefill", tokens=tokens, rate=rate
        )
    for context in args.contexts:
        prompts = random_prompts(generator, max([1, *args.batches]), context - args.output, vocab_size)
        for batch in args.batches:
            rate = measure_decode(engine, prompts[:batch], args.output, args.repeats)
            report.add(
                f"decode  batch {batch:3d}  context {context:5d}     {rate:8.0f} tok/s",
                name="decode", batch=batch, context=context, output=args.output, rate=rate,
            )  # fmt: skip
    engine.shutdown()


if __name__ == "__main__":
    main()
