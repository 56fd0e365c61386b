"""Weight formats against the `gguf` package, and the packed layout against its definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from quant_blocks import BLOCK_FORMATS, GGUF_NAMES, random_blocks

from llmsrv import _testing


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_equal_ggml(name):
    data = random_blocks(np.random.default_rng(7), name, 400)
    values, _ = _testing.source_block(name)
    got = _testing.unpack_row(name, data.tobytes(), 400 * values)
    expected = dequantize(data.reshape(1, -1), GGMLQuantizationType[GGUF_NAMES.get(name, name.upper())]).reshape(-1)
    np.testing.assert_array_equal(got, expected)


def test_every_f16_and_bf16_value():
    bits = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(
        _testing.unpack_row("f16", bits.tobytes(), 1 << 16), bits.view(np.float16).astype(np.float32)
    )
    as_f32 = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(_testing.unpack_row("bf16", bits.tobytes(), 1 << 16), as_f32)
    np.testing.assert_array_equal(_testing.unpack_row("f32", as_f32.tobytes(), 1 << 16), as_f32)


def test_names():
    assert all(_testing.source_format_known(name) for name in ["f32", "f16", "bf16", *BLOCK_FORMATS])
    assert not _testing.source_format_known("Q4_0")
    assert not _testing.source_format_known("q2_k")
    assert not _testing.source_format_known("")


def panels(weight, dtype):
    """The packed bytes by their definition in packed_matrix.h."""
    rows, cols = weight.shape
    padded = np.zeros((-(-rows // 16) * 16, -(-cols // 2) * 2), np.float32)
    padded[:rows, :cols] = weight
    by_panel = padded.reshape(-1, 16, padded.shape[1] // 2, 2)
    if dtype == "f32":
        return by_panel.transpose(0, 2, 3, 1).tobytes()
    return (by_panel.transpose(0, 2, 1, 3).copy().view(np.uint32) >> 16).astype(np.uint16).tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (15, 2), (16, 3), (17, 32), (50, 7)])
def test_packed_layout_whatever_the_order_of_arrival(dtype, rows, cols):
    rng = np.random.default_rng(rows * 100 + cols)
    weight = (rng.integers(-128, 128, (rows, cols)) / 16).astype(np.float32)  # exact in bf16
    for threads in (1, 2, 3):
        matrix = _testing.PackedMatrix(dtype, rows, cols)
        cuts = sorted({0, rows, *rng.integers(0, rows + 1, 3).tolist()})
        parts = list(itertools.pairwise(cuts))
        rng.shuffle(parts)
        for begin, end in parts:
            matrix.set_rows(begin, end - begin, "f32", weight[begin:end].tobytes(), threads)
        assert matrix.packed() == panels(weight, dtype)
        assert matrix.nbytes == len(panels(weight, dtype))


def test_packing_to_bf16_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -np.inf, np.nan, 3.4e38], np.float32)
    matrix = _testing.PackedMatrix("bf16", 1, values.size)
    matrix.set_rows(0, 1, "f32", values.tobytes())
    packed = np.frombuffer(matrix.packed(), np.uint16).reshape(-1, 16, 2)[:, 0].reshape(-1)[: values.size]
    got = (packed.astype(np.uint32) << 16).view(np.float32)
    expected = np.array([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -np.inf, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_packing_unpacks_block_formats(name):
    values, _ = _testing.source_block(name)
    data = random_blocks(np.random.default_rng(3), name, 20 * 2)
    matrix = _testing.PackedMatrix("f32", 20, 2 * values)
    matrix.set_rows(0, 20, name, data.tobytes(), 2)
    rows = _testing.unpack_row(name, data.tobytes(), 40 * values).reshape(20, 2 * values)
    assert matrix.packed() == panels(rows, "f32")


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 4), (3, 1), (2, 2)])
def test_rows_outside_of_the_matrix_are_refused(first, count):
    matrix = _testing.PackedMatrix("f32", 3, 4)
    with pytest.raises(RuntimeError, match="check failed"):
        matrix.set_rows(first, count, "f32", bytes(16 * count))
    with pytest.raises(RuntimeError, match="check failed"):
        matrix.set_rows(0, 1, "f32", bytes(15))
