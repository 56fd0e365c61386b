"""Builders that the tests of several operations share."""

from __future__ import annotations

import numpy as np
import reference
from quant_blocks import BLOCK_FORMATS, GROUP_FORMATS, ordinary_blocks

from llmsrv import _testing

ISAS = _testing.available_cpu_isas()

# Rows of a step: one, around every tile height of every table, and past two tiles.
TOKEN_COUNTS = [*range(1, 18), 33]


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def pack(weight, dtype, threads=2):
    """A packed matrix that holds `weight` ([N, K], values that `dtype` can hold exactly)."""
    matrix = _testing.PackedMatrix(dtype, *weight.shape)
    matrix.set_rows(0, weight.shape[0], "f32", np.ascontiguousarray(weight, np.float32).tobytes(), threads)
    return matrix


def block_matrix(rng, name, n, k, byte=None):
    """A packed matrix of random blocks, or of blocks full of `byte`, with ordinary scales; and the values it holds."""
    if name in GROUP_FORMATS:
        matrix = pack(group_weight(rng, name, n, k, byte), name)
    else:
        values, _ = _testing.source_block(name)
        blocks = ordinary_blocks(rng, name, n * k // values, byte)
        matrix = _testing.PackedMatrix(name, n, k)
        matrix.set_rows(0, n, name, blocks.tobytes(), 2)
    return matrix, np.stack([matrix.unpack_row(row) for row in range(n)])


def group_weight(rng, name, n, k, byte):
    """Weights like those of a trained model; or, for a byte, the largest integers but for one column of a group."""
    if byte is None:
        return (rng.standard_normal((n, k)) * 0.02 + 0.01).astype(np.float32)
    weight = np.full((n, k), 0.3 if byte & 8 else -0.3, np.float32)
    weight[:, :: GROUP_FORMATS[name]] *= -1
    return weight


def source_rows(rng, name, weight):
    """Rows as a file has them: of `weight`, or, for a block format, random ones of that shape. (format, bytes)"""
    if name not in BLOCK_FORMATS:
        return "f32", np.ascontiguousarray(weight, np.float32).tobytes()
    values, _ = _testing.source_block(name)
    return name, ordinary_blocks(rng, name, weight.size // values).tobytes()


def rms_norm(backend, x, weight, eps=1e-5):
    """The rows that an RMS norm gives to a linear layer: 1 times each value, and zeros."""
    return linear(backend, x, pack(np.eye(len(weight)), "f32"), norm=(weight, eps))


def gated_mul(backend, gate_up, kind):
    """The same for gates and factors."""
    return linear(backend, gate_up, pack(np.eye(gate_up.shape[1] // 2), "f32"), gate=kind)


def linear(backend, x, matrix, bias=None, before=None, *, rows=None, **prologue):
    """The result in a matrix that is surrounded by sentinels, which must survive. `rows` of a stack of matrices."""
    guard = np.float32(-12345.5)
    whole = np.full((x.shape[0] + 2, (rows or matrix.rows) + 5), guard, np.float32)
    out = whole[1:-1, 2:-3]
    if before is not None:
        out[:] = before
    assert backend.linear(x, matrix, bias, before is not None, out, **prologue) == 0, "allocated"
    edges = np.ones(whole.shape, bool)
    edges[1:-1, 2:-3] = False
    assert (whole[edges] == guard).all(), "wrote outside of the result"
    return out.copy()


def multiplied(backend, x, dtype):
    """What a linear layer multiplies its weights with: bf16 dot products take activations rounded to bf16."""
    return reference.to_bf16(x) if "avx512_bf16" in backend.description and dtype == "bf16" else x


def linear_operation(backend, dtype):
    """Whose tolerance a linear layer has: AMX multiplies bf16 weights with activations split into two bf16 halves."""
    return "linear, split activations" if "amx" in backend.description and dtype == "bf16" else "linear"
