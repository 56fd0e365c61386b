"""Tables of single kernels. A new one is a function here and a line in part.py.

Definitions: times are medians of runs of a captured graph, without the host. Arrays are cycled through 512 MB, so that
they come from memory. GB/s counts keys and values, or the weights, once; TFLOP/s counts a multiply-add as two, and only
the (row, key) pairs that causal attention looks at. Shares are of this run's own peaks.
"""

from __future__ import annotations

import numpy as np
from anchors import BlasLibrary, NotHere
from case_runner import module
from shapes import (
    BLOCK_SIZE,
    DECODE,
    FP8_TOKENS,
    GROUPS,
    HEAD_DIM,
    KV_HEADS,
    LINEAR,
    LINEAR_TOKENS,
    PREFILL,
    PREFILL_GROUP,
)

KV_TYPES = {"bf16": np.uint16, "fp8": np.uint8}
FORMATS = ["bf16", "q4_1"]
WANTED_OF_COPY, WANTED_OF_MATRIX, MANY_KEYS = 0.8, 0.55, 65536


def peaks(job):
    """Copy bandwidth, counting bytes read and written; bf16 products with float sums."""
    device = job.device
    nbytes = 1 << 12 if device.emulated else 2 << 30
    source, target = (device.noise(nbytes, np.uint8) for _ in range(2))
    seconds = device.seconds([lambda: device.module.copy_chunks(in_=source, out=target)])
    gb = seconds and 2 * nbytes / seconds / 1e9
    job.row("copy", f"{gb or 0:8.0f} GB/s", kind="gb_per_s", gb_per_s=gb)
    device.forget()

    blocks, rounds = (1, 2) if device.emulated else (8 * device.description["multiprocessors"], 4000)
    out = device.noise((blocks, device.module.peak_threads), np.float32)
    seconds = device.seconds([lambda: device.module.multiply_in_registers(out=out, rounds=rounds)])
    of_mma = seconds and 2e-12 * blocks * rounds * device.module.peak_multiply_adds / seconds
    job.row("mma.sync in registers", f"{of_mma or 0:8.0f} TFLOP/s", kind="mma", tflop_per_s=of_mma)
    device.forget()
    of_blas = peak_of_blas(job)
    best = max(of_mma or 0, of_blas or 0)
    note = "the larger of the two" if of_blas else "of mma.sync alone: on Hopper wgmma would give more"
    job.row("bf16 matrix peak", f"{best:8.0f} TFLOP/s", note, kind="tflop_per_s", tflop_per_s=best)


def peak_of_blas(job):
    """8192^3 by cuBLAS, where it is installed."""
    device, size = job.device, 8192
    try:
        blas = BlasLibrary(device)
    except NotHere as error:
        job.not_run("cuBLAS 8192^3", error)
        return None
    a, b, out = (device.noise((size, size), np.uint16) for _ in range(3))
    seconds = device.seconds([lambda: blas.multiply(a, b, out, (size, size, size))])
    device.forget()
    tflop = 2e-12 * size**3 / seconds
    job.row("cuBLAS 8192^3", f"{tflop:8.0f} TFLOP/s", kind="cublas", tflop_per_s=tflop)
    return tflop


def attention_call(device, batch, rows, length, group, kv_heads, cache, kernel):
    """A call of attention: `rows` new rows each of `batch` sequences of `length` keys, in shuffled blocks."""
    shape = (kv_heads, BLOCK_SIZE, HEAD_DIM)
    heads = group * kv_heads
    queries = device.noise((batch * rows, heads * HEAD_DIM), np.uint16)
    out = device.noise((batch * rows, heads * HEAD_DIM), np.uint16)
    first = np.arange(batch, dtype=np.int32) * rows
    ranges = np.stack([first, np.full_like(first, rows), np.full_like(first, length)], axis=1)
    block_ids = np.random.default_rng(1).permutation(cache.shape[0]).astype(np.int32)
    return lambda: device.module.paged_attention(
        queries=queries, cache=cache, kv_shape=shape, ranges=ranges, block_ids=block_ids, out=out,
        scale=HEAD_DIM**-0.5, window=None, soft_cap=None, kernel=kernel,
    )  # fmt: skip


def make_cache(device, batch, length, kv_heads, dtype):
    blocks = batch * -(-length // BLOCK_SIZE)
    count = 2 * kv_heads * BLOCK_SIZE * HEAD_DIM
    if dtype == np.uint16:
        return device.noise((blocks, count), dtype)
    return device.noise((blocks, count + 8 * kv_heads * BLOCK_SIZE), dtype, "bytes")  # a pair of scales per key


def decode_attention(job):
    shapes, kv_heads = ([(1, 64), (3, 300)], 1) if job.device.emulated else (DECODE, KV_HEADS)
    for kv, dtype in KV_TYPES.items():
        for group in GROUPS:
            for batch, length in shapes:
                what = f"{batch} x {length}, GQA {group}:1, {kv}"
                if job.has(2, what):
                    decode_row(job, what, (batch, length, group, kv_heads), dtype, kv)


def decode_row(job, what, shape, dtype, kv):
    device = job.device
    batch, length, group, kv_heads = shape
    nbytes = 2 * batch * length * kv_heads * HEAD_DIM * np.dtype(dtype).itemsize
    caches = [make_cache(device, batch, length, kv_heads, dtype) for _ in range(device.copies(nbytes))]
    calls = [attention_call(device, batch, 1, length, group, kv_heads, cache, "segments") for cache in caches]
    try:
        seconds = device.seconds(calls)
    except (TypeError, ValueError) as error:
        job.not_run(what, error)
        return
    finally:
        device.forget()
    gb = seconds and nbytes / seconds / 1e9
    beside, share = job.share(gb, "gb_per_s", WANTED_OF_COPY if batch * length >= MANY_KEYS else None)
    job.row(
        what, f"{(seconds or 0) * 1e6:9.1f} us {gb or 0:6.0f} GB/s", beside, batch=batch, length=length, group=group,
        kv=kv, us=seconds and seconds * 1e6, gb_per_s=gb, share=share,
    )  # fmt: skip


def prefill_attention(job):
    device = job.device
    kv_heads, group = (1 if device.emulated else KV_HEADS), PREFILL_GROUP
    kernels = ["prefill"]
    if device.emulated or device.description["capability"] == "9.0":
        kernels.append("hopper")
    for length in [48] if device.emulated else PREFILL:
        for kernel in kernels:
            what = f"{length} tokens, {group * kv_heads} heads, bf16" + (", Hopper's" if kernel == "hopper" else "")
            if job.has(2, what):
                prefill_row(job, what, (length, group, kv_heads), kernel)


def prefill_row(job, what, shape, kernel):
    device = job.device
    length, group, kv_heads = shape
    cache = make_cache(device, 1, length, kv_heads, np.uint16)
    seconds = device.seconds([attention_call(device, 1, length, length, group, kv_heads, cache, kernel)])
    device.forget()
    tflop = seconds and 4e-12 * HEAD_DIM * group * kv_heads * length * (length + 1) / 2 / seconds
    beside, share = job.share(tflop, "tflop_per_s", WANTED_OF_MATRIX if length == PREFILL[1] else None)
    job.row(
        what, f"{(seconds or 0) * 1e3:9.2f} ms {tflop or 0:6.0f} TFLOP/s", beside, length=length, kernel=kernel,
        us=seconds and seconds * 1e6, tflop_per_s=tflop, share=share,
    )  # fmt: skip


def linear(job):
    """Each shape and format; beside it the same in bf16 by cuBLAS, where it is installed."""
    device = job.device
    blas = None
    try:
        blas = BlasLibrary(device)
    except NotHere as error:
        job.not_run("beside cuBLAS", error)
    for name, (rows, cols) in {"toy": (32, 256)}.items() if device.emulated else LINEAR.items():
        for format_name in FORMATS:
            for tokens in LINEAR_TOKENS[: 2 if device.emulated else 3]:
                what = f"{name} {rows} x {cols}, {format_name}, M = {tokens}"
                if job.has(2, what):
                    linear_row(job, what, (tokens, rows, cols), format_name, blas)
        fp8_linear(job, name, rows, cols)


def linear_row(job, what, shape, format_name, blas):
    device = job.device
    tokens, rows, cols = shape
    panel_bytes = module("_testing").PackedMatrix(format_name, 16, cols).nbytes
    panels = -(-rows // 16)
    kind = "bf16" if format_name == "bf16" else "bytes"
    count = device.copies(panels * panel_bytes)
    weights = [device.noise((panels, panel_bytes), np.uint8, kind) for _ in range(count)]
    source, out = (device.noise((tokens, n), np.uint16) for n in (cols, rows))

    def call(matrix):
        return lambda: device.module.packed_linear(
            in_=source, weights=matrix, bias=None, out=out, format=format_name, adds=False
        )

    seconds = device.seconds([call(matrix) for matrix in weights])
    gb = seconds and panels * panel_bytes / seconds / 1e9
    beside, share = job.share(gb, "gb_per_s")
    result = {"us": seconds and seconds * 1e6, "gb_per_s": gb, "share": share}
    if blas is not None and format_name == "bf16":
        of_blas = device.seconds(
            [lambda matrix=matrix: blas.multiply(source, matrix, out, shape) for matrix in weights]
        )
        beside += f"   cuBLAS {of_blas * 1e6:.1f} us"
        result["cublas_us"] = of_blas * 1e6
    device.forget()
    job.row(
        what, f"{(seconds or 0) * 1e6:9.1f} us {gb or 0:6.0f} GB/s", beside, tokens=tokens, rows=rows, cols=cols,
        format=format_name, **result,
    )  # fmt: skip


def fp8_linear(job, name, rows, cols):
    """A shape by cuBLASLt in fp8: quantizing the inputs, the product, the scales."""
    device = job.device
    try:
        library = device.fp8_library()
    except LookupError as error:
        job.not_run(f"{name} {rows} x {cols}, fp8", error)
        return
    for tokens in FP8_TOKENS[: 2 if device.emulated else None]:
        what = f"{name} {rows} x {cols}, fp8, M = {tokens}"
        if job.has(2, what):
            fp8_row(job, what, (tokens, rows, cols), library)


def fp8_row(job, what, shape, library):
    device = job.device
    tokens, rows, cols = shape
    workspace = device.noise(1 << 12 if device.emulated else 32 << 20, np.uint8, "bytes")
    products = device.module.Fp8Products(*library, workspace=workspace, deterministic=False)
    products.prepare(rows, cols, tokens)
    weights = [device.noise((rows, cols), np.uint8, "bytes") for _ in range(device.copies(rows * cols))]
    source, out = (device.noise((tokens, n), np.uint16) for n in (cols, rows))
    quantized = device.noise((tokens, cols), np.uint8, "bytes")
    weight_scales, scales = (device.noise(n, np.float32) for n in (rows, tokens))
    sums = device.noise((tokens, rows), np.float32)

    def call(matrix):
        return lambda: device.module.fp8_linear(
            products=products, in_=source, weights=matrix, weight_scales=weight_scales, bias=None, out=out,
            quantized=quantized, scales=scales, sums=sums, adds=False,
        )  # fmt: skip

    seconds = device.seconds([call(matrix) for matrix in weights])
    device.forget()
    gb = seconds and rows * cols / seconds / 1e9
    tflop = seconds and 2e-12 * tokens * rows * cols / seconds
    beside, share = job.share(gb, "gb_per_s")
    job.row(
        what, f"{(seconds or 0) * 1e6:9.1f} us {gb or 0:6.0f} GB/s {tflop or 0:5.0f} TFLOP/s", beside, tokens=tokens,
        rows=rows, cols=cols, format="fp8", us=seconds and seconds * 1e6, gb_per_s=gb, tflop_per_s=tflop, share=share,
    )  # fmt: skip
