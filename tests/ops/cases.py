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


def linear(backend, x, matrix, bias=None, before=None):
    """The result in a matrix that is surrounded by sentinels, which must survive."""
    guard = np.float32(-12345.5)
    whole = np.full((x.shape[0] + 2, matrix.rows + 5), guard, np.float32)
    out = whole[1:-1, 2:-3]
    if before is not None:
        out[:] = before
    backend.linear(x, matrix, bias, before is not None, out)
    edges = np.ones(whole.shape, bool)
    edges[1:-1, 2:-3] = False
    assert (whole[edges] == guard).all(), "wrote outside of the result"
    return out.copy()


def linear_operation(backend, dtype):
    """Whose tolerance a linear layer has: AMX multiplies bf16 weights with activations split into two bf16 halves."""
    return "linear, split activations" if "amx" in backend.description and dtype == "bf16" else "linear"
