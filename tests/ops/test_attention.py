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

    def expected(self, rotated, dtype, window=None):
        """From rows whose queries and keys were rotated already."""
        q, k, v = self.split(rotated)
        scale = self.shape.head_dim**-0.5
        out = reference.attention(q, reference.stored(k, dtype), reference.stored(v, dtype), 0, scale, window)
        return out.reshape(self.length, -1)


class Run:
    """A backend, one cache full of NaN, and sequences that are stepped through it."""

    def __init__(self, rng, isa, shape, block_size, dtype, lengths, threads=2):
        self.shape, self.block_size = shape, block_size
        self.backend = _testing.CpuBackend(threads, isa)
        self.backend.reserve(
            tokens=sum(lengths), sequences=len(lengths), context_len=max(lengths), hidden_cols=64, shape=shape
        )
        counts = [-(-length // block_size) for length in lengths]
        ids = rng.permutation(sum(counts) + 2).tolist()
        self.cache = _testing.KvCache(self.backend, shape, block_size, dtype, len(ids))
        self.cache.fill(0xFF)
        self.sequences = []
        for length, count in zip(lengths, counts, strict=True):
            self.sequences.append(Sequence(rng, shape, length, [ids.pop() for _ in range(count)]))

    def step(self, parts, window=None):
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
        self.backend.paged_attention(qkv, self.cache, ranges, self.shape.head_dim**-0.5, window, out)
        self.last_qkv = qkv
        return [out[f : f + count] for f, count, _, _ in ranges]

    def in_chunks(self, sequence, chunk, **options):
        bounds = range(0, sequence.length, chunk)
        steps = [self.step([(sequence, b, min(b + chunk, sequence.length))], **options) for b in bounds]
        return np.concatenate([parts[0] for parts in steps])


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_matches_the_reference(isa, rng, dtype, heads):
    shape = _testing.HeadShape(*heads)
    for block_size in BLOCK_SIZES:
        lengths = [1, block_size - 1, block_size + 1, 75]
        run = Run(rng, isa, shape, block_size, dtype, lengths)
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
            assert_close(out, s.expected(rotated, dtype), "attention")


@pytest.mark.parametrize("window", [1, 2, 5, 16, 33, 1000])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_sliding_window(isa, rng, dtype, block_size, window):
    run = Run(rng, isa, _testing.HeadShape(6, 2, 16), block_size, dtype, [90])
    (s,) = run.sequences
    (whole,) = run.step([(s, 0, 90)], window=window)
    assert_close(whole, s.expected(run.last_qkv, dtype, window), "attention")
    assert_same_bits(run.in_chunks(s, 1, window=window), whole, "decode one by one")
    assert_same_bits(run.in_chunks(s, 7, window=window), whole, "chunks of 7")


@pytest.mark.parametrize("heads", [(9, 3, 64), (14, 2, 16), (2, 2, 80), (1, 1, 34)], ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_chunks_and_neighbours_do_not_change_bits(isa, rng, dtype, block_size, heads):
    run = Run(rng, isa, _testing.HeadShape(*heads), block_size, dtype, [70, 41, 3])
    target, *others = run.sequences
    (whole,) = run.step([(target, 0, 70)])
    for chunk in (1, 5, 16, 33):
        assert_same_bits(run.in_chunks(target, chunk), whole, f"chunks of {chunk}")
    crowd = run.step([(others[0], 0, 41), (target, 0, 70), (others[1], 0, 3)])
    assert_same_bits(crowd[1], whole, "among others")
    assert np.isfinite(whole).all()


def test_threads_do_not_change_bits(isa, rng, dtype):
    results = []
    for threads in (1, 2, 3):
        run = Run(np.random.default_rng(5), isa, _testing.HeadShape(6, 3, 32), 16, dtype, [50, 9, 1], threads)
        results.append(np.concatenate(run.step([(s, 0, s.length) for s in run.sequences])))
    assert_same_bits(results[1], results[0], "2 threads")
    assert_same_bits(results[2], results[0], "3 threads")


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_later_token_never_reaches_an_earlier_row(isa, rng, dtype, poison):
    """Rows of one tile see different spans: 0 times a value that a row does not see must not be added."""
    run = Run(rng, isa, _testing.HeadShape(2, 1, 16), 16, dtype, [40])
    (s,) = run.sequences
    (clean,) = run.step([(s, 0, 40)])
    s.qkv[29:, 2 * 16 :] = poison
    (poisoned,) = run.step([(s, 0, 40)])
    assert_same_bits(poisoned[:29], clean[:29], "rows before the poison")
    assert np.isnan(poisoned[29:]).all()


def test_a_window_forgets_poison(isa, rng, dtype):
    run = Run(rng, isa, _testing.HeadShape(2, 1, 16), 8, dtype, [40])
    (s,) = run.sequences
    (clean,) = run.step([(s, 0, 40)], window=4)
    s.qkv[:20, 2 * 16 :] = np.nan
    (poisoned,) = run.step([(s, 0, 40)], window=4)
    assert_same_bits(poisoned[23:], clean[23:], "rows whose window starts after the poison")
    assert np.isnan(poisoned[:23]).all()


def test_a_long_context(isa, rng, dtype):
    run = Run(rng, isa, _testing.HeadShape(3, 1, 64), 16, dtype, [1500])
    (s,) = run.sequences
    run.step([(s, 0, 1499)])
    rotated = run.last_qkv
    (last,) = run.step([(s, 1499, 1500)])
    q, _, _ = s.split(run.last_qkv)
    _, k, v = s.split(np.concatenate([rotated, run.last_qkv]))
    stored_k, stored_v = reference.stored(k, dtype), reference.stored(v, dtype)
    assert_close(last, reference.attention(q, stored_k, stored_v, 1499, 0.125).reshape(1, -1), "attention")
