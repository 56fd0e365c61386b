"""Linear layers of fp8 weights and inputs: rows as e4m3 with scales, products by cuBLASLt, scales of the products."""

import numpy as np
from caches import MEANING
from machine import (
    GAP_ELEMENTS,
    POISON,
    assert_guarded,
    assert_near,
    further_case,
    kernel_case,
    stored,
    unwritten,
    unwritten_with_gaps,
    values_before_gaps,
    values_of,
    with_gaps,
)
from row_cases import TOLERANCE, as_read, check_nearest, numbers

# On a Hopper the products of fp8 are lined up to fewer bits than a float has before they are added.
SUMS = 5e-4
RELATIVE = {"f32": 1e-6, "bf16": 2.0**-8}


@kernel_case
def quantize_rows(machine):
    rng = np.random.default_rng(61)
    for dtype in TOLERANCE:
        for rows, cols in [(0, 8), (1, 8), (3, 40), (2, 1000), (1, 2048), (2, 2312), (1, 4104)]:
            source = with_gaps(numbers(rng, rows, cols) * np.logspace(-3, 3, rows)[:, None], dtype)
            whole, out = unwritten_with_gaps(rows, cols, "fp8")
            scales = unwritten(rows, "f32")
            machine.run("quantize_rows", {"out": out, "scales": scales}, in_=source)
            assert_guarded(whole)
            assert (whole[:, -GAP_ELEMENTS:] == POISON["fp8"]).all(), "something was written between the rows"
            check_nearest(out, values_of(scales), as_read(source), "fp8")


@further_case
def rows_to_quantize_that_are_no_numbers_or_nothing(machine):
    """A NaN or an infinity makes a scale NaN; what is too small to invert, zero. Others keep their own."""
    for dtype in TOLERANCE:
        values = np.ones((5, 2056), np.float32)
        values[0, 2055] = np.nan
        values[1, 0] = -np.inf
        values[2] = 1e-35
        values[3] = 0
        out, scales = unwritten(values.shape, "fp8"), unwritten(5, "f32")
        machine.run("quantize_rows", {"out": out, "scales": scales}, in_=stored(values, dtype))
        expected = np.array([np.nan, np.nan, 0, 0, np.float32(1) / np.float32(448)])
        assert np.array_equal(values_of(scales), expected, equal_nan=True)
        assert_guarded(out)
        assert np.array_equal(MEANING["fp8"][out[2:]], np.repeat([[0.0], [0.0], [448.0]], 2056, axis=1))


@kernel_case
def scale_products(machine):
    rng = np.random.default_rng(62)
    for dtype in TOLERANCE:
        for shape, with_bias, adds in [
            ((0, 4), False, False), ((1, 4), True, False), ((3, 40), False, True), ((2, 1000), True, True),
            ((1, 516), False, False),
        ]:  # fmt: skip
            rows, cols = shape
            products = with_gaps(1e5 * numbers(rng, rows, cols), "f32")
            row_scales, col_scales = (stored(np.abs(numbers(rng, n)) / 448, "f32") for n in (rows, cols))
            bias = stored(numbers(rng, cols), "f32") if with_bias else None
            whole, out = unwritten_with_gaps(rows, cols, dtype)
            if adds:
                out[...] = with_gaps(numbers(rng, rows, cols), dtype)
            expected = as_read(products) * as_read(row_scales)[:, None] * as_read(col_scales)
            expected += (as_read(bias) if with_bias else 0) + (as_read(out) if adds else 0)
            machine.run(
                "scale_products", {"out": out}, products=products, row_scales=row_scales, col_scales=col_scales,
                bias=bias, adds=adds,
            )  # fmt: skip
            assert_near(values_before_gaps(whole), expected, *TOLERANCE[dtype])


class Layer:
    """An fp8 layer with drawn weights, and the products of the library."""

    def __init__(self, machine, rng, outputs, cols):
        machine.require_capability(8, 9)
        self.machine, self.shape = machine, (outputs, cols)
        library = machine.library("cublaslt")
        self.products = machine.module.Fp8Products(*library, workspace=np.empty(0, np.uint8), deterministic=True)
        self.products.prepare(outputs, cols, 70)
        self.exact = numbers(rng, outputs, cols) * np.logspace(-1, 1, outputs)[:, None]
        self.weights, self.scales = unwritten((outputs, cols), "fp8"), unwritten(outputs, "f32")
        machine.run("quantize_rows", {"out": self.weights, "scales": self.scales}, in_=stored(self.exact, "f32"))

    def run(self, source, out, bias=None, adds=False):
        """The inputs as they were quantized, what the products of them and the weights are."""
        outputs, cols = self.shape
        rows = source.shape[0]
        quantized, scales = unwritten((rows, cols), "fp8"), unwritten(rows, "f32")
        sums = unwritten((rows, outputs), "f32")
        self.machine.run(
            "fp8_linear", {"out": out, "quantized": quantized, "scales": scales, "sums": sums},
            products=self.products, in_=source, weights=self.weights, weight_scales=self.scales, bias=bias, adds=adds,
        )  # fmt: skip
        for array in (quantized, scales, sums):
            assert_guarded(array)
        inputs, weights = (
            MEANING["fp8"][codes] * as_read(each)[:, None]
            for codes, each in ((quantized, scales), (self.weights, self.scales))
        )
        return inputs @ weights.T


@further_case
def fp8_linear(machine):
    rng = np.random.default_rng(63)
    for outputs, cols in [(16, 16), (48, 144)]:
        layer = Layer(machine, rng, outputs, cols)
        for dtype in TOLERANCE:
            for rows, with_bias, adds in [(0, False, False), (1, False, False), (33, True, False), (70, True, True)]:
                source = with_gaps(numbers(rng, rows, cols) * np.logspace(-2, 2, rows)[:, None], dtype)
                bias = stored(numbers(rng, outputs), "f32") if with_bias else None
                whole, out = unwritten_with_gaps(rows, outputs, dtype)
                if adds:
                    out[...] = with_gaps(numbers(rng, rows, outputs), dtype)
                beside = (as_read(bias) if with_bias else 0) + (as_read(out) if adds else 0)
                products = layer.run(source, out, bias, adds)
                assert_near(values_before_gaps(whole), products + beside, SUMS, RELATIVE[dtype])
                exact = as_read(source) @ layer.exact.astype(np.float64).T
                # Both factors are rounded to 4 bits: an error of at most 2^-4 each, and far less where many are summed.
                assert np.linalg.norm(products - exact) <= 0.05 * np.linalg.norm(exact)


@further_case
def a_row_of_an_fp8_layer_has_the_same_bits_beside_any_others(machine):
    rng = np.random.default_rng(64)
    layer = Layer(machine, rng, 48, 144)
    source = stored(numbers(rng, 70, 144), "f32")
    rows_bits = set()
    for rows in (1, 2, 30, 70):
        out = unwritten((rows, 48), "f32")
        layer.run(source[:rows], out)
        rows_bits.add(values_of(out)[0].tobytes())
    assert len(rows_bits) == 1
