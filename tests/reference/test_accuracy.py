"""What packed weights and rounded activations cost on real text: KL divergence, perplexity, greedy agreement.

The yardstick is the exact arithmetic of the same file: its values as float32, float32 activations and cache. That this
path is transformers' is shown in test_smollm2.py, and here by the perplexity.

The text is the first chapter of "Alice's Adventures in Wonderland" by Lewis Carroll (1865, public domain), shortened.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hf_reference import THREADS, Ours, log_softmax, reference_logits
from transformers import AutoModelForCausalLM, GgufConfig

from llmsrv._core import Weights
from llmsrv.text.tokenizer import Tokenizer
from llmsrv.weights.load import inspect_model, load_weights
from llmsrv.weights.mapped_file import TensorReader

TEXT = Path(__file__).with_name("alice.txt").read_text()


@dataclass(frozen=True)
class Bound:
    """Over all positions: mean KL divergence from the exact distribution, least share of equal greedy tokens."""

    kl: float
    agreement: float


BOUNDS = {
    "q4_1": Bound(5e-3, 0.95),  # the demo's file as it is: its embedding table is q8_0
    "q4_0": Bound(5e-3, 0.95),
    "q8_0": Bound(5e-3, 0.95),
    "bf16": Bound(1e-3, 0.985),
}
CACHE_BOUNDS = {"bfloat16": Bound(2e-4, 0.99), "int8": Bound(3e-3, 0.95)}


@pytest.fixture(scope="module")
def files(smollm2_path):
    return inspect_model(smollm2_path)


@pytest.fixture(scope="module")
def ids(files):
    found = Tokenizer.from_gguf(files.tokenizer).encode(TEXT)
    assert len(found) > 2000
    return found


def checkpoint(files, format_name):
    """The weights by our names as (format, shape, bytes), with every matrix in one format, made by the gguf package."""
    quantization = gguf.GGMLQuantizationType[format_name.upper()]
    weights = {}
    with TensorReader() as reader:
        for name, source in files.blueprint.sources.items():
            tensor = files.tensors[source.tensor]
            kind = gguf.GGMLQuantizationType[tensor.format.upper()]
            rows = np.frombuffer(reader.data(tensor), np.uint8).reshape(*tensor.shape[:-1], -1)
            values = gguf.quants.dequantize(rows, kind)
            if source.rows is not None:
                values = values[source.rows]
            if len(tensor.shape) == 1:
                weights[name] = ("f32", tensor.shape, values.astype(np.float32).tobytes())
            else:
                weights[name] = (format_name, tensor.shape, gguf.quants.quantize(values, quantization).tobytes())
    return weights


def load(files, format_name, dtype):
    if format_name == files.quantization.lower():
        return load_weights(files, dtype=dtype, threads=THREADS)
    stored = checkpoint(files, format_name)
    sources = {name: source for name, (source, _, _) in stored.items()}
    weights = Weights(files.spec, dtype=dtype, threads=THREADS, sources=sources)
    for name, (source, shape, data) in stored.items():
        weights.set(name, source, shape, data)
    return weights


def perplexity(logprobs, ids):
    return float(np.exp(-logprobs[np.arange(len(ids) - 1), ids[1:]].mean()))


def assert_within(bound, found, exact, ids, what):
    kl = float((np.exp(exact) * (exact - found)).sum(axis=1).mean())
    agreement = float((exact.argmax(axis=1) == found.argmax(axis=1)).mean())
    figures = f"KL {kl:.2e}, {agreement:.2%} equal, perplexity {perplexity(found, ids):.3f}"
    print(f"{what}: {figures}, exact {perplexity(exact, ids):.3f}")
    assert kl <= bound.kl, figures
    assert agreement >= bound.agreement, figures
    assert perplexity(found, ids) == pytest.approx(perplexity(exact, ids), rel=0.01)


@pytest.mark.parametrize("format_name", BOUNDS)
def test_divergence_from_exact_arithmetic(files, ids, format_name):
    exact = log_softmax(Ours(load(files, format_name, "float32"), "float32").logits(ids))
    found = log_softmax(Ours(load(files, format_name, "auto"), "bfloat16").logits(ids))
    assert_within(BOUNDS[format_name], found, exact, ids, format_name)


def test_divergence_of_cache_types(files, ids):
    """Only the keys and values are rounded."""
    some = ids[:768]
    weights = load(files, "q4_1", "float32")
    exact = log_softmax(Ours(weights, "float32").logits(some))
    for kv_cache_dtype, bound in CACHE_BOUNDS.items():
        found = log_softmax(Ours(weights, kv_cache_dtype).logits(some))
        assert_within(bound, found, exact, some, f"cache in {kv_cache_dtype}")


def test_exact_arithmetic_has_the_reference_perplexity(files, ids, smollm2_path):
    reference = AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()
    some = ids[:512]
    expected = perplexity(log_softmax(reference_logits(reference, some)), some)
    ours = perplexity(log_softmax(Ours(load(files, "q4_1", "float32"), "float32").logits(some)), some)
    assert ours == pytest.approx(expected, rel=1e-4)
