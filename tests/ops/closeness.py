"""How close an operation's result must be to its reference, in one place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| <= absolute * scale + relative * |expected|, and the cosine distance is at most `cosine`.

    `scale` is the root mean square of the expected result: float errors grow with what is summed, not with the sum.
    """

    absolute: float
    relative: float
    cosine: float


# Kernels compute in float32 whatever the storage type, and the references see the stored values: one row per operation.
TOLERANCES = {
    "embed": Tolerance(0, 0, 1e-15),
    "rms_norm": Tolerance(1e-9, 1e-6, 1e-12),
    "linear": Tolerance(3e-6, 1e-6, 1e-11),
    "linear, split activations": Tolerance(3e-5, 1e-5, 1e-9),  # hi + lo is exact to 2^-17
    "linear, bf16 activations": Tolerance(0.01, 0, 5e-6),  # beside the activations before: 0.11 % of the result's RMS
    "linear, exact int8 activations": Tolerance(5e-6, 2e-6, 1e-11),  # beside the same activations, quantized
    "linear, int8 activations": Tolerance(0.05, 0, 1e-4),  # beside the activations before: 0.5 % of the result's RMS
    "add_rms_norm": Tolerance(4e-7, 1e-6, 1e-12),
    "silu": Tolerance(1e-12, 1e-6, 1e-12),
    "gelu_tanh": Tolerance(1e-9, 1.5e-6, 1e-12),
    "normed and rotated": Tolerance(1e-6, 1e-6, 1e-12),
    "rotate": Tolerance(3e-7, 1e-6, 1e-12),
    "attention": Tolerance(1e-5, 2e-6, 1e-10),
    "attention, bf16 queries and weights": Tolerance(0.05, 0, 5e-6),  # beside the exact ones: 0.2 % of the result's RMS
    # Beside keys and values that were never rounded; the root mean square of the error is 0.24 % and 0.9 %.
    "attention, cache in f32": Tolerance(1e-5, 2e-6, 1e-10),
    "attention, cache in bf16": Tolerance(0.06, 0, 4e-6),
    "attention, cache in int8": Tolerance(0.2, 0, 6e-5),
}


def assert_close(actual, expected, operation):
    """Compares NaN and infinity places first, then values; prints the first mismatch with its coordinates."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    for kind, places in (("NaN", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        _report(places(actual) != places(expected), actual, expected, f"{operation}: {kind} in other places")

    finite = np.isfinite(expected)
    a, e = np.where(finite, actual, 0), np.where(finite, expected, 0)
    tolerance = TOLERANCES[operation]
    scale = np.sqrt(np.mean(e * e)) if e.size else 0.0
    allowed = tolerance.absolute * scale + tolerance.relative * np.abs(e)
    _report(np.abs(a - e) > allowed, actual, expected, f"{operation}: too far apart")
    norm = np.linalg.norm(a) * np.linalg.norm(e)
    if norm > 0:
        assert 1 - np.vdot(a, e) / norm <= tolerance.cosine, f"{operation}: cosine"


def assert_same_bits(actual, expected, what):
    """Equal bit for bit, NaN payloads and signs of zero included."""
    assert actual.shape == expected.shape
    a = np.ascontiguousarray(actual).view(np.uint32)
    e = np.ascontiguousarray(expected).view(np.uint32)
    _report(a != e, actual, expected, f"{what}: bits differ")


def _report(mismatch, actual, expected, what):
    if mismatch.any():
        at = tuple(int(i) for i in np.argwhere(mismatch)[0])
        count = int(mismatch.sum())
        raise AssertionError(
            f"{what}: {count} of {mismatch.size}, first at {at}: got {actual[at]!r}, expected {expected[at]!r}"
        )
