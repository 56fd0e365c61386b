"""SmolLM2-135M, the whole way from the GGUF file: our float32 and bfloat16 against transformers in float32.

transformers unpacks the same quantized file to float32, so both sides start from the same numbers.
"""

import numpy as np
import pytest
import torch
from hf_reference import check_generated, check_logprobs, continue_greedily, load_ours
from transformers import AutoModelForCausalLM, GgufConfig

from llmsrv.text.tokenizer import Tokenizer
from llmsrv.weights.load import inspect_model

GENERATED = 64
# How far the reference's own best logit may lie above our choice. Rounding the weights to bfloat16, in transformers
# too, changes choices that are up to 0.06 apart; rounding activations and queries as well, up to 0.104.
NEAR_TIE = 0.15

QUESTIONS = [
    "Are dogs real?",
    "Write a haiku about rain.",
    "What is the capital of France?",
    "Explain photosynthesis to a child.",
    "List three primary colours.",
    "How do I boil an egg?",
    "What is 17 plus 25?",
    "Write a Python function that reverses a string.",
    "Who was Marie Curie?",
    "Why is the sky blue?",
    "Tell me a short story about a fox.",
    "What is the largest planet?",
    "Translate 'good morning' into French.",
    "Give me three tips for better sleep.",
    "What does HTTP stand for?",
    "Write an email that asks for a day off.",
]
TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "SELECT name, age FROM users WHERE",
    "Le chat est sur la table et",
]
PROMPTS = [
    *(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS),
    *TEXTS,
]


@pytest.fixture(scope="module")
def prompts(smollm2_path):
    files = inspect_model(smollm2_path)
    tokenizer = Tokenizer.from_gguf(files.tokenizer)
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def reference(smollm2_path):
    return AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()


@pytest.fixture(scope="module")
def continued(reference, prompts):
    return continue_greedily(reference, prompts, GENERATED)


@pytest.fixture(scope="module")
def ours_float32(smollm2_path):
    return load_ours(smollm2_path, "float32")


def test_float32_logprobs(ours_float32, continued):
    check_logprobs(ours_float32, continued)


def test_float32_engine_generates_the_reference_tokens(ours_float32, continued, prompts):
    check_generated(ours_float32, prompts, continued, GENERATED)


def test_bfloat16_greedy_tokens(smollm2_path, continued, prompts):
    """At least 99 % equal argmax over the generated positions; every difference is a near tie in the reference."""
    ours = load_ours(smollm2_path, "bfloat16")
    equal = 0
    gaps = []
    for prompt, (sequence, expected) in zip(prompts, continued, strict=True):
        generating = slice(len(prompt) - 1, len(sequence) - 1)
        found = ours.logits(sequence)[generating].argmax(axis=1)
        rows = expected[generating]
        best = rows.argmax(axis=1)
        equal += int((found == best).sum())
        gaps += (rows.max(axis=1) - rows[np.arange(len(rows)), found])[found != best].tolist()
    positions = GENERATED * len(prompts)
    print(f"{equal} of {positions} equal; logit gaps of the others: {sorted(round(gap, 4) for gap in gaps)}")
    assert equal >= 0.99 * positions
    assert max(gaps, default=0.0) <= NEAR_TIE
