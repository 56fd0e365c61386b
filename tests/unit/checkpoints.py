"""Writes tiny random checkpoints of our own making: Hugging Face folders without any library of theirs."""

import json

import numpy as np
from safetensors.numpy import save_file

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def tiny_tensors(config=TINY, seed=0, dtype=np.float32):
    """Random weights by Hugging Face names."""
    rng = np.random.default_rng(seed)
    hidden, ff = config["hidden_size"], config["intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (hidden, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, hidden),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (ff, hidden),
            prefix + "mlp.up_proj.weight": (ff, hidden),
            prefix + "mlp.down_proj.weight": (hidden, ff),
        }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: (0.3 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}


def write_folder(folder, tensors, config=TINY, **files):
    """A model folder; `files` are further JSON files by their stem."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    for stem, value in {"config": config, **files}.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder
