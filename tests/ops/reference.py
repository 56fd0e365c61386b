"""Every operation in plain NumPy and double precision: what a backend must compute."""

from __future__ import annotations

import numpy as np


def to_bf16(x):
    """The nearest bf16 value of each element, ties to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32)
    rounded = np.where(np.isnan(x), (bits | 0x400000) & np.uint32(0xFFFF0000), rounded).astype(np.uint32)
    return rounded.view(np.float32).reshape(np.shape(x))


def stored(x, dtype):
    """What is left of x after it was stored as "bf16" or "f32", or as "int8" with a scale per vector."""
    if dtype == "int8":
        return quantized_vectors(x)
    return to_bf16(x) if dtype == "bf16" else np.asarray(x, np.float32)


def rms_norm(x, weight, eps):
    x = np.asarray(x, np.float64)
    return x * np.asarray(weight, np.float64) / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def linear(x, weight, bias=None, before=None):
    out = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    if bias is not None:
        out = out + np.asarray(bias, np.float64)
    return out if before is None else out + np.asarray(before, np.float64)


def quantized(x):
    """What int8 quantization per row and group of 32 columns leaves of x, in double precision."""
    return quantized_vectors(np.asarray(x).reshape(len(x), -1, 32)).reshape(x.shape)


def quantized_vectors(x):
    """What int8 quantization with one scale along the last axis leaves of x, in double precision."""
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    zero = largest < 2.0**-100
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        q = np.rint(x * (np.float32(127) / largest))
        d = largest / np.float32(127)
        return np.where(zero, 0.0, np.where(np.isfinite(largest), d.astype(np.float64) * q, np.nan))


def gated_mul(gate_up, kind):
    gate, up = np.split(np.asarray(gate_up, np.float64), 2, axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "silu":
            return gate / (1 + np.exp(-gate)) * up
        # 1 + tanh(u) as 2 / (1 + exp(-2 u)): for a very negative u the former has no digits left.
        return gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


def rotate(x, cos, sin):
    """x: [tokens, heads, head_dim]; cos, sin: [tokens, head_dim / 2]."""
    low, high = np.split(np.asarray(x, np.float64), 2, axis=-1)
    cos, sin = np.asarray(cos, np.float64)[:, None], np.asarray(sin, np.float64)[:, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attention(queries, keys, values, first_position, scale, window=None, soft_cap=None):
    """Rows of one sequence from `first_position` on.

    queries: [rows, heads, head_dim]; keys, values: [context, kv_heads, head_dim] -> [rows, heads, head_dim].
    """
    queries, keys, values = (np.asarray(a, np.float64) for a in (queries, keys, values))
    group = queries.shape[1] // keys.shape[1]
    out = np.empty_like(queries)
    for row in range(queries.shape[0]):
        end = first_position + row + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(queries.shape[1]):
            scores = scale * (keys[begin:end, head // group] @ queries[row, head])
            scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
            p = np.exp(scores - scores.max())
            out[row, head] = (p / p.sum()) @ values[begin:end, head // group]
    return out
