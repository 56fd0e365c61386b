"""linear on packed integer weights: exact but for float sums, and the same bits whoever computes them."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from cases import ISAS
from closeness import assert_close, assert_same_bits
from quant_blocks import BLOCK_FORMATS, scale_cols

from llmsrv import _testing

ROWS = [1, 15, 16, 17, 40]


@pytest.fixture(params=[*BLOCK_FORMATS, "int4-g64", "int4-g128", "int8-g128"])
def blocks(request):
    """How the weights are packed."""
    return request.param


def widths(blocks):
    """Half a superblock at the end, whole ones, and the shapes of a real model."""
    some = {32: [32, 64, 96, 576], 64: [64, 128, 192, 576], 128: [128, 256, 384, 640], 256: [256, 512, 1536]}
    return some[scale_cols(blocks)]


def some_width(blocks):
    return widths(blocks)[2]


def check(actual, x, weight, bias=None, before=None):
    exactly = reference.linear(reference.quantized(x), weight, bias, before)
    assert_close(actual, exactly, "linear, exact int8 activations")


@pytest.mark.parametrize("n", ROWS)
def test_matches_the_reference(backend, rng, blocks, n):
    for k in widths(blocks):
        matrix, weight = cases.block_matrix(rng, blocks, n, k)
        for tokens in [*cases.TOKEN_COUNTS, 64]:
            x = cases.normal(rng, tokens, k)
            check(cases.linear(backend, x, matrix), x, weight)


def test_quantizing_the_activations_costs_little(backend, rng, blocks):
    for k in widths(blocks):
        matrix, weight = cases.block_matrix(rng, blocks, 64, k)
        x = cases.normal(rng, 16, k)
        assert_close(cases.linear(backend, x, matrix), reference.linear(x, weight), "linear, int8 activations")


@pytest.mark.parametrize("n", [5, 16, 40])
def test_bias_and_accumulation(backend, rng, blocks, n):
    k = some_width(blocks)
    matrix, weight = cases.block_matrix(rng, blocks, n, k)
    x, bias, before = cases.normal(rng, 5, k), cases.normal(rng, n), cases.normal(rng, 5, n)
    check(cases.linear(backend, x, matrix, bias), x, weight, bias)
    check(cases.linear(backend, x, matrix, None, before), x, weight, None, before)
    check(cases.linear(backend, x, matrix, bias, before), x, weight, bias, before)


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_the_largest_products_do_not_saturate(backend, rng, blocks, byte, sign):
    k = some_width(blocks)
    matrix, weight = cases.block_matrix(rng, blocks, 20, k, byte)
    x = np.full((3, k), sign, np.float32) if sign else rng.choice([-1, 1], (3, k)).astype(np.float32)
    check(cases.linear(backend, x, matrix), x, weight)


def test_values_of_any_size(backend, rng, blocks):
    k = 256
    matrix, weight = cases.block_matrix(rng, blocks, 20, k)
    x = cases.normal(rng, 6, k)
    x[0] = 0
    x[1, :32] = -0.0
    x[2, 32:64] *= np.float32(1e-42)
    x[3] *= np.float32(1e-30)
    x[4] *= np.float32(1e30)
    x[5, 40] = 1000
    out = cases.linear(backend, x, matrix)
    for row in range(6):
        check(out[row : row + 1], x[row : row + 1], weight)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poison_makes_its_row_nan_and_no_other(backend, rng, blocks, poison):
    k = some_width(blocks)
    for tokens in (3, 20):
        matrix, _ = cases.block_matrix(rng, blocks, 35, k)
        x = cases.normal(rng, tokens, k)
        clean = cases.linear(backend, x, matrix)
        x[1, k - 1] = poison
        poisoned = cases.linear(backend, x, matrix)
        assert np.isnan(poisoned[1]).all()
        others = np.arange(tokens) != 1
        assert_same_bits(poisoned[others], clean[others], "other rows")
        x[1, k - 1] = 0.5
        check(cases.linear(backend, x, matrix), x, np.stack([matrix.unpack_row(row) for row in range(35)]))


def test_reads_a_slice_of_columns(backend, rng, blocks):
    k = some_width(blocks)
    matrix, weight = cases.block_matrix(rng, blocks, 20, k)
    wide = np.full((9, k + 7), np.nan, np.float32)
    wide[:, 3:-4] = cases.normal(rng, 9, k)
    x = wide[:, 3:-4]
    check(cases.linear(backend, x, matrix), np.ascontiguousarray(x), weight)


def test_a_row_does_not_see_its_neighbours(backend, rng, blocks):
    k = some_width(blocks)
    matrix, _ = cases.block_matrix(rng, blocks, 40, k)
    x = cases.normal(rng, 64, k)
    alone = np.concatenate([cases.linear(backend, x[t : t + 1], matrix) for t in range(64)])
    for tokens in range(1, 65):
        assert_same_bits(cases.linear(backend, x[:tokens], matrix), alone[:tokens], f"first {tokens} rows")


@pytest.mark.parametrize("tokens", [2, 19, 100, 240])
def test_threads_do_not_change_bits(isa, rng, blocks, tokens):
    """However the work is shared: panels of a small step, its quantization too, blocks of rows, tokens."""
    k = 1536 if tokens == 240 else some_width(blocks)
    matrix, _ = cases.block_matrix(rng, blocks, 40, k)
    x = cases.normal(rng, tokens, k)
    results = [cases.linear(_testing.CpuBackend(threads, isa), x, matrix) for threads in (1, 2, 3, 8)]
    for result in results[1:]:
        assert_same_bits(result, results[0], "more threads")


@pytest.mark.parametrize("tokens", [1, 6, 16, 35])
def test_all_tables_agree_bit_for_bit(rng, blocks, tokens):
    """Integers are exact and floats have one order of fused operations."""
    for k in widths(blocks):
        matrix, _ = cases.block_matrix(rng, blocks, 40, k)
        x = cases.normal(rng, tokens, k)
        results = {isa: cases.linear(_testing.CpuBackend(2, isa), x, matrix) for isa in ISAS}
        for isa in ISAS[1:]:
            assert_same_bits(results[isa], results[ISAS[0]], f"{isa} and {ISAS[0]}")


def test_embed_gathers_packed_rows(backend, rng, blocks):
    matrix, weight = cases.block_matrix(rng, blocks, 40, some_width(blocks))
    ids = np.array([39, 0, 17, 17, 5], np.int32)
    out = np.empty((5, weight.shape[1]), np.float32)
    assert backend.embed(ids, matrix, out) == 0
    assert_same_bits(out, weight[ids], "rows")
