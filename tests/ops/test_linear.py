"""linear: right for every shape, and each row's bits are its own."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from cases import ISAS
from closeness import assert_close, assert_same_bits

from llmsrv import _testing

# (N, K): around the panel of 16 rows, the pair of columns and every vector width.
SHAPES = [
    (1, 1),
    (1, 2),
    (7, 3),
    (8, 8),
    (15, 16),
    (16, 15),
    (17, 17),
    (31, 33),
    (33, 31),
    (96, 64),
    (113, 129),
    (240, 97),
]


def make_case(rng, tokens, n, k, dtype):
    return cases.normal(rng, tokens, k), reference.stored(cases.normal(rng, n, k), dtype)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_matches_the_reference(backend, rng, dtype, n, k):
    for tokens in cases.TOKEN_COUNTS:
        x, weight = make_case(rng, tokens, n, k, dtype)
        out = cases.linear(backend, x, cases.pack(weight, dtype))
        assert_close(
            out, reference.linear(cases.multiplied(backend, x, dtype), weight), cases.linear_operation(backend, dtype)
        )


@pytest.mark.parametrize("n", [5, 16, 100])
def test_bias_and_accumulation(backend, rng, dtype, n):
    x, weight = make_case(rng, 5, n, 40, dtype)
    bias, before = cases.normal(rng, n), cases.normal(rng, 5, n)
    matrix = cases.pack(weight, dtype)
    assert_close(
        cases.linear(backend, x, matrix, bias),
        reference.linear(cases.multiplied(backend, x, dtype), weight, bias),
        cases.linear_operation(backend, dtype),
    )
    assert_close(
        cases.linear(backend, x, matrix, None, before),
        reference.linear(cases.multiplied(backend, x, dtype), weight, None, before),
        cases.linear_operation(backend, dtype),
    )
    assert_close(
        cases.linear(backend, x, matrix, bias, before),
        reference.linear(cases.multiplied(backend, x, dtype), weight, bias, before),
        cases.linear_operation(backend, dtype),
    )


def test_no_rows_is_no_work(backend, rng):
    matrix = cases.pack(cases.normal(rng, 20, 12), "f32")
    backend.linear(np.empty((0, 12), np.float32), matrix, None, False, np.empty((0, 20), np.float32))


def test_special_values_stay_in_their_row(backend, rng, dtype):
    x, weight = make_case(rng, 6, 35, 21, dtype)
    x[1, 20], x[3, 0], x[4, 7] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        assert_close(
            cases.linear(backend, x, cases.pack(weight, dtype)),
            reference.linear(cases.multiplied(backend, x, dtype), weight),
            cases.linear_operation(backend, dtype),
        )


def test_reads_a_slice_of_columns(backend, rng, dtype):
    wide, weight = make_case(rng, 9, 48, 36, dtype)
    wide = np.concatenate([np.full((9, 3), np.nan, np.float32), wide, np.full((9, 4), np.nan, np.float32)], axis=1)
    x = wide[:, 3:-4]
    assert_close(
        cases.linear(backend, x, cases.pack(weight, dtype)),
        reference.linear(cases.multiplied(backend, x, dtype), weight),
        cases.linear_operation(backend, dtype),
    )


@pytest.mark.parametrize(("n", "k"), [(112, 96), (49, 131)])
def test_a_row_does_not_see_its_neighbours(backend, rng, dtype, n, k):
    x, weight = make_case(rng, 64, n, k, dtype)
    matrix = cases.pack(weight, dtype)
    alone = np.concatenate([cases.linear(backend, x[t : t + 1], matrix) for t in range(64)])
    for tokens in range(1, 65):
        assert_same_bits(cases.linear(backend, x[:tokens], matrix), alone[:tokens], f"first {tokens} rows")


def test_threads_do_not_change_bits(isa, rng, dtype):
    x, weight = make_case(rng, 19, 200, 70, dtype)
    matrix = cases.pack(weight, dtype)
    results = [cases.linear(_testing.CpuBackend(threads, isa), x, matrix) for threads in (1, 2, 3)]
    assert_same_bits(results[1], results[0], "2 threads")
    assert_same_bits(results[2], results[0], "3 threads")


@pytest.mark.parametrize("tokens", [1, 5, 12, 29])
def test_fused_tables_agree_bit_for_bit(rng, dtype, tokens):
    """One chain of fused operations per output: the width of the vectors cannot show."""
    fused = [isa for isa in ("avx2", "avx512") if isa in ISAS]
    x, weight = make_case(rng, tokens, 100, 77, dtype)
    matrix = cases.pack(weight, dtype)
    results = {isa: cases.linear(_testing.CpuBackend(2, isa), x, matrix) for isa in fused}
    for isa in fused[1:]:
        assert_same_bits(results[isa], results[fused[0]], f"{isa} and {fused[0]}")


# Formats of one stack: all kinds of kernels, and neighbours of one format.
STACKS = [["f32", "f32"], ["bf16", "f32"], ["q8_0", "q4_1", "q4_1"], ["q4_1", "bf16", "q8_0"]]


def make_stack(rng, formats, k):
    """A stack of matrices of 40 rows, and the values that it holds."""
    stack = _testing.MatrixStack([(name, 40) for name in formats], k)
    values = []
    for i, name in enumerate(formats):
        weight = cases.normal(rng, 40, k)
        matrix = _testing.PackedMatrix(name, 40, k)
        source = cases.source_rows(rng, name, weight)
        matrix.set_rows(0, 40, *source)
        stack.set_rows(40 * i, 40, *source)
        values.append(matrix)
    return stack, values


@pytest.mark.parametrize("formats", STACKS, ids="+".join)
@pytest.mark.parametrize("tokens", [1, 5, 20, 70])
def test_a_stack_is_its_matrices_side_by_side(backend, rng, formats, tokens):
    stack, matrices = make_stack(rng, formats, 96)
    assert stack.parts < len(formats) or len(set(formats)) == len(formats)
    rows = 40 * len(formats)
    x, bias, before = cases.normal(rng, tokens, 96), cases.normal(rng, rows), cases.normal(rng, tokens, rows)
    together = cases.linear(backend, x, stack, bias, before, rows=rows)
    for i, matrix in enumerate(matrices):
        part = slice(40 * i, 40 * i + 40)
        alone = cases.linear(backend, x, matrix, bias[part], np.ascontiguousarray(before[:, part]))
        assert_same_bits(np.ascontiguousarray(together[:, part]), alone, f"matrix {i}")


@pytest.mark.parametrize("name", ["f32", "bf16", "q4_1"])
@pytest.mark.parametrize("tokens", [1, 7, 16, 20, 100])
def test_prologues_are_what_they_say(isa, rng, name, tokens):
    """A layer on rows that were made before gives the same bits, however the work is shared."""
    k = 96
    matrix = _testing.PackedMatrix(name, 40, k)
    matrix.set_rows(0, 40, *cases.source_rows(rng, name, cases.normal(rng, 40, k)))
    for threads in (1, 2, 3):
        backend = _testing.CpuBackend(threads, isa)
        x, weight = cases.normal(rng, tokens, k), cases.normal(rng, k)
        before = cases.linear(backend, cases.rms_norm(backend, x, weight), matrix)
        assert_same_bits(cases.linear(backend, x, matrix, norm=(weight, 1e-5)), before, "norm")
        gate_up = cases.normal(rng, tokens, 2 * k)
        for kind in ("silu", "gelu_tanh"):
            before = cases.linear(backend, cases.gated_mul(backend, gate_up, kind), matrix)
            assert_same_bits(cases.linear(backend, gate_up, matrix, gate=kind), before, kind)


@pytest.mark.skipif("avx512_bf16" not in ISAS, reason="no bf16 dot products here")
@pytest.mark.parametrize("tokens", [1, 3, 8, 29])
def test_bf16_dot_products_are_fused_chains_over_rounded_activations(rng, tokens):
    """The odd column of a pair comes first: so the same bits as FMA gives with the columns of each pair exchanged."""
    x, weight = make_case(rng, tokens, 100, 78, "bf16")
    exchanged = np.arange(78) ^ 1
    found = cases.linear(_testing.CpuBackend(2, "avx512_bf16"), x, cases.pack(weight, "bf16"))
    expected = cases.linear(
        _testing.CpuBackend(2, "avx512"),
        np.ascontiguousarray(reference.to_bf16(x)[:, exchanged]),
        cases.pack(weight[:, exchanged], "bf16"),
    )
    assert_same_bits(found, expected, "dot products and FMA")


@pytest.mark.skipif("avx512_bf16" not in ISAS, reason="no bf16 dot products here")
def test_rounding_activations_to_bf16_costs_little_and_denormals(rng):
    x, weight = make_case(rng, 33, 240, 576, "bf16")
    x[7] *= np.float32(1e-39)
    found = cases.linear(_testing.CpuBackend(2, "avx512_bf16"), x, cases.pack(weight, "bf16"))
    assert_close(found, reference.linear(x, weight), "linear, bf16 activations")
    assert (found[7] == 0).all()
