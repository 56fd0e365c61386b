"""What every backend may rely on: shapes are checked before it is called, and it allocates nothing after reserve()."""

from __future__ import annotations

import functools

import cases
import numpy as np
import pytest

from llmsrv import _testing

SHAPE = _testing.HeadShape(4, 2, 8)
QKV_COLS = (4 + 2 * 2) * 8


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.fixture
def backend():
    made = _testing.CpuBackend(2, "")
    made.reserve(tokens=8, sequences=2, context_len=64, input_cols=QKV_COLS, shape=SHAPE)
    return made


@pytest.fixture
def cache(backend):
    return _testing.KvCache(backend, SHAPE, 16, "bf16", 4)


@pytest.fixture
def matrix():
    return cases.pack(np.ones((6, 4), np.float32), "f32")


def refused(call, *args, **options):
    with pytest.raises(RuntimeError, match="check failed"):
        call(*args, **options)


def test_embed(backend, matrix):
    refused(backend.embed, [6], matrix, zeros(1, 4))
    refused(backend.embed, [-1], matrix, zeros(1, 4))
    refused(backend.embed, [0, 1], matrix, zeros(1, 4))
    refused(backend.embed, [0], matrix, zeros(1, 5))
    backend.embed([], matrix, zeros(0, 4))


def test_linear(backend, matrix):
    refused(backend.linear, zeros(1, 5), matrix, None, False, zeros(1, 6))
    refused(backend.linear, zeros(1, 4), matrix, None, False, zeros(1, 7))
    refused(backend.linear, zeros(1, 4), matrix, None, False, zeros(2, 6))
    refused(backend.linear, zeros(1, 4), matrix, zeros(4), False, zeros(1, 6))


def test_prologues(backend, matrix):
    linear = functools.partial(refused, backend.linear)
    linear(zeros(1, 4), matrix, None, False, zeros(1, 6), norm=(zeros(5), 1e-5))
    linear(zeros(1, 4), matrix, None, False, zeros(1, 6), norm=(zeros(4), -1.0))
    linear(zeros(1, 4), matrix, None, False, zeros(1, 6), gate="silu")
    linear(zeros(1, 9), matrix, None, False, zeros(1, 6), gate="silu")


def test_stacks(backend):
    linear = functools.partial(refused, backend.linear)
    linear(zeros(1, 4), _testing.MatrixStack([], 4), None, False, zeros(1, 0))
    stack = _testing.MatrixStack([("f32", 3), ("bf16", 5)], 4)
    linear(zeros(1, 4), stack, None, False, zeros(1, 9))
    linear(zeros(1, 4), stack, zeros(5), False, zeros(1, 8))


def test_rope_and_store_kv(backend, cache):
    table = zeros(10, 4)
    good = (zeros(1, QKV_COLS), table, table, [9], [(3, 15)], cache)
    backend.rope_and_store_kv(*good)
    for at, wrong in [
        (0, zeros(1, QKV_COLS - 8)),
        (3, [10]),
        (3, [-1]),
        (3, [0, 1]),
        (4, [(4, 0)]),
        (4, [(-1, 0)]),
        (4, [(0, 16)]),
        (4, [(0, -1)]),
        (4, []),
    ]:
        refused(backend.rope_and_store_kv, *good[:at], wrong, *good[at + 1 :])
    for norms in [(zeros(7), zeros(8), 1e-5), (zeros(8), zeros(9), 1e-5), (zeros(8), zeros(8), -1.0)]:
        refused(backend.rope_and_store_kv, *good, norms)


def test_add_rms_norm(backend):
    refused(backend.add_rms_norm, zeros(2, 4), zeros(5), 1e-5, zeros(2, 4))
    refused(backend.add_rms_norm, zeros(2, 4), zeros(4), 1e-5, zeros(3, 4))
    refused(backend.add_rms_norm, zeros(2, 4), zeros(4), -1.0, zeros(2, 4))


@pytest.mark.parametrize(
    "attention_range",
    [
        (0, 3, 3, [0]),  # more rows than the step has
        (-1, 1, 1, [0]),
        (0, 0, 1, [0]),
        (0, 2, 1, [0]),  # a row before the first position
        (0, 1, 17, [0, 4]),  # a block outside of the pool
        (0, 1, 17, [0, -1]),
        (0, 1, 65, [0, 1, 2, 3, 0]),  # longer than was reserved
    ],
    ids=str,
)
def test_paged_attention(backend, cache, attention_range):
    backend.paged_attention(zeros(2, QKV_COLS), cache, [(0, 2, 20, [2, 1])], 1.0, None, None, zeros(2, 32))
    refused(backend.paged_attention, zeros(2, QKV_COLS), cache, [attention_range], 1.0, None, None, zeros(2, 32))


def test_paged_attention_shapes(backend, cache):
    good_range = [(0, 2, 2, [0])]
    refused(backend.paged_attention, zeros(2, QKV_COLS), cache, good_range, 1.0, 0, None, zeros(2, 32))
    refused(backend.paged_attention, zeros(2, QKV_COLS), cache, good_range, 1.0, None, 0.0, zeros(2, 32))
    refused(backend.paged_attention, zeros(2, QKV_COLS), cache, good_range, 1.0, None, None, zeros(2, 40))
    refused(backend.paged_attention, zeros(2, QKV_COLS - 1), cache, good_range, 1.0, None, None, zeros(2, 32))
    backend.paged_attention(zeros(2, QKV_COLS), cache, [], 1.0, None, None, zeros(2, 32))


@pytest.mark.parametrize("block_size", [4, 12, 64])
def test_only_some_block_sizes(backend, block_size):
    odd = _testing.KvCache(backend, SHAPE, block_size, "f32", 4)
    refused(backend.paged_attention, zeros(1, QKV_COLS), odd, [(0, 1, 1, [0])], 1.0, None, None, zeros(1, 32))


def test_operations_allocate_nothing(backend, isa, dtype):
    made = _testing.CpuBackend(2, isa)
    made.reserve(tokens=40, sequences=2, context_len=64, input_cols=600, shape=SHAPE)
    cache = _testing.KvCache(made, SHAPE, 16, dtype, 8)
    weights = cases.pack(np.ones((600, 64), np.float32), dtype)
    table = zeros(64, 4)
    for rows in (1, 2, 33, 40):  # alone and over threads
        assert made.embed([0] * rows, weights, zeros(rows, 64)) == 0
        for options in ({}, {"norm": (zeros(64), 1e-5)}):
            assert made.linear(zeros(rows, 64), weights, None, False, zeros(rows, 600), **options) == 0
        assert made.linear(zeros(rows, 128), weights, None, False, zeros(rows, 600), gate="silu") == 0
        assert made.add_rms_norm(zeros(rows, 600), zeros(600), 1e-5, zeros(rows, 600)) == 0
        slots = [(t // 16, t % 16) for t in range(rows)]
        for norms in (None, (zeros(8), zeros(8), 1e-5)):
            rows_in = zeros(rows, QKV_COLS)
            assert made.rope_and_store_kv(rows_in, table, table, list(range(rows)), slots, cache, norms) == 0
        ranges = [(0, rows, rows, [0, 1, 2])]
        assert made.paged_attention(zeros(rows, QKV_COLS), cache, ranges, 1.0, None, None, zeros(rows, 32)) == 0


def test_allocations_are_counted():
    before = _testing.allocation_count()
    _testing.CpuBackend(2, "")
    assert _testing.allocation_count() > before
