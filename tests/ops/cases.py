"""Builders that the tests of several operations share."""

from __future__ import annotations

import numpy as np

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


# Block formats of files: columns of a block, and where its float16 scales and minimums stand.
BLOCK_FORMATS = {
    "q4_0": (32, [0]),
    "q4_1": (32, [0, 2]),
    "q5_0": (32, [0]),
    "q5_1": (32, [0, 2]),
    "q8_0": (32, [0]),
    "q4_k": (256, [0, 2]),
    "q5_k": (256, [0, 2]),
    "q6_k": (256, [208]),
}


def block_matrix(rng, name, n, k, byte=None):
    """A packed matrix of random blocks, or of blocks full of `byte`, with ordinary scales; and the values it holds."""
    cols, scales = BLOCK_FORMATS[name]
    _, size = _testing.source_block(name)
    blocks = rng.integers(0, 256, (n * k // cols, size), np.uint8)
    if byte is not None:
        blocks[:] = byte
    for at in scales:
        values = (rng.uniform(0.01, 0.02, len(blocks)) * rng.choice([-1, 1], len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    matrix = _testing.PackedMatrix(name, n, k)
    matrix.set_rows(0, n, name, blocks.tobytes(), 2)
    return matrix, np.stack([matrix.unpack_row(row) for row in range(n)])


def linear(backend, x, matrix, bias=None, before=None):
    """The result in a matrix that is surrounded by sentinels, which must survive."""
    guard = np.float32(-12345.5)
    whole = np.full((x.shape[0] + 2, matrix.rows + 5), guard, np.float32)
    out = whole[1:-1, 2:-3]
    if before is not None:
        out[:] = before
    assert backend.linear(x, matrix, bias, before is not None, out) == 0, "allocated"
    edges = np.ones(whole.shape, bool)
    edges[1:-1, 2:-3] = False
    assert (whole[edges] == guard).all(), "wrote outside of the result"
    return out.copy()


def linear_operation(backend, dtype):
    """Whose tolerance a linear layer has: AMX multiplies bf16 weights with activations split into two bf16 halves."""
    return "linear, split activations" if "amx" in backend.description and dtype == "bf16" else "linear"
