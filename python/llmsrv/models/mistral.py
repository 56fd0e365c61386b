"""Mistral: MistralForCausalLM folders. Llama with a sliding window in all layers. Its GGUF files say "llama"."""

from __future__ import annotations

from collections.abc import Mapping

from llmsrv.models.blueprint import Blueprint
from llmsrv.models.config_reader import ConfigReader
from llmsrv.models.llama import dimensions_from_config, finish_config
from llmsrv.weights.mapped_file import StoredTensor

ARCHITECTURE = "MistralForCausalLM"

# What the original implementation takes when the key is absent; null means no window.
_DEFAULT_WINDOW = 4096
_DEFAULT_KV_HEADS = 8


def blueprint_from_config(config: ConfigReader, tensors: Mapping[str, StoredTensor]) -> Blueprint:
    """MistralForCausalLM."""
    fields = dimensions_from_config(config)
    if not config.has("num_key_value_heads") and not config.says_null("num_key_value_heads"):
        fields["num_kv_heads"] = _DEFAULT_KV_HEADS
    if not config.says_null("sliding_window"):
        fields["sliding_window"] = config.integer("sliding_window", _DEFAULT_WINDOW)
    return finish_config(config, ARCHITECTURE, fields, tensors)
