"""Single instructions and functions of CUDA against what the kernels take them to do."""

import numpy as np
from machine import further_case, kernel_case, poison, stored, to_bf16, unwritten, values_of
from row_cases import as_read, numbers

WARP = 32


def aligned(values):
    """A copy for loads of 16 bytes."""
    values = np.ascontiguousarray(values)
    room = poison(-(-values.nbytes // 4), "f32").view(np.uint8)[: values.nbytes].view(values.dtype)
    room = room.reshape(values.shape)
    room[...] = values
    return room


def words(rng, *shape):
    return aligned(rng.integers(0, 1 << 32, shape, np.uint32))


def mapped(machine, name, values, out_dtype, count, **options):
    """What an element-by-element function makes of the values, each a row of them."""
    out = aligned(np.full(count, 77, out_dtype))
    machine.run(name, {"out": out}, in_=aligned(values), **options)
    return out


@kernel_case
def asynchronous_copies(machine):
    rng = np.random.default_rng(21)
    for share, size in [(1.0, 4), (0.5, 4), (0.0, 4), (1.0, 1), (0.5, 1), (0.0, 1)]:  # in words
        chunks, out = words(rng, 128, size), words(rng, 128, size)
        wanted = (rng.random(128) < share).astype(np.int32)
        machine.run("try_copy_async", {"out": out}, in_=chunks, wanted=wanted)
        halves = np.split(chunks * wanted[:, None].astype(np.uint32), 2)
        assert np.array_equal(out, np.concatenate([half[::-1] for half in halves]))


@kernel_case
def matrix_loads(machine):
    rng = np.random.default_rng(22)
    elements = aligned(np.arange(32 * 8, dtype=np.uint16))
    for rows in (np.arange(32), rng.permutation(32), rng.integers(0, 32, 32)):
        matrices = elements.reshape(32, 8)[rows].reshape(4, 8, 8)
        for transposed in (False, True):
            out = np.zeros((WARP, 4), np.uint32)
            machine.run(
                "try_load_matrices", {"out": out}, transposed=transposed, in_=elements, rows=rows.astype(np.int32)
            )
            lines = matrices.swapaxes(1, 2) if transposed else matrices
            # Lane i has elements 2 (i % 4) and + 1 of line i / 4.
            expected = np.ascontiguousarray(lines).view(np.uint32).reshape(4, WARP).T
            assert np.array_equal(out, expected)


def multiplied(machine, a, b, c, dtype):
    """c + a b with b's columns as rows, tile by tile."""
    d = unwritten(c.shape, "f32")
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = (stored(side, dtype) for side in (a, b))
    machine.run("try_multiply_add", {"d": d}, a=a, b=b, c=stored(c, "f32"), dtype=dtype)
    return d


@kernel_case
def matrix_products(machine):
    rng = np.random.default_rng(23)
    for dtype, depth in [("bf16", 16), ("bf16", 48), ("f16", 48)]:
        whole = [rng.integers(-9, 10, (4, rows, depth)).astype(np.float32) for rows in (16, 8)]
        start = rng.integers(-99, 100, (4, 16, 8)).astype(np.float32)
        d = values_of(multiplied(machine, *whole, start, dtype))
        assert np.array_equal(d, start + whole[0] @ whole[1].swapaxes(1, 2)), "small integers are exact"

        a, b = numbers(rng, 4, 16, depth), numbers(rng, 4, 8, depth)
        d = values_of(multiplied(machine, a, b, start, dtype))
        a, b = (as_read(stored(side, dtype)) for side in (a, b))
        largest = np.abs(start) + np.abs(a) @ np.abs(b).swapaxes(1, 2)
        assert (np.abs(d - start - a @ b.swapaxes(1, 2)) <= 2.0**-18 * largest).all()


@further_case
def an_element_of_a_product_does_not_depend_on_its_place(machine):
    """In any row and column, beside any others: that a row's bits do not depend on the batch rests on it."""
    rng = np.random.default_rng(24)
    places = list(np.ndindex(16, 8))
    at = (np.arange(len(places)), *np.array(places).T)
    kinds = [("bf16", 16, 1.0), ("bf16", 64, 1.0), ("bf16", 64, 1e30), ("bf16", 64, np.inf), ("bf16", 16, np.nan)]
    for dtype, depth, size in [*kinds, ("f16", 64, 1.0), ("f16", 64, np.inf)]:
        row, col, start = numbers(rng, depth), numbers(rng, depth), numbers(rng, 1)
        # The neighbours: ordinary, much larger, or not numbers at all.
        a, b, c = (size * numbers(rng, len(places), *shape) for shape in [(16, depth), (8, depth), (16, 8)])
        a[at[0], at[1]], b[at[0], at[2]], c[at] = row, col, start
        elements = multiplied(machine, a, b, c, dtype)[at].view(np.uint32)
        assert np.isfinite(elements.view(np.float32)).all()
        assert (elements == elements[0]).all(), f"{len(np.unique(elements))} results of one product: {dtype} {size}"


@further_case
def a_product_of_zeros_leaves_the_sums_as_they_are(machine):
    """Tiles without a key that is seen must change nothing, however many of them a kernel goes through."""
    rng = np.random.default_rng(25)
    c = numbers(rng, 8, 16, 8) * 2.0 ** rng.integers(-60, 60, (8, 16, 8))
    zeros, others = np.zeros((8, 16, 32), np.float32), 1e3 * numbers(rng, 8, 8, 32)
    for dtype in ("bf16", "f16"):
        assert np.array_equal(multiplied(machine, zeros, others, c, dtype), c.astype(np.float32))


@kernel_case
def warp_functions(machine):
    values = np.random.default_rng(26).integers(1, 1 << 30, WARP).astype(np.int32)
    values[7] = 0
    out = np.zeros((10, WARP), np.int32)
    machine.run("try_warp_functions", {"out": out}, in_=values)
    lanes = np.arange(WARP)
    for i in range(5):
        assert np.array_equal(out[i], values[lanes ^ (1 << i)])
    assert np.array_equal(out[5], values[values % WARP])
    assert np.array_equal(out[6], values[np.maximum(lanes - 1, 0)])
    assert np.array_equal(out[7], values[np.where(lanes < 7, lanes, lanes - 7)])
    votes = int(((values % 3 == 0).astype(np.uint64) << lanes.astype(np.uint64)).sum())
    assert (out[8].view(np.uint32) == votes).all()
    assert np.array_equal(out[9], [(int(value) & -int(value)).bit_length() - 1 for value in values])


def summed_by_warp(values):
    """In the order of warp_sum: with the lane 16 away, then 8, ..."""
    values = values.copy()
    lanes = np.arange(WARP)
    for step in (16, 8, 4, 2, 1):
        values = values + values[..., lanes ^ step]
    return values


@kernel_case
def reductions(machine):
    rng = np.random.default_rng(27)
    for threads in (32, 96, 256, 1024):
        blocks = 3
        of_warp, of_block = (unwritten((blocks, threads), "f32") for _ in range(2))
        source = stored(numbers(rng, blocks, threads), "f32")
        machine.run("try_sums", {"of_warp": of_warp, "of_block": of_block}, in_=source)
        warps = summed_by_warp(source.reshape(blocks, -1, WARP))
        assert np.array_equal(of_warp, warps.reshape(blocks, threads))
        parts = np.zeros((blocks, WARP), np.float32)
        parts[:, : threads // WARP] = warps[..., 0]
        assert np.array_equal(of_block, np.repeat(summed_by_warp(parts)[:, :1], threads, axis=1))


@kernel_case
def shared_memory_that_is_asked_for(machine):
    count = machine.module.tried_shared_bytes // 4
    source = words(np.random.default_rng(28), 2, count)
    out = words(np.random.default_rng(0), 2, count)
    machine.run("try_shared_memory", {"out": out}, in_=source)
    assert np.array_equal(out, source[:, ::-1])


@kernel_case
def atomics(machine):
    values = np.random.default_rng(29).integers(0, 1 << 20, 1000).astype(np.int32)
    out = np.array([5, -5], np.int32)
    machine.run("try_atomics", {"out": out}, in_=values)
    assert out.tolist() == [5 + values.sum(), values.max()]


@further_case
def powers_of_two(machine):
    whole = np.arange(-126, 128, dtype=np.float32)
    assert np.array_equal(
        mapped(machine, "try_exp2", whole, np.float32, len(whole)), np.ldexp(np.float32(1), whole.astype(int))
    )
    special = np.array([-0.0, -np.inf, np.inf, np.nan, -1e30, -200], np.float32)
    expected = np.array([1, 0, np.inf, np.nan, 0, 0], np.float32)
    assert np.array_equal(mapped(machine, "try_exp2", special, np.float32, len(special)), expected, equal_nan=True)
    x = np.random.default_rng(30).uniform(-120, 120, 4000).astype(np.float32)
    result = mapped(machine, "try_exp2", x, np.float32, len(x)).astype(np.float64)
    assert (np.abs(result / np.exp2(x.astype(np.float64)) - 1) <= 2.0**-21).all()


@further_case
def conversions(machine):
    rng = np.random.default_rng(31)
    upper = np.concatenate([np.arange(0, 1 << 16, 37), rng.integers(0, 1 << 16, 2000)]).astype(np.uint32)
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (upper[:, None] << 16 | lower).reshape(-1).view(np.float32)
    expected = to_bf16(values)
    result = mapped(machine, "try_to_bf16", values, np.uint16, len(values))
    assert np.array_equal(np.isnan(as_read(result)), np.isnan(values))
    assert np.array_equal(result[~np.isnan(values)], expected[~np.isnan(values)])

    more = np.concatenate([10 * numbers(rng, 2000), 2.0 ** -rng.uniform(0, 26, 500)])
    values = np.concatenate([values, more.astype(np.float32)])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    result = mapped(machine, "try_to_half", values, np.uint16, len(values)).view(np.float16)
    assert np.array_equal(result, expected, equal_nan=True)

    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    result = mapped(machine, "try_half_to_float", bits, np.float32, len(bits))
    assert np.array_equal(result, bits.view(np.float16).astype(np.float32), equal_nan=True)


@further_case
def pairs_and_bytes(machine):
    rng = np.random.default_rng(32)
    for dtype in ("bf16", "f16"):
        pairs = numbers(rng, 500, 2)
        expected = np.ascontiguousarray(stored(pairs, dtype)).view(np.uint32).reshape(-1)
        assert np.array_equal(mapped(machine, "try_pack_pair", pairs, np.uint32, 500, dtype=dtype), expected)

        # As the packed formats and caches use them: integers whose differences and products are exact.
        left, right = (128.0 + rng.integers(0, 128, (500, 2)) for _ in range(2))
        powers = 2.0 ** rng.integers(-6, 1, (500, 2))
        for name, second, result in [("subtract", right, left - right), ("multiply", powers, left * powers)]:
            both = np.concatenate([stored(side, dtype).view(np.uint32) for side in (left, second)], axis=1)
            bits = mapped(machine, f"try_{name}_pairs", both, np.uint32, 500, dtype=dtype)
            bits = bits.view(np.uint16 if dtype == "bf16" else np.float16)
            assert np.array_equal(as_read(bits).reshape(-1, 2), result)

    chosen = words(rng, 500, 4)
    chosen[:, 2] &= 0x7777
    chosen[:2, 2] = 0x4342, 0x4140
    whole = chosen[:, 0].astype(np.uint64) | chosen[:, 1].astype(np.uint64) << np.uint64(32)
    expected = np.zeros(500, np.uint32)
    for i in range(4):
        byte = (chosen[:, 2] >> (4 * i) & 7).astype(np.uint64)
        expected |= (whole >> (np.uint64(8) * byte) & np.uint64(0xFF)).astype(np.uint32) << np.uint32(8 * i)
    assert np.array_equal(mapped(machine, "try_byte_perm", chosen, np.uint32, 500), expected)
