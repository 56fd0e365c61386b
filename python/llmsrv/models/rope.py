"""RoPE as checkpoints describe it → the base and scaling of a ModelSpec."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from llmsrv._core import RopeScaling
from llmsrv.models.config_reader import MAX_INT, ConfigReader

_DEFAULT_THETA = 10000.0
_MAX_THETA = 1e12
_MAX_FACTOR = 1e6

# What every Llama 3.1, 3.2 and 3.3 checkpoint uses; GGUF files keep only the result, not these.
_LLAMA3_LOW_FREQ_FACTOR = 1.0
_LLAMA3_HIGH_FREQ_FACTOR = 4.0
_LLAMA3_ORIGINAL_MAX_POSITION = 8192
# GGUF stores the frequency factors as floats computed in float: a few units in the last place.
_FACTOR_TOLERANCE = 1e-5


def rope_from_config(config: ConfigReader) -> tuple[float, RopeScaling | None]:
    """Base and scaling from config.json: `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling`."""
    config.require("partial_rotary_factor", 1.0, "rotating a part of each head is not supported")
    theta = read_theta(config, "rope_theta", _DEFAULT_THETA)
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise config.error("rope_scaling", "rope_parameters is there too; only one of the two can count")
    key = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    return read_rope(ConfigReader(config.section(key), f"{config.where}: {key}"), theta)


def read_theta(config: ConfigReader, key: str, default: float | None = None) -> float:
    """The base of RoPE; a required one when there is no default."""
    return config.number(key, default, low=1.0, high=_MAX_THETA)


def read_rope(rope: ConfigReader, theta: float) -> tuple[float, RopeScaling | None]:
    """Base and scaling from one object that describes RoPE. `theta` is the base that stands outside of it."""
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(kind_key, "default")
    theta = read_theta(rope, "rope_theta", theta)
    rope.require("partial_rotary_factor", 1.0, "rotating a part of each head is not supported")
    scaling = _scaling(rope, kind_key, kind)
    # Older files carry both names of the kind.
    rope.require("type", kind, "contradicts rope_type")
    rope.finish(harmless=())
    return theta, scaling


def _scaling(rope: ConfigReader, kind_key: str, kind: str) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor", low=1.0, high=_MAX_FACTOR))
    if kind == "llama3":
        low = rope.number("low_freq_factor", low=1e-3, high=_MAX_FACTOR)
        high = rope.number("high_freq_factor", low=1e-3, high=_MAX_FACTOR)
        if not low < high:
            raise rope.error("high_freq_factor", f"must be above low_freq_factor, which is {low:g}")
        return RopeScaling(
            kind="llama3",
            factor=rope.number("factor", low=1.0, high=_MAX_FACTOR),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
    raise rope.error(kind_key, "this kind of RoPE scaling is not supported, only default, linear and llama3 are")


def rope_from_gguf(
    metadata: ConfigReader, prefix: str, head_dim: int, freq_factors: NDArray[np.float32] | None
) -> tuple[float, RopeScaling | None]:
    """Base and scaling from GGUF keys and, when the file has them, the factors of `rope_freqs.weight`."""
    metadata.require(f"{prefix}.rope.dimension_count", head_dim, f"only the whole head, {head_dim}, can be rotated")
    theta = read_theta(metadata, f"{prefix}.rope.freq_base", _DEFAULT_THETA)
    kind_key = f"{prefix}.rope.scaling.type"
    kind = metadata.text(kind_key, "none")
    if kind not in ("none", "linear"):
        raise metadata.error(kind_key, "this kind of RoPE scaling is not supported, only none and linear are")
    # `scale_linear` is the older name of the factor; it counted without a kind beside it.
    old_key, new_key = f"{prefix}.rope.scale_linear", f"{prefix}.rope.scaling.factor"
    factor_key = old_key if metadata.has(old_key) else new_key
    factor = metadata.number(factor_key, 1.0, low=1.0, high=_MAX_FACTOR)
    linear = factor > 1.0 and (kind == "linear" or factor_key == old_key)
    if freq_factors is None or (freq_factors == 1.0).all():
        return theta, RopeScaling(kind="linear", factor=factor) if linear else None
    if linear:
        raise metadata.error(factor_key, "linear scaling together with rope_freqs.weight is not supported")
    original_key = f"{prefix}.rope.scaling.original_context_length"
    original = metadata.integer(original_key, _LLAMA3_ORIGINAL_MAX_POSITION, high=MAX_INT)
    return theta, _llama3_from_factors(freq_factors, theta, original, metadata.where)


def _llama3_from_factors(factors: NDArray[np.float32], theta: float, original: int, where: str) -> RopeScaling:
    """The llama3 scaling that yields these frequency divisors, one per pair of a head. ValueError when none does."""
    if not np.isfinite(factors).all() or factors.max() <= 1.0:
        raise ValueError(f"{where}: rope_freqs.weight holds factors that are not those of llama3 scaling")
    # The slowest frequencies are divided by the whole factor; nothing is divided by more.
    factor = float(factors.max())
    low, high = _LLAMA3_LOW_FREQ_FACTOR, _LLAMA3_HIGH_FREQ_FACTOR
    expected = llama3_factors(theta, 2 * factors.size, factor, low, high, original)
    if not np.allclose(factors, expected, rtol=_FACTOR_TOLERANCE, atol=0.0):
        pair = int(np.argmax(np.abs(factors / expected - 1.0)))
        raise ValueError(
            f"{where}: rope_freqs.weight is not llama3 scaling with factor {factor:g}, low {low:g}, high {high:g}, "
            f"original length {original}: pair {pair} is divided by {factors[pair]:g} instead of {expected[pair]:g}"
        )
    return RopeScaling(
        kind="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position=original
    )


def llama3_factors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original: int
) -> NDArray[np.float64]:
    """Divisor of each pair's frequency under llama3 scaling, [head_dim / 2].

    Waves longer than original / low are divided by `factor`, those shorter than original / high not at all, and between
    the two the frequency goes over linearly.
    """
    frequency = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    wavelength = 2.0 * math.pi / frequency
    share = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)  # of the undivided frequency
    return np.asarray(1.0 / ((1.0 - share) / factor + share))
