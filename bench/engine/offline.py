"""The engine alone, without tokenizer and server: prefill and decode tokens per second at several batch sizes.

Definitions: a decode run submits `batch` random prompts of --input tokens at once, greedy, ignoring the end of
sequence, and counts generated tokens over the time from the first output in which all run to the last output. Prefill
is one prompt of --prefill tokens, its length over the time to its first token. Medians of --repeats runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from in_process import batches, make_request, open_weights, random_prompts

from llmsrv import _core
from llmsrv.config import DEFAULT_DTYPE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report


def finish(engine, keys):
    """(time, tokens) of every batch of outputs, until all requests are done."""
    return [(moment, sum(len(output.token_ids) for output in outputs)) for moment, outputs in batches(engine, keys)]


def decode_rate(engine, prompts, output_tokens):
    """Tokens per second once every prompt is read."""
    arrivals = finish(engine, [engine.submit(make_request(str(i), p, output_tokens)) for i, p in enumerate(prompts)])
    seen, start = 0, None
    for moment, tokens in arrivals:
        seen += tokens
        if start is None and tokens >= len(prompts):
            start = (moment, seen)
    if start is None:
        start = (arrivals[0][0], arrivals[0][1])
    return (seen - start[1]) / (arrivals[-1][0] - start[0])


def prefill_rate(engine, prompt):
    begin = time.perf_counter()
    finish(engine, [engine.submit(make_request("prefill", prompt, 1))])
    return len(prompt) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default=DEFAULT_DTYPE, choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()

    weights, vocab = open_weights(args.model, args.dtype, args.threads)
    config = _core.EngineConfig(
        max_model_len=max(args.input + args.output, args.prefill + 1),
        max_num_seqs=max(args.batches),
        max_num_batched_tokens=max(512, *args.batches),
        kv_cache_memory=2 << 30,
    )
    engine = _core.Engine(weights, config, threads=args.threads)
    report = Report("offline", args.json, model=args.model, dtype=args.dtype, device=engine.device, seed=args.seed)
    generator = np.random.default_rng(args.seed)

    prefills = random_prompts(generator, args.repeats + 1, args.prefill, vocab)
    rate = statistics.median([prefill_rate(engine, prompt) for prompt in prefills][1:])
    report.add(
        f"prefill {args.prefill:5d} tokens      {rate:8.0f} tok/s", name="prefill", tokens=args.prefill, rate=rate
    )
    for batch in args.batches:
        prompts = random_prompts(generator, batch, args.input, vocab)
        rate = statistics.median(decode_rate(engine, prompts, args.output) for _ in range(args.repeats))
        report.add(
            f"decode  batch {batch:3d}           {rate:8.0f} tok/s",
            name="decode", batch=batch, input=args.input, output=args.output, rate=rate,
        )  # fmt: skip
    engine.shutdown()


if __name__ == "__main__":
    main()
