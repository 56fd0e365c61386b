"""Llama: LlamaForCausalLM folders and GGUF architecture "llama". Also the parts that its descendants share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsrv._core import ModelSpec, expected_weights
from llmsrv.models.blueprint import Blueprint, WeightSource
from llmsrv.models.config_reader import ConfigReader
from llmsrv.models.rope import rope_from_config, rope_from_gguf
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.mapped_file import StoredTensor

ARCHITECTURE = "LlamaForCausalLM"

# Every layer has at least nine tensors, so a larger count is a mistake; it would make a table of absurd size.
MAX_LAYERS = 4096

# Our weight names → theirs. {i} is the layer.
HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.q_bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k_bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v_bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.o": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down": "model.layers.{i}.mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "layers.{i}.attn_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.q": "blk.{i}.attn_q.weight",
    "layers.{i}.k": "blk.{i}.attn_k.weight",
    "layers.{i}.v": "blk.{i}.attn_v.weight",
    "layers.{i}.q_bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k_bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v_bias": "blk.{i}.attn_v.bias",
    "layers.{i}.o": "blk.{i}.attn_output.weight",
    "layers.{i}.ffn_norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.down": "blk.{i}.ffn_down.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
}

# Keys of config.json that do not change what is computed for a prompt, or that other parts of the program read.
HARMLESS_KEYS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "hidden_dropout",
        "initializer_range",
        "is_llama_config",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "resid_pdrop",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
HARMLESS_PREFIXES = ("_", "unsloth")


def blueprint_from_config(config: ConfigReader, tensors: Mapping[str, StoredTensor]) -> Blueprint:
    """LlamaForCausalLM. `attention_bias` means biases of q, k and v here; one of the output projection is refused."""
    config.require("mlp_bias", False, "biases of the feed-forward layers are not supported")
    config.require("rope_interleaved", False, "interleaved RoPE is not supported in config.json")
    fields = dimensions_from_config(config)
    fields["qkv_bias"] = config.flag("attention_bias", False)
    return finish_config(config, ARCHITECTURE, fields, tensors)


def dimensions_from_config(config: ConfigReader) -> dict[str, Any]:
    """The ModelSpec fields that Llama and its descendants write in the same way."""
    config.require("hidden_act", "silu", "only silu is supported")
    config.require("quantization_config", None, "quantized safetensors are not supported; use a GGUF file")
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    theta, scaling = rope_from_config(config)
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": config.integer("intermediate_size"),
        "num_layers": config.integer("num_hidden_layers", high=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", heads),
        "head_dim": config.integer("head_dim", max(1, hidden // heads)),
        "max_position": config.integer("max_position_embeddings", 2048),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6, low=1e-12, high=1.0),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def finish_config(
    config: ConfigReader,
    architecture: str,
    fields: dict[str, Any],
    tensors: Mapping[str, StoredTensor],
    names: Mapping[str, str] = HF_NAMES,
    norm_offset: float = 0.0,
) -> Blueprint:
    """Checks that no key was overlooked and maps the weights of a Hugging Face folder."""
    config.finish(HARMLESS_KEYS, HARMLESS_PREFIXES)
    spec = make_spec(config.where, fields)
    # Old checkpoints carry the RoPE frequencies, which follow from rope_theta.
    derived = frozenset(name for name in tensors if name.endswith("rotary_emb.inv_freq"))
    copies = {}
    if spec.tied_embeddings and "lm_head.weight" in tensors:
        copies["lm_head.weight"] = names["embed"]
    sources = map_sources(spec, names, norm_offset=norm_offset)
    return Blueprint(architecture, spec, sources, derived, copies)


def blueprint_from_gguf(file: GgufFile) -> Blueprint:
    """GGUF "llama". Its converter reorders the rows of q and k for interleaved RoPE; the order here undoes that."""
    metadata = ConfigReader(file.metadata, str(file.path))
    fields = dimensions_from_gguf(file, metadata, "llama")
    fields["qkv_bias"] = "blk.0.attn_q.bias" in file.tensors
    spec = finish_gguf(metadata, "llama", fields)
    q_rows = uninterleaved_rows(spec.num_heads, spec.head_dim)
    k_rows = uninterleaved_rows(spec.num_kv_heads, spec.head_dim)
    orders = {"q": q_rows, "q_bias": q_rows, "k": k_rows, "k_bias": k_rows}
    sources = map_sources(spec, GGUF_NAMES, lambda part: orders.get(part))
    return Blueprint(ARCHITECTURE, spec, sources, gguf_derived(file))


def dimensions_from_gguf(file: GgufFile, metadata: ConfigReader, prefix: str) -> dict[str, Any]:
    """The ModelSpec fields from GGUF's keys, which begin with the architecture's name."""
    refuse_unsupported_gguf(metadata, prefix)
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise ValueError(f"{file.path}: the tensor token_embd.weight is missing")
    heads = metadata.integer(f"{prefix}.attention.head_count")
    hidden = metadata.integer(f"{prefix}.embedding_length")
    head_dim = metadata.integer(f"{prefix}.attention.key_length", max(1, hidden // heads))
    metadata.require(f"{prefix}.attention.value_length", head_dim, "must equal the key length")
    theta, scaling = rope_from_gguf(metadata, prefix, head_dim, _freq_factors(file, head_dim))
    window_key = f"{prefix}.attention.sliding_window"
    return {
        "vocab_size": metadata.integer(f"{prefix}.vocab_size", embed.shape[0]),
        "hidden_size": hidden,
        "intermediate_size": metadata.integer(f"{prefix}.feed_forward_length"),
        "num_layers": metadata.integer(f"{prefix}.block_count", high=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": metadata.integer(f"{prefix}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position": metadata.integer(f"{prefix}.context_length"),
        "rms_norm_eps": metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon", low=1e-12, high=1.0),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tied_embeddings": "output.weight" not in file.tensors,
        "sliding_window": metadata.integer(window_key) if metadata.has(window_key) else None,
    }


def refuse_unsupported_gguf(metadata: ConfigReader, prefix: str) -> None:
    """Refuses keys of this architecture that have a value other than the one that switches them off."""
    metadata.require("split.count", 1, "a file split into several is not supported; merge it into one")
    metadata.require(f"{prefix}.expert_count", 0, "mixtures of experts are not supported")
    metadata.require(f"{prefix}.expert_used_count", 0, "mixtures of experts are not supported")
    metadata.require(f"{prefix}.use_parallel_residual", False, "parallel residuals are not supported")
    metadata.require(f"{prefix}.attention.causal", True, "only causal attention is supported")
    metadata.require(f"{prefix}.attention.max_alibi_bias", 0.0, "ALiBi is not supported")
    metadata.require(f"{prefix}.attention.clamp_kqv", 0.0, "clamping of q, k and v is not supported")
    metadata.require(f"{prefix}.pooling_type", 0, "pooling is not supported")
    metadata.require(f"{prefix}.tensor_data_layout", "Meta AI original pth", "this order of rows is not supported")


def finish_gguf(metadata: ConfigReader, prefix: str, fields: dict[str, Any]) -> ModelSpec:
    """Checks that no key of the architecture was overlooked."""
    trained_length = f"{prefix}.rope.scaling.original_context_length"
    harmless = {f"{prefix}.rope.scaling.finetuned", trained_length}
    metadata.finish(harmless, ("general.", "tokenizer.", "split.", "quantize.", "adapter."))
    return make_spec(metadata.where, fields)


def gguf_derived(file: GgufFile) -> frozenset[str]:
    """Tensors of a GGUF file that the spec already accounts for."""
    return frozenset({"rope_freqs.weight"} & file.tensors.keys())


def make_spec(where: str, fields: dict[str, Any]) -> ModelSpec:
    """The spec, or a ValueError that says which file describes an impossible model."""
    try:
        return ModelSpec(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def map_sources(
    spec: ModelSpec,
    names: Mapping[str, str],
    row_order: Callable[[str], NDArray[np.int64] | None] = lambda part: None,
    norm_offset: float = 0.0,
) -> dict[str, WeightSource]:
    """Where each weight of the model comes from. `row_order` maps the last part of our name, for example "q".

    `norm_offset` is what the stored weights of norms lack.
    """
    sources = {}
    for weight in expected_weights(spec):
        layer, part = _split_layer(weight)
        pattern = f"layers.{{i}}.{part}" if layer else part
        offset = norm_offset if part.endswith("norm") else 0.0
        sources[weight] = WeightSource(names[pattern].replace("{i}", layer), row_order(part), offset)
    return sources


def uninterleaved_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """The row of a GGUF "llama" q or k matrix that holds each row of the original.

    In the original, RoPE turns row j of a head together with row j + head_dim / 2; the file stores the two next to each
    other, as rows 2j and 2j + 1.
    """
    within = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(head_dim)  # 0, 2, 4, ..., 1, 3, 5, ...
    return np.asarray(np.arange(heads)[:, None] * head_dim + within).reshape(heads * head_dim)


def _split_layer(weight: str) -> tuple[str, str]:
    """ "layers.3.q" → ("3", "q"); "embed" → ("", "embed")."""
    if not weight.startswith("layers."):
        return "", weight
    _, layer, part = weight.split(".")
    return layer, part


def _freq_factors(file: GgufFile, head_dim: int) -> NDArray[np.float32] | None:
    """What `rope_freqs.weight` divides each frequency by, [head_dim / 2]; None when the file has none."""
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.format != "f32" or tensor.shape != (head_dim // 2,):
        found = f"{tensor.format} {list(tensor.shape)}"
        raise ValueError(f"{file.path}: rope_freqs.weight is {found} instead of f32 [{head_dim // 2}]")
    return np.array(np.frombuffer(file.data(tensor.name), np.float32), np.float32)
