"""Gemma-3-270M, the whole way from the Q4_K_M file: our float32, bfloat16 and native formats against transformers.

The reference is transformers' own model in float32 with the published configuration, filled with what the gguf
package unpacks: transformers reads this file too, to the same numbers, but takes half a minute for its vocabulary.
"""

import gguf
import numpy as np
import pytest
import torch
from hf_reference import (
    check_generated,
    check_logprobs,
    continue_greedily,
    load_ours,
    log_softmax,
    reference_generate,
)
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from llmsrv.text.tokenizer import Tokenizer
from llmsrv.weights.gguf import GgufFile
from llmsrv.weights.load import inspect_model

GENERATED = 16
NEAR_TIE = 0.25  # how far the reference's own best logit may lie above the choice of weights in bfloat16

# google/gemma-3-270m as published; everything else is the default of the architecture.
CONFIG = Gemma3TextConfig(
    vocab_size=262144,
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    query_pre_attn_scalar=256,
    sliding_window=512,
    max_position_embeddings=32768,
)
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "SELECT name, age FROM users WHERE",
    "Le chat est sur la table et",
    "In 1969, the first humans",
    "Die Hauptstadt von Deutschland ist Berlin, und die von Österreich",
    "日本の首都は",
    "A recipe for pancakes:\n\n1.",
]
# More than two windows, and a question that only what stands before the last window answers.
LONG = (
    "The name of the ship was Borealis. "
    + "".join(f"On day {day} the crew saw {day % 7} whales and {day % 5} seals near the ice. " for day in range(1, 61))
    + "The name of the ship was"
)


def reference_name(name):
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}"


def reference_model(path):
    values = {}
    with GgufFile(path) as file:
        for name, tensor in file.tensors.items():
            kind = gguf.GGMLQuantizationType[tensor.format.upper()]
            value = gguf.quants.dequantize(np.frombuffer(file.data(name), np.uint8), kind).reshape(tensor.shape)
            if name.endswith("norm.weight"):
                value = value - 1.0  # transformers adds it again
            values[reference_name(name)] = torch.from_numpy(np.array(value, np.float32))
    values["lm_head.weight"] = values["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = Gemma3ForCausalLM(CONFIG)
    model.to_empty(device="cpu")
    model.init_weights()  # the tables of RoPE and the embedding's scale, which no file holds
    model.load_state_dict(values, assign=True)
    return model.eval()


@pytest.fixture(scope="module")
def reference(gemma3_path):
    return reference_model(gemma3_path)


@pytest.fixture(scope="module")
def tokenizer(gemma3_path):
    return Tokenizer.from_gguf(inspect_model(gemma3_path).tokenizer)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def continued(reference, prompts):
    return continue_greedily(reference, prompts, GENERATED)


@pytest.fixture(scope="module")
def ours_float32(gemma3_path):
    return load_ours(gemma3_path, "float32")


def test_float32_logprobs(ours_float32, continued):
    check_logprobs(ours_float32, continued)


def test_float32_engine_generates_the_reference_tokens(ours_float32, continued, prompts):
    check_generated(ours_float32, prompts, continued, GENERATED)


def test_float32_engine_behind_two_windows(ours_float32, reference, tokenizer):
    prompt = tokenizer.encode(LONG)
    assert len(prompt) > 2 * CONFIG.sliding_window
    (tokens,) = ours_float32.generate([prompt], GENERATED)
    assert [tokens] == reference_generate(reference, [prompt], GENERATED)
    assert tokenizer.decode(tokens).startswith(" Borealis")


@pytest.mark.parametrize(("dtype", "most_kl"), [("bfloat16", 1e-3), ("auto", 5e-3)])
def test_other_dtypes_are_near(gemma3_path, continued, prompts, dtype, most_kl):
    """Bfloat16, and the file's own formats with activations in 8 bits: how whole distributions and choices differ."""
    ours = load_ours(gemma3_path, dtype)
    divergences = []
    gaps = []
    equal = 0
    for prompt, (sequence, expected) in zip(prompts, continued, strict=True):
        rows = slice(1, len(sequence) - 1)  # what follows <bos> alone is anyone's guess
        found, wanted = log_softmax(ours.logits(sequence)[rows]), log_softmax(expected[rows])
        divergences += (np.exp(wanted) * (wanted - found)).sum(axis=1).tolist()
        generating = slice(len(prompt) - 2, None)
        choice, best = found[generating].argmax(axis=1), wanted[generating].argmax(axis=1)
        equal += int((choice == best).sum())
        gaps += (wanted[generating].max(axis=1) - wanted[generating][np.arange(len(choice)), choice]).tolist()
    print(
        f"{dtype}: KL {np.mean(divergences):.2e} on average, {np.max(divergences):.2e} at most, over {len(divergences)}"
    )
    print(f"{equal} of {len(gaps)} greedy tokens equal; the largest gap of another one is {max(gaps):.4f}")
    assert np.mean(divergences) <= most_kl
    assert equal >= 0.95 * len(gaps)
    assert max(gaps) <= NEAR_TIE
