"""embed, and what linear layers do to a row before they multiply: RMS norm and gates."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import reference
from closeness import assert_close, assert_same_bits

# Around every vector width, and a model's own.
COLS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 576]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (15, 8), (16, 7), (17, 33), (100, 64)])
def test_embed_gathers_rows(backend, rng, dtype, rows, cols):
    table = reference.stored(cases.normal(rng, rows, cols), dtype)
    ids = np.array([0, rows - 1, rows // 2, 0], np.int32)
    out = np.full((4, cols), np.nan, np.float32)
    backend.embed(ids, cases.pack(table, dtype), out)
    assert_same_bits(out, table[ids], "embed")


@pytest.mark.parametrize("cols", COLS)
def test_rms_norm(backend, rng, cols):
    for rows in (0, 1, 2, 17):
        x, weight = cases.normal(rng, rows, cols), cases.normal(rng, cols)
        assert_close(cases.rms_norm(backend, x, weight), reference.rms_norm(x, weight, 1e-5), "rms_norm")


def test_rms_norm_of_zeros_is_zero(backend):
    assert (cases.rms_norm(backend, np.zeros((1, 20), np.float32), np.ones(20, np.float32)) == 0).all()


@pytest.mark.parametrize("cols", COLS)
def test_silu_mul(backend, rng, cols):
    for rows in (0, 1, 2, 17):
        gate_up = cases.normal(rng, rows, 2 * cols) * np.float32(8)
        assert_close(cases.silu_mul(backend, gate_up), reference.silu_mul(gate_up), "silu_mul")


def test_silu_mul_over_the_whole_range(backend):
    gate = np.concatenate([np.linspace(-87, 87, 401), [0.0, -0.0, 1e-30, -1e-30, 88.7, 1e30, np.inf, np.nan]])
    gate_up = np.stack([gate, np.ones_like(gate)], axis=1).astype(np.float32)
    out = cases.silu_mul(backend, gate_up)
    expected = reference.silu_mul(gate_up)
    relative = np.abs(out[:401] - expected[:401]) / np.maximum(np.abs(expected[:401]), 1e-36)
    assert relative.max() < 5e-7
    assert_close(out, expected, "silu_mul")


def test_silu_mul_of_very_negative_gates_is_zero(backend):
    gate_up = np.array([[-88.0, -100.0, -1e30, 1.0, 1.0, 1.0]], np.float32)
    assert np.abs(cases.silu_mul(backend, gate_up)).max() < 1e-30


def test_rows_do_not_see_their_neighbours(backend, rng):
    """Enough rows to be split over threads, against one at a time."""
    x, weight = cases.normal(rng, 64, 577), cases.normal(rng, 577)
    together = cases.rms_norm(backend, x, weight)
    gate_up = cases.normal(rng, 64, 2 * 577)
    activated = cases.silu_mul(backend, gate_up)
    for t in range(64):
        assert_same_bits(cases.rms_norm(backend, x[t : t + 1], weight)[0], together[t], f"rms_norm row {t}")
        assert_same_bits(cases.silu_mul(backend, gate_up[t : t + 1])[0], activated[t], f"silu_mul row {t}")
