"""embed, norms that are added, and what linear layers do to a row before they multiply: RMS norm and gates."""

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
    assert backend.embed(ids, cases.pack(table, dtype), out, 25.3) == 0
    assert_same_bits(out, np.float32(25.3) * table[ids], "scaled")


@pytest.mark.parametrize("cols", COLS)
def test_rms_norm(backend, rng, cols):
    for rows in (0, 1, 2, 17):
        x, weight = cases.normal(rng, rows, cols), cases.normal(rng, cols)
        assert_close(cases.rms_norm(backend, x, weight), reference.rms_norm(x, weight, 1e-5), "rms_norm")


def test_rms_norm_of_zeros_is_zero(backend):
    assert (cases.rms_norm(backend, np.zeros((1, 20), np.float32), np.ones(20, np.float32)) == 0).all()


@pytest.mark.parametrize("cols", COLS)
def test_add_rms_norm(backend, rng, cols):
    for rows in (0, 1, 2, 17):
        x, weight, before = cases.normal(rng, rows, cols), cases.normal(rng, cols), cases.normal(rng, rows, cols)
        out = before.copy()
        assert backend.add_rms_norm(x, weight, 1e-5, out) == 0
        assert_close(out, before + reference.rms_norm(x, weight, 1e-5), "add_rms_norm")
        assert_same_bits(cases.rms_norm(backend, x, weight), add_to_zero(backend, x, weight), "the norm alone")


def add_to_zero(backend, x, weight):
    out = np.zeros_like(x)
    backend.add_rms_norm(x, weight, 1e-5, out)
    return out


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("cols", COLS)
def test_gates(backend, rng, kind, cols):
    for rows in (0, 1, 2, 17):
        gate_up = cases.normal(rng, rows, 2 * cols) * np.float32(4)
        assert_close(cases.gated_mul(backend, gate_up, kind), reference.gated_mul(gate_up, kind), kind)


# Where e^-x and e^-2u are ordinary floats, and how far a gate may be off there, relatively: the exponent is rounded.
RANGES = {"silu": (87.0, 5e-7), "gelu_tanh": (9.9, 1e-5)}


@pytest.mark.parametrize("kind", RANGES)
def test_gates_over_the_whole_range(backend, kind):
    end, most = RANGES[kind]
    gate = np.concatenate([np.linspace(-end, end, 401), [0.0, -0.0, 1e-30, -1e-30, 88.7, 1e30, np.inf, np.nan]])
    gate_up = np.stack([gate, np.ones_like(gate)], axis=1).astype(np.float32)
    out = cases.gated_mul(backend, gate_up, kind)
    expected = reference.gated_mul(gate_up, kind)
    relative = np.abs(out[:401] - expected[:401]) / np.maximum(np.abs(expected[:401]), 1e-36)
    assert relative.max() < most
    assert_close(out, expected, kind)


@pytest.mark.parametrize("kind", RANGES)
def test_very_negative_gates_are_zero(backend, kind):
    gate_up = np.array([[-88.0, -100.0, -1e30, 1.0, 1.0, 1.0]], np.float32)
    assert np.abs(cases.gated_mul(backend, gate_up, kind)).max() < 1e-30


def test_rows_do_not_see_their_neighbours(backend, rng):
    """Enough rows to be split over threads, against one at a time."""
    x, weight, gate_up = cases.normal(rng, 64, 577), cases.normal(rng, 577), cases.normal(rng, 64, 2 * 577)
    operations = {
        "rms_norm": lambda rows: cases.rms_norm(backend, x[rows], weight),
        "add_rms_norm": lambda rows: add_to_zero(backend, x[rows], weight),
        "silu": lambda rows: cases.gated_mul(backend, gate_up[rows], "silu"),
        "gelu_tanh": lambda rows: cases.gated_mul(backend, gate_up[rows], "gelu_tanh"),
    }
    for name, operation in operations.items():
        together = operation(slice(64))
        for t in range(64):
            assert_same_bits(operation(slice(t, t + 1))[0], together[t], f"{name} row {t}")
