"""Every kernel at SmolLM2-135M's shapes, beside what this machine can do at most, measured in the same run.

Definitions: the time is a quantile of the calls, the median by default (a low one shows more on a machine that others
use). Weights (and caches) are cycled through so that no call finds its own in a cache. GB/s counts the weights (or the
keys and values) once; GFLOP/s counts a multiply-add as two. `share` is the larger of the two shares of this machine's
peaks: of read bandwidth, and of float multiply-adds, or of the int8 or bf16 dot products that a kernel uses.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from llmsrv import _core, _testing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

BLOCK_FORMATS = {  # columns of a block, and where its float16 scales stand
    "q4_0": (32, [0]), "q4_1": (32, [0, 2]), "q5_0": (32, [0]), "q5_1": (32, [0, 2]), "q8_0": (32, [0]),
    "q4_k": (256, [0, 2]), "q5_k": (256, [0, 2]), "q6_k": (256, [208]),
}  # fmt: skip
SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "lm_head": (49152, 576)}
NORMED, GATED = ("qkv", "gate_up", "lm_head"), ("down",)  # as in the model: an RMS norm before, or gates and factors
TOKENS = [1, 8, 32, 128, 512]
COLD_BYTES = 160 << 20  # more than the caches that one process can count on
SECONDS = 0.15  # per result


class Bench:
    def __init__(self, args):
        self.threads, self.dtype, self.quantile = args.threads, args.dtype, args.quantile
        self.is_packed = self.dtype in BLOCK_FORMATS
        self.cache_dtype = args.cache_dtype
        self.backend = _testing.CpuBackend(args.threads, args.isa)
        self.report = Report(
            "kernels",
            args.json,
            seed=args.seed,
            quantile=args.quantile,
            backend=self.backend.description,
            dtype=args.dtype,
            cache_dtype=args.cache_dtype,
        )
        self.rng = np.random.default_rng(args.seed)
        print(f"{self.backend.description} {args.dtype}, cache in {args.cache_dtype}")
        self.measure_peaks()

    def measure_peaks(self):
        self.bytes_per_s = float(np.quantile(_testing.read_bandwidths(self.threads, 256 << 20, 4 << 20, 640), 0.9))
        peaks = dict(_testing.compute_peaks(self.threads, 5))
        table = self.backend.description.split("(")[1].split(",")[0]
        isa = "avx512" if table in ("amx", "avx512_bf16") else table
        self.flops_per_s = peaks["f32 (portable)" if isa == "scalar" else f"f32 fma ({isa})"]
        self.linear_flops_per_s = self.flops_per_s
        if self.is_packed:
            self.linear_flops_per_s = peaks.get(f"int8 dot ({isa})")
        elif table == "avx512_bf16" and self.dtype == "bf16":
            self.linear_flops_per_s = peaks["bf16 dot (avx512)"]
        self.attention_flops_per_s = self.flops_per_s
        if table == "avx512_bf16" and self.cache_dtype == "bf16":
            self.attention_flops_per_s = peaks["bf16 dot (avx512)"]
        linear = (self.linear_flops_per_s or 0) / 1e9
        text = f"peaks: {self.bytes_per_s / 1e9:.1f} GB/s, {self.flops_per_s / 1e9:.0f} GFLOP/s, linear {linear:.0f}"
        self.report.add(
            text,
            name="peaks",
            gb_per_s=self.bytes_per_s / 1e9,
            gflop_per_s=self.flops_per_s / 1e9,
            linear_gflop_per_s=linear,
        )

    def normal(self, rows, cols):
        return self.rng.standard_normal((rows, cols), dtype=np.float32)

    def activations(self, rows, cols, empty=False):
        """A matrix with rows as a model has them: on cache lines, an odd number of them apart."""
        stride = (-(-cols // 16) | 1) * 16
        memory = np.zeros(rows * stride + 16, np.float32)
        start = -memory.ctypes.data % 64 // 4
        whole = memory[start : start + rows * stride].reshape(rows, stride)
        whole[:, :cols] = 0 if empty else self.normal(rows, cols)
        return whole[:, :cols]

    def timed(self, run):
        """Seconds of a call, after a warm-up that also decides how many calls fit into the time."""
        warm = min(run(3))
        return float(np.quantile(run(max(9, min(20_000, int(SECONDS / warm)))), self.quantile))

    def add(self, name, seconds, nbytes, flops, peak=None, **shape):
        gb, gf = nbytes / seconds / 1e9, flops / seconds / 1e9
        share = max(nbytes / seconds / self.bytes_per_s, flops / seconds / (peak or self.flops_per_s))
        label = " ".join(f"{key}={value}" for key, value in shape.items())
        text = f"{name:<16} {label:<42} {seconds * 1e6:10.1f} us {gb:7.1f} GB/s {gf:8.1f} GFLOP/s {share:5.0%}"
        self.report.add(text, name=name, **shape, us=seconds * 1e6, gb_per_s=gb, gflop_per_s=gf, share=share)

    def blocks(self, count):
        """Random blocks of the packed format, with scales of ordinary size."""
        scales = BLOCK_FORMATS[self.dtype][1]
        blocks = self.rng.integers(0, 256, (count, _testing.source_block(self.dtype)[1]), np.uint8)
        for at in scales:
            values = self.rng.uniform(0.01, 0.02, count).astype(np.float16)
            blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
        return blocks.tobytes()

    def matrices(self, rows, cols):
        """Enough copies of a random matrix that they do not fit into the caches.

        As a model does, all are made before any is filled: neighbours can then share huge pages.
        """
        if self.is_packed:
            source, values = self.dtype, self.blocks(rows * cols // BLOCK_FORMATS[self.dtype][0])
        else:
            source, values = "f32", self.normal(rows, cols).tobytes()
        matrices = [_testing.PackedMatrix(self.dtype, rows, cols)]
        matrices += [_testing.PackedMatrix(self.dtype, rows, cols) for _ in range(COLD_BYTES // matrices[0].nbytes)]
        for matrix in matrices:
            matrix.set_rows(0, rows, source, values, self.threads)
        return matrices

    def linear(self, name):
        n, k = SHAPES[name]
        if self.is_packed and k % BLOCK_FORMATS[self.dtype][0] != 0:
            print(f"linear {name}: {k} columns are no whole blocks of {self.dtype}")
            return
        matrices = self.matrices(n, k)
        for m in TOKENS:
            gated = name in GATED
            x, out = self.activations(m, 2 * k if gated else k), self.activations(m, n, empty=True)
            norm = np.ones(k, np.float32) if name in NORMED else None
            seconds = self.timed(
                lambda calls, x=x, out=out, norm=norm, gated=gated: _testing.time_linear(
                    self.backend, x, matrices, out, calls, norm=norm, gated=gated
                )
            )
            operations = 2.0 * m * n * k
            self.add(f"linear {name}", seconds, matrices[0].nbytes, operations, self.linear_flops_per_s, M=m, N=n, K=k)

    def attention(self, name, sequences, rows, context, heads=(9, 3, 64)):
        shape = _testing.HeadShape(*heads)
        query_heads, kv_heads, dim = heads
        tokens, cols = sequences * rows, (query_heads + 2 * kv_heads) * dim
        self.backend.reserve(tokens=tokens, sequences=sequences, context_len=context, input_cols=cols, shape=shape)
        caches = []
        while sum(c.nbytes for c in caches) < COLD_BYTES:
            caches.append(_testing.KvCache(self.backend, shape, 16, self.cache_dtype, sequences * context // 16))
            caches[-1].fill(0x3C)  # untouched memory is one page of zeros, and always warm
        qkv, out = self.activations(tokens, cols), self.activations(tokens, query_heads * dim, empty=True)
        seconds = self.timed(
            lambda calls: _testing.time_attention(self.backend, qkv, caches, sequences, context, 0.125, out, calls)
        )
        seen = sum(context - rows + 1 + i for i in range(rows)) * sequences  # (row, token) pairs
        flops = 4.0 * seen * query_heads * dim
        size = {"seqs": sequences, "rows": rows, "context": context, "dim": dim}
        self.add(name, seconds, caches[0].nbytes, flops, self.attention_flops_per_s, **size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--isa", default=_testing.cpu_isa_from_environment(), help="default: LLMSRV_ISA, or the best")
    parser.add_argument(
        "--dtype",
        choices=["bf16", "f32", *BLOCK_FORMATS],
        default="bf16",
        help="of the weights",
    )
    parser.add_argument("--cache-dtype", choices=["bf16", "f32", "int8"], default="bf16", help="of keys and values")
    parser.add_argument("--only", choices=[*SHAPES, "attention"], help="one group of kernels")
    parser.add_argument("--quantile", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()

    bench = Bench(args)
    for name in SHAPES:
        if args.only in (None, name):
            bench.linear(name)
    if args.only in (None, "attention"):
        for context in (256, 2048):
            for sequences in (1, 2, 8, 32):
                bench.attention("attn decode", sequences, 1, context)
            bench.attention("attn prefill", 1, 256, context)
        for dim in (80, 96, 128, 256):
            bench.attention("attn decode", 8, 1, 256, (9, 3, dim))
            bench.attention("attn prefill", 1, 256, 256, (9, 3, dim))


if __name__ == "__main__":
    main()
