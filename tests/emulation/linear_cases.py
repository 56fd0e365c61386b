"""Linear layers over packed matrices against NumPy in double precision, and bit for bit against themselves."""

import numpy as np
from machine import GUARD_ELEMENTS, assert_near, further_case, kernel_case, poison, stored, unwritten, values_of
from quant_blocks import BLOCK_FORMATS, ordinary_blocks
from row_cases import as_read, numbers

from llmsrv import _testing

ABSOLUTE = 3e-6  # float sums of exact products
RELATIVE = {"f32": 1e-6, "bf16": 2.0**-8}


def packed(format_name, rows, cols, rng):
    """(panels as the kernels read them, the weights they stand for)."""
    matrix = _testing.PackedMatrix(format_name, rows, cols)
    if format_name == "bf16":
        matrix.set_rows(0, rows, "f32", numbers(rng, rows, cols).tobytes())
    else:
        block_cols, _ = _testing.source_block(format_name)
        blocks = ordinary_blocks(rng, format_name, rows * (cols // block_cols))
        matrix.set_rows(0, rows, format_name, blocks.tobytes())
    data = np.frombuffer(matrix.packed(), np.uint8)
    panels = -(-rows // 16)
    aligned = poison(data.size // 4 + GUARD_ELEMENTS, "f32").view(np.uint8)[: data.size]
    aligned[:] = data
    weights = np.array([matrix.unpack_row(row) for row in range(rows)], np.float64)
    return aligned.reshape(panels, -1), weights


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
    for format_name in ["bf16", *BLOCK_FORMATS]:
        cols = 512 if format_name.endswith("_k") else 160
        check(machine, format_name, tokens=1, rows=17, cols=cols)
        check(machine, format_name, tokens=9, rows=16, cols=cols)


@further_case
def linear_at_ragged_shapes(machine):
    for tokens, rows, cols in [(0, 16, 32), (1, 1, 32), (8, 33, 96), (33, 15, 64), (31, 5, 1056)]:
        check(machine, "q4_1", tokens, rows, cols)
        check(machine, "bf16", tokens, rows, cols)
    check(machine, "q8_0", 3, 20, 64, "bf16", with_bias=True)
    check(machine, "q4_0", 10, 20, 64, "bf16", adds=True)
    check(machine, "q4_0", 10, 20, 64, "f32", with_bias=True, adds=True)


@further_case
def a_row_of_a_linear_layer_has_the_same_bits_beside_any_others(machine):
    rng = np.random.default_rng(9)
    for format_name in ("q4_1", "bf16"):
        panels, _ = packed(format_name, 32, 320, rng)
        source = stored(numbers(rng, 40, 320), "bf16")
        results = []
        for first, count in [(0, 40), (0, 1), (7, 3), (35, 1)]:
            out = unwritten((count, 32), "f32")
            rows = stored(as_read(source)[first : first + count], "bf16")
            machine.run(
                "packed_linear", {"out": out}, in_=rows, weights=panels, bias=None, format=format_name, adds=False
            )
            results.append((first, out))
        whole = results[0][1]
        for first, out in results[1:]:
            assert np.array_equal(out, whole[first : first + len(out)])
