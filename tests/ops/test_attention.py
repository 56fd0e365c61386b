"""rope_and_store_kv and paged_attention on a real paged cache with scrambled block tables."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from closeness import assert_close, assert_same_bits

from llmsrv import _testing

BLOCK_SIZES = [8, 16, 32]
# heads, kv_heads, head_dim: grouped, alone, more queries than a tile, odd sizes of head.
SHAPES = [
    (9, 3, 64),
    (4, 4, 80),
    (14, 2, 64),
    (10, 1, 96),
    (2, 1, 128),
    (1, 1, 256),
    (6, 2, 48),
    (3, 1, 32),
    (4, 2, 16),
    (2, 2, 8),
    (2, 1, 2),
    (2, 1, 34),
]


def operation(isa, cache_dtype):
    """The row of tolerances: one table rounds queries and weights too, where the cache is bf16."""
    rounds = isa == "avx512_bf16" and cache_dtype == "bf16"
    return "attention, bf16 queries and weights" if rounds else "attention"


class Sequence:
    """One sequence's rows and where its blocks are."""

    def __init__(self, rng, shape, length, blocks):
        self.shape, self.length, self.blocks = shape, length, blocks
        self.qkv = cases.normal(rng, length, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        angles = np.arange(length)[:, None] / 100.0 ** (np.arange(shape.head_dim // 2) / (shape.head_dim / 2))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def split(self, rows):
        """Queries, keys and values of `rows`, as [rows, heads, head_dim] each."""
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        q, k, v = np.split(rows, [heads * dim, (heads + kv_heads) * dim], axis=1)
        return q.reshape(-1, heads, dim), k.reshape(-1, kv_heads, dim), v.reshape(-1, kv_heads, dim)

    def slots(self, begin, end, block_size):
        return [(self.blocks[p // block_size], p % block_size) for p in range(begin, end)]

    def expected(self, rotated, dtype, **options):
        """From rows whose queries and keys were rotated already."""
        q, k, v = self.split(rotated)
        scale = self.shape.head_dim**-0.5
        out = reference.attention(q, reference.stored(k, dtype), reference.stored(v, dtype), 0, scale, **options)
        return out.reshape(self.length, -1)


class Run:
    """A backend, one cache full of NaN, and sequences that are stepped through it."""

    def __init__(self, rng, isa, shape, block_size, dtype, lengths, threads=2):
        self.shape, self.block_size = shape, block_size
        self.backend = _testing.CpuBackend(threads, isa)
        self.backend.reserve(
            tokens=sum(lengths), sequences=len(lengths), context_len=max(lengths), input_cols=64, shape=shape
        )
        counts = [-(-length // block_size) for length in lengths]
        ids = rng.permutation(sum(counts) + 2).tolist()
        self.cache = _testing.KvCache(self.backend, shape, block_size, dtype, len(ids))
        self.cache.fill(0xFF)
        self.sequences = []
        for length, count in zip(lengths, counts, strict=True):
            self.sequences.append(Sequence(rng, shape, length, [ids.pop() for _ in range(count)]))

    def step(self, parts, window=None, soft_cap=None, scale=None):
        """Runs rows [begin, end) of each (sequence, begin, end) in one step; the attention rows, one array per part."""
        qkv = np.concatenate([s.qkv[begin:end] for s, begin, end in parts])
        longest = max((s for s, _, _ in parts), key=lambda s: s.length)
        positions = np.concatenate([np.arange(begin, end) for _, begin, end in parts])
        slots = [slot for s, begin, end in parts for slot in s.slots(begin, end, self.block_size)]
        self.backend.rope_and_store_kv(qkv, longest.cos, longest.sin, positions, slots, self.cache)
        ranges, first = [], 0
        for s, begin, end in parts:
            ranges.append((first, end - begin, end, s.blocks[: -(-end // self.block_size)]))
            first += end - begin
        out = np.full((first, self.shape.heads * self.shape.head_dim), np.nan, np.float32)
        scale = self.shape.head_dim**-0.5 if scale is None else scale
        self.backend.paged_attention(qkv, self.cache, ranges, scale, window, soft_cap, out)
        self.last_qkv = qkv
        return [out[f : f + count] for f, count, _, _ in ranges]

    def in_chunks(self, sequence, chunk, **options):
        bounds = range(0, sequence.length, chunk)
        steps = [self.step([(sequence, b, min(b + chunk, sequence.length))], **options) for b in bounds]
        return np.concatenate([parts[0] for parts in steps])


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_matches_the_reference(isa, rng, cache_dtype, heads):
    shape = _testing.HeadShape(*heads)
    for block_size in BLOCK_SIZES:
        lengths = [1, block_size - 1, block_size + 1, 75]
        run = Run(rng, isa, shape, block_size, cache_dtype, lengths)
        outs = run.step([(s, 0, s.length) for s in run.sequences])
        first = 0
        for s, out in zip(run.sequences, outs, strict=True):
            rotated = run.last_qkv[first : first + s.length]
            first += s.length
            q, k, v = s.split(s.qkv)
            got_q, got_k, got_v = s.split(rotated)
            assert_close(got_q, reference.rotate(q, s.cos, s.sin), "rotate")
            assert_close(got_k, reference.rotate(k, s.cos, s.sin), "rotate")
            assert_same_bits(got_v, v, "values stay as they are")
            assert_close(out, s.expected(rotated, cache_dtype), operation(isa, cache_dtype))


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_heads_are_normed_before_their_rotation(isa, rng, dtype, heads):
    """The norm of a row is that of the row alone, and what is stored is what stands in the row afterwards."""
    shape = _testing.HeadShape(*heads)
    for length in (1, 9, 40):  # alone and over threads
        s = Sequence(rng, shape, length, list(range(5)))
        weights = [cases.normal(rng, shape.head_dim) for _ in range(2)]
        backend = _testing.CpuBackend(2, isa)
        caches = [_testing.KvCache(backend, shape, 8, dtype, 5) for _ in range(2)]
        slots, positions = s.slots(0, length, 8), np.arange(length)
        rows = s.qkv.copy()
        assert backend.rope_and_store_kv(rows, s.cos, s.sin, positions, slots, caches[0], (*weights, 1e-5)) == 0
        q, k, v = s.split(s.qkv)
        got_q, got_k, got_v = s.split(rows)
        for got, heads_in, weight in ((got_q, q, weights[0]), (got_k, k, weights[1])):
            normed = reference.rms_norm(heads_in, weight, 1e-5)
            assert_close(got, reference.rotate(normed, s.cos, s.sin), "normed and rotated")
        assert_same_bits(got_v, v, "values stay as they are")
        still = np.concatenate(
            [np.ones((length, shape.head_dim // 2)), np.zeros((length, shape.head_dim // 2))], axis=1
        )
        cos, sin = (np.ascontiguousarray(part, np.float32) for part in np.split(still, 2, axis=1))
        backend.rope_and_store_kv(rows.copy(), cos, sin, positions, slots, caches[1])
        for block, offset in slots:
            assert caches[0].blocks[block].any(), offset
        assert np.array_equal(caches[0].blocks, caches[1].blocks)
        for t in range(length):
            alone = s.qkv[t : t + 1].copy()
            here = slice(t, t + 1)
            backend.rope_and_store_kv(alone, s.cos[here], s.sin[here], [0], slots[here], caches[1], (*weights, 1e-5))
            assert_same_bits(alone[0], rows[t], f"row {t} alone")


@pytest.mark.parametrize("window", [1, 5, 33, 130, 1000])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_sliding_window(isa, rng, cache_dtype, block_size, window):
    """Over more positions than a segment has (128), so that windows end inside of one and at its ends."""
    run = Run(rng, isa, _testing.HeadShape(4, 2, 16), block_size, cache_dtype, [170])
    (s,) = run.sequences
    (whole,) = run.step([(s, 0, 170)], window=window)
    assert_close(whole, s.expected(run.last_qkv, cache_dtype, window=window), operation(isa, cache_dtype))
    assert_same_bits(run.in_chunks(s, 1, window=window), whole, "decode one by one")
    assert_same_bits(run.in_chunks(s, 7, window=window), whole, "chunks of 7")


@pytest.mark.parametrize("heads", [(9, 3, 64), (14, 2, 16), (2, 2, 80), (1, 1, 34)], ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_chunks_and_neighbours_do_not_change_bits(isa, rng, cache_dtype, block_size, heads):
    run = Run(rng, isa, _testing.HeadShape(*heads), block_size, cache_dtype, [70, 41, 3])
    target, *others = run.sequences
    (whole,) = run.step([(target, 0, 70)])
    for chunk in (1, 5, 16, 33):
        assert_same_bits(run.in_chunks(target, chunk), whole, f"chunks of {chunk}")
    crowd = run.step([(others[0], 0, 41), (target, 0, 70), (others[1], 0, 3)])
    assert_same_bits(crowd[1], whole, "among others")
    assert np.isfinite(whole).all()


def test_a_chunk_over_several_segments(isa, rng, cache_dtype):
    """Rows of one item see different numbers of segments; with a window, some see none of its first."""
    run = Run(rng, isa, _testing.HeadShape(3, 1, 32), 16, cache_dtype, [300])
    (s,) = run.sequences
    for window in (None, 100):
        (whole,) = run.step([(s, 0, 300)], window=window)
        assert_close(whole, s.expected(run.last_qkv, cache_dtype, window=window), operation(isa, cache_dtype))
        for chunk in (1, 129):
            assert_same_bits(run.in_chunks(s, chunk, window=window), whole, f"chunks of {chunk}, window {window}")


@pytest.mark.parametrize("window", [None, 140])
def test_threads_do_not_change_bits(isa, cache_dtype, window):
    """Few items of many positions: whoever computes a part of one, the whole is the same."""
    results = []
    for threads in (1, 2, 5):
        rng = np.random.default_rng(5)
        run = Run(rng, isa, _testing.HeadShape(6, 3, 32), 16, cache_dtype, [700, 50, 9, 1], threads)
        rows = run.step([(s, 0, s.length) for s in run.sequences], window=window)
        for some in (run.sequences, run.sequences[:1], run.sequences[1:]):
            rows += run.step([(s, s.length - 1, s.length) for s in some], window=window)
        results.append(np.concatenate(rows))
    assert_same_bits(results[0][699], results[0][760], "decode after the whole")
    for result, threads in zip(results[1:], (2, 5), strict=True):
        assert_same_bits(result, results[0], f"{threads} threads")


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("soft_cap", [0.5, 4.0, 50.0])
def test_soft_cap(isa, rng, cache_dtype, soft_cap, window):
    """Scores are a few units: the caps bend most of them, some, and almost none."""
    run = Run(rng, isa, _testing.HeadShape(4, 2, 32), 16, cache_dtype, [150])
    (s,) = run.sequences
    (whole,) = run.step([(s, 0, 150)], window=window, soft_cap=soft_cap)
    assert_close(
        whole, s.expected(run.last_qkv, cache_dtype, window=window, soft_cap=soft_cap), operation(isa, cache_dtype)
    )
    assert_same_bits(run.in_chunks(s, 11, window=window, soft_cap=soft_cap), whole, "chunks of 11")


def test_accuracy_of_the_cache_types(isa, rng, cache_dtype):
    """Beside keys and values that were never rounded."""
    run = Run(rng, isa, _testing.HeadShape(9, 3, 64), 16, cache_dtype, [300])
    (s,) = run.sequences
    (whole,) = run.step([(s, 0, 300)])
    assert_close(whole, s.expected(run.last_qkv, "f32"), f"attention, cache in {cache_dtype}")


def test_an_int8_scale_is_the_tokens_own(isa, rng):
    """Storing a token changes no byte of its neighbours in the block; a huge neighbour costs no accuracy."""
    shape = _testing.HeadShape(2, 2, 16)
    run = Run(rng, isa, shape, 16, "int8", [16])
    (s,) = run.sequences
    s.qkv[3] *= 1e6
    run.step([(s, 0, 16)])
    together = run.cache.blocks[s.blocks[0]].copy()
    run.cache.fill(0xFF)
    for position in reversed(range(16)):
        run.step([(s, position, position + 1)])
    np.testing.assert_array_equal(run.cache.blocks[s.blocks[0]], together)


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-32, 1e-20, 1e30])
def test_int8_keys_and_values_of_any_size(isa, rng, size):
    run = Run(rng, isa, _testing.HeadShape(2, 1, 16), 16, "int8", [20])
    (s,) = run.sequences
    s.qkv[7:12, 2 * 16 :] *= np.float32(size)
    (whole,) = run.step([(s, 0, 20)])
    assert_close(whole, s.expected(run.last_qkv, "int8"), "attention")


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_later_token_never_reaches_an_earlier_row(isa, rng, cache_dtype, poison):
    """Rows of one tile see different spans: 0 times a value that a row does not see must not be added."""
    run = Run(rng, isa, _testing.HeadShape(2, 1, 16), 16, cache_dtype, [40])
    (s,) = run.sequences
    (clean,) = run.step([(s, 0, 40)])
    s.qkv[29:, 2 * 16 :] = poison
    (poisoned,) = run.step([(s, 0, 40)])
    assert_same_bits(poisoned[:29], clean[:29], "rows before the poison")
    assert np.isnan(poisoned[29:]).all()


@pytest.mark.parametrize("count", [20, 21])
def test_a_window_forgets_poison(isa, rng, cache_dtype, count):
    """Also where the last poisoned position and the first clean one are a pair."""
    run = Run(rng, isa, _testing.HeadShape(2, 1, 16), 8, cache_dtype, [40])
    (s,) = run.sequences
    (clean,) = run.step([(s, 0, 40)], window=4)
    s.qkv[:count, 2 * 16 :] = np.nan
    (poisoned,) = run.step([(s, 0, 40)], window=4)
    assert_same_bits(poisoned[count + 3 :], clean[count + 3 :], "rows whose window starts after the poison")
    assert np.isnan(poisoned[: count + 3]).all()


def test_a_long_context(isa, rng, cache_dtype):
    run = Run(rng, isa, _testing.HeadShape(3, 1, 64), 16, cache_dtype, [1500])
    (s,) = run.sequences
    run.step([(s, 0, 1499)])
    rotated = run.last_qkv
    (last,) = run.step([(s, 1499, 1500)])
    q, _, _ = s.split(run.last_qkv)
    _, k, v = s.split(np.concatenate([rotated, run.last_qkv]))
    stored_k, stored_v = reference.stored(k, cache_dtype), reference.stored(v, cache_dtype)
    expected = reference.attention(q, stored_k, stored_v, 1499, 0.125).reshape(1, -1)
    assert_close(last, expected, operation(isa, cache_dtype))
