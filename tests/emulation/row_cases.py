"""The kernels that work row by row, against NumPy in double precision."""

import numpy as np
from caches import LARGEST, MEANING, Cache, nearest_bytes
from machine import (
    assert_near,
    from_bf16,
    further_case,
    kernel_case,
    stored,
    unwritten,
    unwritten_with_gaps,
    values_before_gaps,
    values_of,
    with_gaps,
)

ROWS_AND_COLS = [(1, 8), (3, 40), (2, 1000), (1, 2048), (2, 2312)]
TOLERANCE = {"f32": (3e-6, 1e-6), "bf16": (1e-6, 2.0**-8)}
ROTATED = TOLERANCE | {"f16": (1e-6, 2.0**-11)}
CACHES = [("f32", cache) for cache in ("f32", "bf16", "f16", "fp8", "int8")]
CACHES += [("bf16", "bf16"), ("bf16", "fp8"), ("bf16", "int8"), ("f16", "f16"), ("f16", "fp8")]


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def as_read(array):
    """The stored values as the kernel reads them."""
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def rounded(values, dtype):
    return as_read(stored(values.astype(np.float32), dtype))


def normed(x, weight, eps):
    return x * weight / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


@kernel_case
def rms_norm(machine):
    rng = np.random.default_rng(1)
    for dtype in TOLERANCE:
        for rows, cols in ROWS_AND_COLS:
            source, weight = stored(numbers(rng, rows, cols), dtype), stored(numbers(rng, cols), "f32")
            out = unwritten((rows, cols), dtype)
            machine.run("rms_norm", {"out": out}, in_=source, stream=None, weight=weight, eps=1e-5, use="plain")
            assert_near(values_of(out), normed(as_read(source), as_read(weight), 1e-5), *TOLERANCE[dtype])


@kernel_case
def rms_norm_with_the_residual_stream(machine):
    rng = np.random.default_rng(2)
    for dtype in TOLERANCE:
        for rows, cols in ROWS_AND_COLS[1:3]:
            source, weight = stored(numbers(rng, rows, cols), dtype), stored(numbers(rng, cols), "f32")
            stream, out = stored(numbers(rng, rows, cols), dtype), unwritten((rows, cols), dtype)
            before = as_read(stream)
            machine.run(
                "rms_norm", {"out": out, "stream": stream}, in_=source, weight=weight, eps=1e-6, use="add before"
            )
            added = rounded(before + as_read(source), dtype)
            assert_near(values_of(stream), added, *TOLERANCE[dtype])
            assert_near(values_of(out), normed(as_read(stream), as_read(weight), 1e-6), *TOLERANCE[dtype])

            out = stored(numbers(rng, rows, cols), dtype)
            before = as_read(out)
            machine.run("rms_norm", {"out": out}, in_=source, stream=None, weight=weight, eps=1e-6, use="add after")
            expected = before + normed(as_read(source), as_read(weight), 1e-6)
            assert_near(values_of(out), expected, *TOLERANCE[dtype])


@kernel_case
def gated_mul(machine):
    rng = np.random.default_rng(3)
    for dtype in TOLERANCE:
        for rows, cols in ROWS_AND_COLS:
            source = stored(4 * numbers(rng, rows, 2 * cols), dtype)
            a, b = np.split(as_read(source), 2, axis=1)
            gelu = 2 * np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)
            for name, u in (("silu", a), ("gelu", gelu)):
                out = unwritten((rows, cols), dtype)
                machine.run("gated_mul", {"out": out}, in_=source, gate=name)
                assert_near(values_of(out), a / (1 + np.exp(-u)) * b, *TOLERANCE[dtype])


@further_case
def rows_that_lie_apart_become_bf16(machine):
    """What stands before a packed linear layer whose input is float."""
    rng = np.random.default_rng(7)
    for rows, cols in [(0, 8), *ROWS_AND_COLS]:
        weight = stored(numbers(rng, cols), "f32")
        source = with_gaps(numbers(rng, rows, 2 * cols), "f32")
        a, b = np.split(as_read(source), 2, axis=1)
        kernels = [
            ("rms_norm", {"stream": None, "weight": weight, "eps": 1e-5, "use": "plain"},
             lambda x, _, weight=weight: normed(x, as_read(weight), 1e-5)),
            ("round_rows", {}, lambda x, _: x),
            ("gated_mul", {"gate": "silu"}, lambda x, y: x / (1 + np.exp(-x)) * y),
        ]  # fmt: skip
        for name, arguments, expected in kernels:
            whole, out = unwritten_with_gaps(rows, cols, "bf16")
            read = source if name == "gated_mul" else source[:, :cols]
            machine.run(name, {"out": out}, in_=read, **arguments)
            assert_near(values_before_gaps(whole), rounded(expected(a, b), "bf16"), *TOLERANCE["bf16"])


@kernel_case
def spread_bias(machine):
    """Over rows that were never written, or added to what is there."""
    rng = np.random.default_rng(8)
    for dtype in TOLERANCE:
        for rows, cols in [(0, 8), (3, 1), (2, 257), (5, 40)]:
            bias = stored(numbers(rng, cols), "f32")
            for adds in (False, True):
                whole, out = unwritten_with_gaps(rows, cols, dtype)
                if adds:
                    out[...] = stored(numbers(rng, rows, cols), dtype)
                expected = as_read(bias) + (as_read(out) if adds else np.zeros((rows, cols)))
                machine.run("spread_bias", {"out": out}, bias=bias, adds=adds)
                assert_near(values_before_gaps(whole), expected, *TOLERANCE[dtype])


@kernel_case
def gather_rows(machine):
    rng = np.random.default_rng(4)
    for dtype in TOLERANCE:
        for rows, cols in [*ROWS_AND_COLS, (0, 8)]:
            table = with_gaps(numbers(rng, 7, cols), dtype)
            ids = rng.integers(0, 7, rows, dtype=np.int32)
            whole, out = unwritten_with_gaps(rows, cols, dtype)
            machine.run("gather_rows", {"out": out}, table=table, ids=ids, scale=2.5)
            assert_near(values_before_gaps(whole), rounded(2.5 * as_read(table)[ids], dtype), *TOLERANCE[dtype])


def rotated(x, cos, sin):
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@kernel_case
def rope_store_kv(machine):
    rng = np.random.default_rng(5)
    shapes = [(4, 2, 64, False), (3, 1, 80, True), (2, 2, 256, True), (5, 1, 96, False), (2, 1, 6, True)]
    for dtype, cache_dtype in CACHES:
        for heads, kv_heads, dim, norms in shapes:
            check_rope_store_kv(machine, rng, (dtype, cache_dtype), (heads, kv_heads, dim), norms)


def check_rope_store_kv(machine, rng, dtypes, shape, norms):
    dtype, cache_dtype = dtypes
    heads, kv_heads, dim = shape
    rows, blocks, block_size = 4, 4, 8
    qkv = stored(numbers(rng, rows, (heads + 2 * kv_heads) * dim), dtype)
    before = as_read(qkv).reshape(rows, -1, dim)
    angles = np.outer(np.arange(40), 1 / 100 ** (np.arange(dim // 2) / (dim // 2)))
    cos, sin = stored(np.cos(angles), "f32"), stored(np.sin(angles), "f32")
    weights = [stored(numbers(rng, dim), "f32") if norms else None for _ in range(2)]
    positions = np.array([0, 39, 17, 0], np.int32)
    slots = np.array([[3, 0], [0, 7], [1, 5], [-1, 0]], np.int32)  # the last row is padding
    cache = Cache(blocks, kv_heads, block_size, dim, cache_dtype)
    machine.run(
        "rope_store_kv", {"qkv": qkv, "cache": cache.memory}, kv_shape=cache.shape, query_norm=weights[0],
        key_norm=weights[1], eps=1e-6, cos=cos, sin=sin, positions=positions, slot_blocks=slots[:, 0].copy(),
        slot_offsets=slots[:, 1].copy(), heads=heads,
    )  # fmt: skip

    queries, keys, values = np.split(before, [heads, heads + kv_heads], axis=1)
    if norms:
        queries = normed(queries, as_read(weights[0]), 1e-6)
        keys = normed(keys, as_read(weights[1]), 1e-6)
    turns = [as_read(table)[positions][:, None] for table in (cos, sin)]
    after = values_of(qkv).reshape(rows, -1, dim)
    assert_near(after[:, :heads], rotated(queries, *turns), *ROTATED[dtype])
    assert np.array_equal(after[:, heads:], before[:, heads:])
    expected = np.full((blocks, 2, kv_heads, block_size, dim), np.nan)
    for row, (block, offset) in enumerate(slots[:-1]):
        expected[block, 0, :, offset] = rotated(keys, *turns)[row]
        expected[block, 1, :, offset] = values[row]
    held = cache.read()
    written = ~np.isnan(expected)
    assert np.array_equal(np.isnan(held), ~written), "other slots were written"
    if cache_dtype in MEANING:
        check_scaled(cache, expected)
    else:
        assert_near(held[written], expected[written], *ROTATED[cache_dtype])


def check_scaled(cache, expected):
    """Each number is the nearest one of its type, under the scale that takes the largest to the type's own."""
    written = ~np.isnan(expected[..., 0])
    exact = expected[written]  # [vectors, head_dim]
    scales = np.moveaxis(cache.scales, -1, 1)[written].astype(np.float64)
    check_nearest(cache.elements[written].view(np.uint8), scales, exact, cache.dtype)


def check_nearest(codes, scales, exact, dtype):
    """Rows of bytes and their scales [rows] against the rows that they stand for."""
    assert_near(scales, np.abs(exact).max(axis=-1) / LARGEST[dtype], 0.0, 2e-6)
    targets = exact / scales[:, None]
    numbers = MEANING[dtype]
    stored_numbers = numbers[codes]
    nearest = numbers[nearest_bytes(targets, dtype)]
    near_a_tie = np.abs(np.abs(stored_numbers - targets) - np.abs(nearest - targets)) < 1e-5 * np.abs(targets) + 1e-6
    assert ((stored_numbers == nearest) | near_a_tie).all()


@further_case
def scales_of_vectors_that_are_no_numbers_or_nothing(machine):
    """A NaN or an infinity makes a scale NaN; what is too small to invert, zero. Others in the row keep their own."""
    heads, kv_heads, dim = 1, 4, 64
    for cache_dtype in MEANING:
        values = np.ones((1, heads + 2 * kv_heads, dim), np.float32)
        values[0, heads + kv_heads + 0, 5] = np.nan
        values[0, heads + kv_heads + 1, 63] = -np.inf
        values[0, heads + kv_heads + 2] = 1e-35
        cache = Cache(1, kv_heads, 8, dim, cache_dtype)
        angles = stored(np.zeros((1, dim // 2)), "f32")
        machine.run(
            "rope_store_kv", {"qkv": stored(values.reshape(1, -1), "f32"), "cache": cache.memory},
            kv_shape=cache.shape, query_norm=None, key_norm=None, eps=1e-6, cos=angles, sin=angles,
            positions=np.zeros(1, np.int32), slot_blocks=np.zeros(1, np.int32), slot_offsets=np.zeros(1, np.int32),
            heads=heads,
        )  # fmt: skip
        expected = np.array([np.nan, np.nan, 0, 1 / LARGEST[cache_dtype]], np.float32)
        assert np.array_equal(cache.scales[0, :, 0, 1], expected, equal_nan=True)
        assert_near(cache.read()[0, 1, 2:, 0], np.repeat([[0.0], [1.0]], dim, axis=1), 0.0, 1e-6)


@kernel_case
def move_blocks(machine):
    rng = np.random.default_rng(6)
    for block_bytes in (16, 2064):
        layers = [rng.integers(0, 256, (6, block_bytes), np.uint8) for _ in range(2)]
        expected = [layer.copy() for layer in layers]
        moves = [(0, 3), (3, 4), (5, 0), (0, 5)]  # later ones read what earlier ones wrote
        for source, target in moves:
            for layer in expected:
                layer[target] = layer[source]
        sources, targets = (np.array(side, np.int32) for side in zip(*moves, strict=True))
        machine.run("move_blocks", {}, from_=layers, to=layers, from_blocks=sources, to_blocks=targets)
        for layer, after in zip(layers, expected, strict=True):
            assert np.array_equal(layer, after)
