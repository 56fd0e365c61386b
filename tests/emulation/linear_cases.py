"""Linear layers and embeddings over packed matrices: against NumPy in double precision, and bit for bit."""

import numpy as np
from machine import (
    GUARD_ELEMENTS,
    assert_near,
    further_case,
    kernel_case,
    poison,
    stored,
    unwritten,
    unwritten_with_gaps,
    values_before_gaps,
    values_of,
    with_gaps,
)
from quant_blocks import BLOCK_FORMATS, GROUP_FORMATS, ordinary_blocks, scale_cols
from row_cases import as_read, numbers

from llmsrv import _testing

ABSOLUTE = 3e-6  # float sums of exact products
FUSED_ISAS = [isa for isa in _testing.available_cpu_isas() if isa in ("avx2", "avx512")]
RELATIVE = {"f32": 1e-6, "bf16": 2.0**-8}
# Of groups that share a scale only those have a layout of their own.
QUANTIZED = [*BLOCK_FORMATS, "int4-g64", "int4-g128"]


def random_matrix(format_name, rows, cols, rng):
    matrix = _testing.PackedMatrix(format_name, rows, cols)
    if format_name in ("f32", "bf16"):
        matrix.set_rows(0, rows, "f32", numbers(rng, rows, cols).tobytes())
    elif format_name in GROUP_FORMATS:
        matrix.set_rows(0, rows, "f32", (0.02 * numbers(rng, rows, cols)).tobytes())
    else:
        block_cols, _ = _testing.source_block(format_name)
        blocks = ordinary_blocks(rng, format_name, rows * (cols // block_cols))
        matrix.set_rows(0, rows, format_name, blocks.tobytes())
    return matrix


def whole_groups(format_name, cols, superblocks=1):
    """The columns, rounded up to whole groups; of K formats so many superblocks."""
    if format_name.endswith("_k"):
        return superblocks * 256
    unit = scale_cols(format_name) if format_name in QUANTIZED else 32
    return -(-cols // unit) * unit


def packed(format_name, rows, cols, rng):
    """(panels as the kernels read them, the weights they stand for)."""
    matrix = random_matrix(format_name, rows, cols, rng)
    return panels_of(matrix), weights_of(matrix).astype(np.float64)


def weights_of(matrix):
    return np.array([matrix.unpack_row(row) for row in range(matrix.rows)], np.float32)


def panels_of(matrix):
    data = np.frombuffer(matrix.packed(), np.uint8)
    aligned = poison(data.size // 4 + GUARD_ELEMENTS, "f32").view(np.uint8)[: data.size]
    aligned[:] = data
    return aligned.reshape(-(-matrix.rows // 16), -1)


def check(machine, format_name, tokens, rows, cols, out_dtype="f32", with_bias=False, adds=False):
    rng = np.random.default_rng([tokens, rows, cols])
    panels, weights = packed(format_name, rows, cols, rng)
    source = stored(numbers(rng, tokens, cols), "bf16")
    bias = stored(numbers(rng, rows), "f32") if with_bias else None
    out = stored(numbers(rng, tokens, rows), out_dtype) if adds else unwritten((tokens, rows), out_dtype)
    expected = as_read(source) @ weights.T
    expected += as_read(bias) if with_bias else 0
    expected += as_read(out) if adds else 0
    machine.run("packed_linear", {"out": out}, in_=source, weights=panels, bias=bias, format=format_name, adds=adds)
    assert_near(values_of(out), expected, ABSOLUTE, RELATIVE[out_dtype])


@kernel_case
def linear_in_every_format(machine):
    for format_name in ["bf16", *QUANTIZED]:
        cols = whole_groups(format_name, 160, superblocks=2)
        check(machine, format_name, tokens=1, rows=17, cols=cols)
        check(machine, format_name, tokens=9, rows=16, cols=cols)


@further_case
def linear_at_ragged_shapes(machine):
    for tokens, rows, cols in [(0, 16, 32), (1, 1, 32), (8, 33, 96), (33, 15, 64), (31, 5, 1056)]:
        check(machine, "q4_1", tokens, rows, cols)
        check(machine, "bf16", tokens, rows, cols)
    for tokens, rows, groups in [(1, 1, 1), (9, 33, 5), (33, 15, 3)]:  # a warp's columns may end within a group
        check(machine, "int4-g64", tokens, rows, 64 * groups, "bf16", with_bias=True)
        check(machine, "int4-g128", tokens, rows, 128 * groups, adds=True)
    check(machine, "q8_0", 3, 20, 64, "bf16", with_bias=True)
    check(machine, "q4_0", 10, 20, 64, "bf16", adds=True)
    check(machine, "q4_0", 10, 20, 64, "f32", with_bias=True, adds=True)


@kernel_case
def linear_of_many_tokens(machine):
    for format_name in ["bf16", *QUANTIZED]:
        cols = whole_groups(format_name, 352, superblocks=2)
        check(machine, format_name, tokens=33, rows=20, cols=cols)
    check(machine, "bf16", 65, 150, 32, "bf16", with_bias=True)
    check(machine, "q4_0", 64, 129, 96, "f32", with_bias=True, adds=True)


@kernel_case
def unpack(machine):
    rng = np.random.default_rng(22)
    for format_name in ["f32", "bf16", *QUANTIZED]:
        cols = 32 if format_name == "q5_0" else whole_groups(format_name, 288)
        matrix = random_matrix(format_name, 21, cols, rng)
        whole, out = unwritten_with_gaps(21, cols, "bf16")
        machine.run("unpack", {"out": out}, weights=panels_of(matrix), format=format_name)
        assert np.array_equal(values_before_gaps(whole), as_read(stored(weights_of(matrix), "bf16"))), format_name


@further_case
def a_row_of_a_linear_layer_has_the_same_bits_beside_any_others(machine):
    rng = np.random.default_rng(9)
    for format_name in ("q4_1", "q6_k", "bf16", "int4-g64", "int4-g128"):
        cols = whole_groups(format_name, 320, superblocks=2)
        panels, _ = packed(format_name, 32, cols, rng)
        source = stored(numbers(rng, 70, cols), "bf16")
        bias = stored(numbers(rng, 32), "f32")
        results = []
        for first, count in [(0, 70), (0, 1), (7, 3), (35, 20), (66, 4)]:  # by each of the three kernels
            out = unwritten((count, 32), "f32")
            rows = stored(as_read(source)[first : first + count], "bf16")
            machine.run(
                "packed_linear", {"out": out}, in_=rows, weights=panels, bias=bias, format=format_name, adds=False
            )
            results.append((first, out))
        whole = results[0][1]
        for first, out in results[1:]:
            assert np.array_equal(out, whole[first : first + len(out)])


@kernel_case
def linear_of_floats_in_every_format(machine):
    for format_name in ["f32", "bf16", *QUANTIZED]:
        cols = whole_groups(format_name, 96)
        check_float(machine, format_name, tokens=1, rows=17, cols=cols)
        check_float(machine, format_name, tokens=5, rows=16, cols=cols, with_bias=True)


@further_case
def linear_of_floats_at_ragged_shapes(machine):
    for tokens, rows, cols in [(0, 16, 4), (1, 1, 4), (3, 130, 12), (16, 33, 100), (19, 15, 64)]:
        check_float(machine, "f32", tokens, rows, cols, with_bias=True, adds=True)
        check_float(machine, "bf16", tokens, rows, cols, adds=True)


def check_float(machine, format_name, tokens, rows, cols, with_bias=False, adds=False):
    """Rows lie apart. Against double precision, and for plain weights bit for bit against the CPU's kernels."""
    rng = np.random.default_rng([tokens, rows, cols])
    matrix = random_matrix(format_name, rows, cols, rng)
    source = with_gaps(numbers(rng, tokens, cols), "f32")
    bias = stored(numbers(rng, rows), "f32") if with_bias else None
    whole, out = unwritten_with_gaps(tokens, rows, "f32")
    if adds:
        out[...] = numbers(rng, tokens, rows)
    before = out.copy()
    machine.run(
        "float_linear", {"out": out}, in_=source, weights=panels_of(matrix), bias=bias, format=format_name, adds=adds
    )
    expected = as_read(source) @ weights_of(matrix).T.astype(np.float64)
    expected += (as_read(bias) if with_bias else 0) + (before if adds else 0)
    actual = values_before_gaps(whole)
    assert_near(actual, expected, ABSOLUTE, RELATIVE["f32"])
    for isa in FUSED_ISAS if tokens and format_name in ("f32", "bf16") else []:
        on_cpu = before.copy()
        _testing.CpuBackend(isa=isa).linear(np.ascontiguousarray(source), matrix, bias, adds, on_cpu)
        assert np.array_equal(actual, on_cpu), isa


@kernel_case
def embed(machine):
    rng = np.random.default_rng(21)
    for format_name in ["f32", "bf16", *QUANTIZED]:
        cols = whole_groups(format_name, 96, superblocks=3)
        matrix = random_matrix(format_name, 35, cols, rng)
        drawn = np.array([20, 3], np.int32)
        for ids, scale in ([], 1.0), ([34, 0, 17, 17], 1.0), ([15, 16], 27.7), ([-2, 5, -1], 1.0):
            whole, out = unwritten_with_gaps(len(ids), cols, "f32")
            machine.run(
                "embed", {"out": out}, table=panels_of(matrix), ids=np.array(ids, np.int32), drawn=drawn, scale=scale,
                format=format_name,
            )  # fmt: skip
            # The product with the scale is rounded once, whoever makes it.
            meant = [id if id >= 0 else drawn[-1 - id] for id in ids]
            expected = weights_of(matrix)[meant] * np.float32(scale)
            assert np.array_equal(values_before_gaps(whole), expected), format_name
