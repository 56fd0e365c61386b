"""Tiny seeded checkpoints of every architecture: the same logits and the same greedy tokens as transformers.

All parameters are random, norms and biases too, so that a weight in the wrong place cannot go unnoticed, and logits
are of the order of one, so that the tolerance means something.
"""

import gguf
import numpy as np
import pytest
import torch
from hf_reference import load_ours, reference_logits
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

TOLERANCE = 1e-4
SHAPE = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOWED_QWEN2 = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 0}
# Six layers, so that the usual pattern ends in one without a window; its own base of RoPE in each kind.
GEMMA3 = SHAPE | {
    "num_hidden_layers": 6,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}
GEMMA3_TYPES = ["full_attention", "sliding_attention", "full_attention"]
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "llama tied": (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama, all heads have keys": (LlamaForCausalLM, LlamaConfig(**SHAPE | {"num_key_value_heads": 4})),
    "llama, wide heads": (LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=32)),
    "llama3 scaling": (LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE)),
    "linear scaling": (
        LlamaForCausalLM,
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None)),
    "mistral window": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=24)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen2 tied": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen2 window": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, **WINDOWED_QWEN2)),
    "qwen2 window in some layers": (
        Qwen2ForCausalLM,
        Qwen2Config(**SHAPE, **WINDOWED_QWEN2 | {"max_window_layers": 2}),
    ),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**GEMMA3)),
    "gemma3, head of its own": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SHAPE, head_dim=256, layer_types=GEMMA3_TYPES, tie_word_embeddings=False),
    ),
    "gemma3, as files have it": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SHAPE | {"num_hidden_layers": 6}, head_dim=32, query_pre_attn_scalar=32, sliding_window=24),
    ),
}
PROMPT = np.random.default_rng(11).integers(3, 160, 90).tolist()


def make_model(name):
    model_class, config = MODELS[name]
    torch.manual_seed(len(name))
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.25)
            # Gemma's norms are stored as their distance from one.
            if "norm" in parameter_name and model_class is not Gemma3ForCausalLM:
                parameter.add_(1.0)
    return model


def assert_same(model, path):
    """Logits of a prompt longer than every window, and the greedy tokens that follow it."""
    ours = load_ours(path)
    with torch.no_grad():
        generated = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()
    expected = reference_logits(model, generated)
    found = ours.logits(generated)
    assert expected.std() > 0.5
    assert np.abs(found - expected).max() <= TOLERANCE
    # By induction these are the tokens that greedy decoding gives.
    assert found[len(PROMPT) - 1 : -1].argmax(axis=1).tolist() == generated[len(PROMPT) :]


@pytest.mark.parametrize("name", MODELS)
def test_folder(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path)
    assert_same(model, tmp_path)


def test_sharded_folder(tmp_path):
    model = make_model("llama3 scaling")
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    assert_same(model, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folder_of_16_bit_floats(dtype, tmp_path):
    """Both sides widen the same stored values to float32."""
    for name in ("qwen2", "gemma3"):
        model = make_model(name).to(dtype)
        model.save_pretrained(tmp_path / name)
        assert_same(type(model).from_pretrained(tmp_path / name, dtype=torch.float32).eval(), tmp_path / name)


@pytest.mark.parametrize("name", ["llama3 scaling", "mistral window"])
def test_a_forgotten_feature_would_show(name, tmp_path):
    """The comparison has teeth: without RoPE scaling, or without the window, logits differ by far more."""
    model = make_model(name)
    expected = reference_logits(model, PROMPT)
    if name == "mistral window":
        model.config.sliding_window = None
    else:
        model.config.rope_parameters = {"rope_type": "default", "rope_theta": 5000.0}
    model.save_pretrained(tmp_path)
    assert np.abs(load_ours(tmp_path).logits(PROMPT) - expected).max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"query_pre_attn_scalar": 32},
        {"layer_types": ["sliding_attention"] * 6},
        {"rope_parameters": GEMMA3["rope_parameters"] | {"sliding_attention": {"rope_theta": 50000.0}}},
        {"rope_parameters": GEMMA3["rope_parameters"] | {"full_attention": {"rope_theta": 50000.0}}},
    ],
    ids=["attention scale", "layer types", "base of RoPE", "scaling of RoPE"],
)
def test_a_forgotten_part_of_gemma3_would_show(change, tmp_path):
    model = make_model("gemma3")
    expected = reference_logits(model, PROMPT)
    for key, value in change.items():
        setattr(model.config, key, value)
    model.save_pretrained(tmp_path)
    assert np.abs(load_ours(tmp_path).logits(PROMPT) - expected).max() > 100 * TOLERANCE


# From our tests' side: Hugging Face names → GGUF names, as the usual converter has them.
GGUF_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA3_PARTS = GGUF_PARTS | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name, parts):
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{parts['.'.join(part)]}.{kind}"


def interleave(value, heads):
    """What the converter does to q and k of "llama": the halves of each head, row by row in turn."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def write_gguf(path, model, architecture, quantize):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture == "gemma3":
        writer.add_key_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    parts = GEMMA3_PARTS if architecture == "gemma3" else GGUF_PARTS
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        value = tensor.float().numpy()
        count = next((count for part, count in heads.items() if part in name), None)
        if architecture == "llama" and count:
            value = interleave(value, count)
        if architecture == "gemma3" and "norm" in name:
            value = value + 1.0
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if quantize and value.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name, parts), gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name, parts), np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_to_q8_0(model):
    """Gives every matrix the values that its Q8_0 form stands for."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                kind = gguf.GGMLQuantizationType.Q8_0
                packed = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("llama", "llama"),
        ("llama tied", "llama"),
        ("qwen2", "qwen2"),
        ("qwen2 tied", "qwen2"),
        ("gemma3, as files have it", "gemma3"),
    ],
)
def test_gguf(name, architecture, quantize, tmp_path):
    model = make_model(name)
    if quantize:
        round_to_q8_0(model)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, architecture, quantize)
    assert_same(model, path)
