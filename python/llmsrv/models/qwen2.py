"""Qwen2 and Qwen2.5: Qwen2ForCausalLM folders and GGUF architecture "qwen2". Llama with biases of q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsrv.models.blueprint import Blueprint
from llmsrv.models.config_reader import ConfigReader
from llmsrv.models.llama import (
    GGUF_NAMES,
    dimensions_from_config,
    dimensions_from_gguf,
    finish_config,
    finish_gguf,
    gguf_derived,
    map_sources,
)
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.mapped_file import StoredTensor

ARCHITECTURE = "Qwen2ForCausalLM"

_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28
_DEFAULT_KV_HEADS = 32
_DEFAULT_MAX_POSITION = 32768


def blueprint_from_config(config: ConfigReader, tensors: Mapping[str, StoredTensor]) -> Blueprint:
    """Qwen2ForCausalLM. The sliding window counts only with `use_sliding_window`."""
    config.require("use_mrope", False, "multimodal RoPE is not supported")
    fields = dimensions_from_config(config)
    fields["qkv_bias"] = True
    fields["max_position"] = config.integer("max_position_embeddings", _DEFAULT_MAX_POSITION)
    if not config.has("num_key_value_heads") and not config.says_null("num_key_value_heads"):
        fields["num_kv_heads"] = _DEFAULT_KV_HEADS
    fields |= _windows(config, fields["num_layers"])
    return finish_config(config, ARCHITECTURE, fields, tensors)


def blueprint_from_gguf(file: GgufFile) -> Blueprint:
    """GGUF "qwen2". Its rows of q and k are in the original order."""
    metadata = ConfigReader(file.metadata, str(file.path))
    fields = dimensions_from_gguf(file, metadata, "qwen2")
    fields["qkv_bias"] = True
    spec = finish_gguf(metadata, "qwen2", fields)
    return Blueprint(ARCHITECTURE, spec, map_sources(spec, GGUF_NAMES), gguf_derived(file))


def _windows(config: ConfigReader, num_layers: int) -> dict[str, Any]:
    """By `layer_types`, or from layer `max_window_layers` on."""
    enabled = config.flag("use_sliding_window", False) and not config.says_null("sliding_window")
    window = config.integer("sliding_window", _DEFAULT_WINDOW)
    first = config.integer("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, low=0)
    kinds = config.texts("layer_types")
    if not kinds:
        kinds = ["sliding_attention" if enabled and layer >= first else "full_attention" for layer in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise config.error("layer_types", "needs one of full_attention and sliding_attention for each layer")
    windowed = [kind == "sliding_attention" for kind in kinds]
    if not any(windowed):
        return {}
    if not enabled:
        raise config.error("layer_types", "asks for a sliding window that use_sliding_window switches off")
    return {"sliding_window": window, "windowed_layers": windowed}
