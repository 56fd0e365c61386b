"""Gemma 3 without its vision tower: Gemma3ForCausalLM folders and GGUF architecture "gemma3"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmsrv._core import RopeScaling
from llmsrv.models.blueprint import Blueprint
from llmsrv.models.config_reader import ConfigReader
from llmsrv.models.llama import (
    GGUF_NAMES,
    HF_NAMES,
    MAX_LAYERS,
    dimensions_from_gguf,
    finish_config,
    finish_gguf,
    map_sources,
)
from llmsrv.models.rope import read_rope, read_theta
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.mapped_file import StoredTensor

ARCHITECTURE = "Gemma3ForCausalLM"

_HF_NAMES = HF_NAMES | {
    "layers.{i}.q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.attn_post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "layers.{i}.ffn_post_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}
_GGUF_NAMES = GGUF_NAMES | {
    "layers.{i}.q_norm": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.attn_post_norm": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.ffn_post_norm": "blk.{i}.post_ffw_norm.weight",
}
# Hugging Face folders store how far each norm's weight is from one; GGUF files store the weight.
_HF_NORM_OFFSET = 1.0

# What the original implementation takes for absent keys. GGUF files have no keys for most of it.
_DEFAULT_WINDOW = 4096
_DEFAULT_PATTERN = 6  # every sixth layer sees everything
_DEFAULT_KV_HEADS = 4
_DEFAULT_HEAD_DIM = 256
_DEFAULT_SCALAR = 256
_DEFAULT_MAX_POSITION = 131072
_DEFAULT_THETA = 1_000_000.0
_DEFAULT_WINDOW_THETA = 10_000.0
# The layers of the 27B model, the only one whose attention is not scaled by its head's size.
_GGUF_27B_LAYERS = 62

_NO_SOFT_CAP = "soft caps are not supported"


def blueprint_from_config(config: ConfigReader, tensors: Mapping[str, StoredTensor]) -> Blueprint:
    """Gemma3ForCausalLM."""
    for key in ("hidden_activation", "hidden_act"):
        config.require(key, "gelu_pytorch_tanh", "only gelu_pytorch_tanh is supported")
    config.require("quantization_config", None, "quantized safetensors are not supported; use a GGUF file")
    config.require("attention_bias", False, "biases of the attention layers are not supported")
    config.require("use_bidirectional_attention", False, "only causal attention is supported")
    config.require("attn_logit_softcapping", None, _NO_SOFT_CAP)
    config.require("final_logit_softcapping", None, _NO_SOFT_CAP)
    hidden = config.integer("hidden_size")
    layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    fields: dict[str, Any] = {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": config.integer("intermediate_size"),
        "num_layers": layers,
        "num_heads": config.integer("num_attention_heads"),
        "num_kv_heads": config.integer("num_key_value_heads", _DEFAULT_KV_HEADS),
        "head_dim": config.integer("head_dim", _DEFAULT_HEAD_DIM),
        "max_position": config.integer("max_position_embeddings", _DEFAULT_MAX_POSITION),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6, low=1e-12, high=1.0),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "attention_scale": config.number("query_pre_attn_scalar", _DEFAULT_SCALAR, low=1e-6, high=1e6) ** -0.5,
        **_windows_from_config(config, layers),
        **_rope_from_config(config),
        **_common(hidden),
    }
    return finish_config(config, ARCHITECTURE, fields, tensors, _HF_NAMES, norm_offset=_HF_NORM_OFFSET)


def blueprint_from_gguf(file: GgufFile) -> Blueprint:
    """GGUF "gemma3". Its rows of q and k are in the original order."""
    metadata = ConfigReader(file.metadata, str(file.path))
    metadata.require("gemma3.attn_logit_softcapping", 0.0, _NO_SOFT_CAP)
    metadata.require("gemma3.final_logit_softcapping", 0.0, _NO_SOFT_CAP)
    fields = dimensions_from_gguf(file, metadata, "gemma3")
    fields |= _common(fields["hidden_size"])
    fields["rope_theta"] = read_theta(metadata, "gemma3.rope.freq_base")  # required: programs differ in its default
    fields["window_rope_theta"] = read_theta(metadata, "gemma3.rope.freq_base_swa", _DEFAULT_WINDOW_THETA)
    pattern = metadata.integer("gemma3.attention.sliding_window_pattern", _DEFAULT_PATTERN, high=MAX_LAYERS)
    if fields["sliding_window"] is not None:
        fields["windowed_layers"] = _pattern(fields["num_layers"], pattern)
    if fields["num_layers"] == _GGUF_27B_LAYERS:
        fields["attention_scale"] = (fields["hidden_size"] // fields["num_heads"]) ** -0.5
    spec = finish_gguf(metadata, "gemma3", fields)
    return Blueprint(ARCHITECTURE, spec, map_sources(spec, _GGUF_NAMES))


def _common(hidden_size: int) -> dict[str, Any]:
    """What all Gemma 3 models have in common."""
    return {
        "embedding_scale": math.sqrt(hidden_size),
        "gate": "gelu_tanh",
        "head_norms": True,
        "post_norms": True,
    }


def _windows_from_config(config: ConfigReader, layers: int) -> dict[str, Any]:
    """`layer_types`, or every n-th layer without a window by `sliding_window_pattern`."""
    if config.says_null("sliding_window"):
        raise config.error("sliding_window", "needs an integer")
    window = config.integer("sliding_window", _DEFAULT_WINDOW)
    windowed = _pattern(layers, config.integer("sliding_window_pattern", _DEFAULT_PATTERN, high=MAX_LAYERS))
    kinds = config.texts("layer_types")
    if kinds:
        if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise config.error("layer_types", "needs one of full_attention and sliding_attention for each layer")
        windowed = [kind == "sliding_attention" for kind in kinds]
    return {"sliding_window": window, "windowed_layers": windowed}


def _pattern(layers: int, every: int) -> list[bool]:
    """Which layers have the window when each `every`-th has none."""
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _rope_from_config(config: ConfigReader) -> dict[str, Any]:
    """By kind of layer in `rope_parameters`; in older files two bases, and a scaling of the layers without a window."""
    theta = read_theta(config, "rope_theta", _DEFAULT_THETA)
    window_theta = read_theta(config, "rope_local_base_freq", _DEFAULT_WINDOW_THETA)
    scaling: RopeScaling | None = None
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise config.error("rope_scaling", "rope_parameters is there too; only one of the two can count")
    if config.has("rope_parameters"):
        where = f"{config.where}: rope_parameters"
        kinds = ConfigReader(config.section("rope_parameters"), where)
        full = ConfigReader(kinds.section("full_attention"), f"{where}: full_attention")
        sliding = ConfigReader(kinds.section("sliding_attention"), f"{where}: sliding_attention")
        kinds.finish(harmless=())
        theta, scaling = read_rope(full, theta)
        window_theta, window_scaling = read_rope(sliding, window_theta)
        if window_scaling is not None:
            raise sliding.error("rope_type", "scaling in layers with a window is not supported")
    elif config.has("rope_scaling"):
        rope = ConfigReader(config.section("rope_scaling"), f"{config.where}: rope_scaling")
        theta, scaling = read_rope(rope, theta)
    return {"rope_theta": theta, "rope_scaling": scaling, "window_rope_theta": window_theta}
