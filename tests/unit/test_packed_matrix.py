"""Packed quantized matrices: their bytes against the definition in packed_layout.h, and their values against `gguf`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from quant_blocks import BLOCK_FORMATS, F16_FIELDS, GGUF_NAMES, random_blocks

from llmsrv import _testing

PANEL_ROWS = 16
SUPERBLOCK_BYTES = {
    "q4_0": 576, "q4_1": 640, "q5_0": 704, "q5_1": 768, "q8_0": 1088, "q4_k": 2368, "q5_k": 2880, "q6_k": 3392,
}  # fmt: skip
ROWS = [1, 15, 16, 17, 33]


def is_k(name):
    return name.endswith("_k")


def random_rows(name, rows, blocks, seed=0):
    """The bytes of a source matrix: [rows, blocks, bytes of a block]."""
    data = random_blocks(np.random.default_rng([seed, rows, blocks]), name, rows * blocks)
    return data.reshape(rows, blocks, -1)


def cols_of(name, blocks):
    return blocks * _testing.source_block(name)[0]


def pack(name, data, threads=1, seed=0):
    """A matrix filled by ranges of rows that come in random order."""
    rows, blocks, _ = data.shape
    matrix = _testing.PackedMatrix(name, rows, cols_of(name, blocks))
    rng = np.random.default_rng(seed)
    parts = list(itertools.pairwise(sorted({0, rows, *rng.integers(0, rows + 1, 3).tolist()})))
    rng.shuffle(parts)
    for begin, end in parts:
        matrix.set_rows(begin, end - begin, name, data[begin:end].tobytes(), threads)
    return matrix


# The integers of a source block, by ggml's definition of its bytes.


def halves(nibbles):
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)


def k_nibbles(nibbles):
    """[..., 128] bytes: of each 32, the low halves and then the high halves."""
    return halves(nibbles.reshape(*nibbles.shape[:-1], 4, 32)).reshape(*nibbles.shape[:-1], 256)


def integers(name, data):
    """Unsigned quants of every column. [rows, blocks, block bytes] -> [rows, K]"""
    if name in ("q4_0", "q4_1"):
        q = halves(data[..., -16:])
    elif name in ("q5_0", "q5_1"):
        fifth = np.unpackbits(data[..., -20:-16], axis=-1, bitorder="little")
        q = halves(data[..., -16:]) | fifth << 4
    elif name == "q8_0":
        q = data[..., 2:] ^ 128
    elif name == "q4_k":
        q = k_nibbles(data[..., 16:])
    elif name == "q5_k":
        fifth = np.stack([data[..., 16:48] >> group & 1 for group in range(8)], axis=-2)
        q = k_nibbles(data[..., 48:]) | fifth.reshape(*data.shape[:-1], 256) << 4
    else:
        low = data[..., :128].reshape(*data.shape[:-1], 2, 64)
        high = data[..., 128:192].reshape(*data.shape[:-1], 2, 1, 32)
        planes = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        q = halves(low) | planes.reshape(*planes.shape[:-2], 128) << 4
        q = q.reshape(*data.shape[:-1], 256)
    return q.reshape(data.shape[0], -1)


def k_scales(name, data):
    """Sub-scales and sub-mins of a K format: [rows, blocks, 8 or 16] each; no mins in q6_k."""
    if name == "q6_k":
        return data[..., 192:208], None
    packed = data[..., 4:16]
    low, high, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (rest & 15) | low >> 6 << 4], axis=-1)
    mins = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], axis=-1)
    return scales, mins


# The lines of a group, by the definition in packed_layout.h. q: [16 rows, 32 columns]


def nibble_lines(q):
    low, high = (half.reshape(16, 4, 4).transpose(1, 0, 2) for half in (q[:, :16] & 15, q[:, 16:] & 15))
    return low | high << 4


def byte_lines(q):
    return q.reshape(16, 8, 4).transpose(1, 0, 2)


def masks(q):
    bits = (q >> 4 & 1).reshape(16, 8, 4).transpose(1, 0, 2).reshape(8, 64)
    return np.packbits(bits, axis=-1, bitorder="little")


def planes(q):
    by_vector = (q >> 4).reshape(16, 2, 4, 4)
    return sum(by_vector[:, :, w] << 2 * w for w in range(4)).astype(np.uint8).transpose(1, 0, 2)


def padded(values, rows, cols):
    """The same with zeros below and to the right."""
    result = np.zeros((rows, cols, *values.shape[2:]), values.dtype)
    result[: values.shape[0], : values.shape[1]] = values
    return result


def expected_bytes(name, data):
    rows, blocks, _ = data.shape
    all_rows = -(-rows // PANEL_ROWS) * PANEL_ROWS
    step = 8 if is_k(name) else 2  # groups of a superblock
    groups = -(-(cols_of(name, blocks) // 32) // step) * step
    q = padded(integers(name, data), all_rows, groups * 32)
    f16 = [padded(data[..., at : at + 2], all_rows, groups // (step if is_k(name) else 1)) for at in F16_FIELDS[name]]
    subs = [each for each in k_scales(name, data) if each is not None] if is_k(name) else []
    high = {"q5_0": masks, "q5_1": masks, "q5_k": masks, "q6_k": planes}.get(name)
    out = []
    for panel in range(0, all_rows, PANEL_ROWS):
        lanes = slice(panel, panel + PANEL_ROWS)
        for first in range(0, groups, step):
            in_groups = [q[lanes, 32 * g : 32 * g + 32] for g in range(first, first + step)]
            out += [byte_lines(each) if name == "q8_0" else nibble_lines(each) for each in in_groups]
            out += [high(each) for each in in_groups] if high else []
            if is_k(name):
                out += [padded(each, all_rows, groups // step)[lanes, first // step].T for each in subs]
                out += [each[lanes, first // step] for each in f16]
            else:
                out += [each[lanes, first : first + step].transpose(1, 0, 2) for each in f16]
            out += [np.zeros(32, np.uint8)] if name == "q6_k" else []
    return b"".join(each.tobytes() for each in out)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_bytes_by_definition_whatever_the_order_of_arrival(name, blocks, rows):
    data = random_rows(name, rows, blocks)
    expected = expected_bytes(name, data)
    for threads in (1, 2, 3):
        matrix = pack(name, data, threads, seed=threads)
        assert matrix.nbytes == len(expected)
        assert matrix.packed() == expected
    superblocks = blocks if is_k(name) else -(-blocks // 2)
    assert len(expected) == -(-rows // PANEL_ROWS) * superblocks * SUPERBLOCK_BYTES[name]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_unpacked_rows_equal_ggml(name, blocks, rows):
    data = random_rows(name, rows, blocks, seed=1)
    matrix = pack(name, data, threads=2)
    values = dequantize(data.reshape(rows, -1), GGMLQuantizationType[GGUF_NAMES.get(name, name.upper())])
    for row in range(rows):
        got = matrix.unpack_row(row)
        np.testing.assert_array_equal(got, values[row])
        source = _testing.unpack_row(name, data[row].tobytes(), cols_of(name, blocks))
        assert got.tobytes() == source.tobytes()


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_unpacked_rows_of_plain_types(name):
    values = (np.random.default_rng(5).integers(-128, 128, (33, 7)) / 16).astype(np.float32)  # exact in bf16
    matrix = _testing.PackedMatrix(name, 33, 7)
    matrix.set_rows(0, 33, "f32", values.tobytes(), 2)
    np.testing.assert_array_equal([matrix.unpack_row(row) for row in range(33)], values)
    for row in (-1, 33):
        with pytest.raises(RuntimeError, match="check failed"):
            matrix.unpack_row(row)


def test_native_formats():
    assert {name: _testing.native_format(name) for name in BLOCK_FORMATS} == {name: name for name in BLOCK_FORMATS}
    assert {_testing.native_format(name) for name in ("f32", "f16", "bf16")} == {"bf16"}


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_quantized_matrix_takes_only_its_own_blocks(name):
    matrix = _testing.PackedMatrix(name, 2, 256)
    other = "q8_0" if name != "q8_0" else "q4_0"
    values, block_bytes = _testing.source_block(other)
    with pytest.raises(RuntimeError, match="check failed"):
        matrix.set_rows(0, 1, other, bytes(256 // values * block_bytes))
    with pytest.raises(RuntimeError, match="check failed"):
        _testing.PackedMatrix(name, 2, _testing.source_block(name)[0] + 16)
