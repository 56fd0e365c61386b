"""What packed weights and rounded activations cost on real text: KL divergence, perplexity, greedy agreement.

The yardstick is the exact arithmetic of the same file: its values as float32, float32 activations and cache. That this
is what transformers computes is shown in test_smollm2.py and test_gemma3.py, and here by the perplexity, against what
store_perplexities.py got from transformers.

The text is the first chapter of "Alice's Adventures in Wonderland" by Lewis Carroll (1865, public domain), shortened.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from divergence import divergences
from hf_reference import THREADS

from llmsrv._core import Weights
from llmsrv.text.tokenizer import Tokenizer
from llmsrv.weights.load import inspect_model, load_weights
from llmsrv.weights.mapped_file import TensorReader

TEXT = Path(__file__).with_name("alice.txt").read_text()
STORED = json.loads(Path(__file__).with_name("perplexities.json").read_text())


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
GEMMA3_BOUND = Bound(5e-3, 0.95)
CACHE_BOUNDS = {"bfloat16": Bound(2e-4, 0.99), "int8": Bound(3e-3, 0.95)}


@pytest.fixture(scope="module")
def files(smollm2_path):
    return inspect_model(smollm2_path)


@pytest.fixture(scope="module")
def ids(files):
    return ids_of(files)


def ids_of(files):
    found = Tokenizer.from_gguf(files.tokenizer).encode(TEXT)
    assert len(found) > 2000
    return found


def values(files):
    """What the file's weights stand for, by our names, as float32."""
    with TensorReader() as reader:
        for name, source in files.blueprint.sources.items():
            tensor = files.tensors[source.tensor]
            kind = gguf.GGMLQuantizationType[tensor.format.upper()]
            rows = np.frombuffer(reader.data(tensor), np.uint8).reshape(*tensor.shape[:-1], -1)
            found = gguf.quants.dequantize(rows, kind)
            yield name, (found if source.rows is None else found[source.rows]).astype(np.float32) + source.offset


def checkpoint(files, format_name):
    """The weights by our names as (format, shape, bytes), with every matrix in one format, made by the gguf package."""
    quantization = gguf.GGMLQuantizationType[format_name.upper()]
    weights = {}
    for name, found in values(files):
        if found.ndim == 1:
            weights[name] = ("f32", found.shape, found.tobytes())
        else:
            weights[name] = (format_name, found.shape, gguf.quants.quantize(found, quantization).tobytes())
    return weights


def load(files, format_name, *dtypes):
    """The same weights in each of some types."""
    if format_name == files.quantization.lower():
        return [load_weights(files, dtype=dtype, threads=THREADS) for dtype in dtypes]
    stored = checkpoint(files, format_name)
    sources = {name: source for name, (source, _, _) in stored.items()}
    loaded = [Weights(files.spec, dtype=dtype, threads=THREADS, sources=sources) for dtype in dtypes]
    for name, (source, shape, data) in stored.items():
        for weights in loaded:
            weights.set(name, source, shape, data)
    return loaded


def load_floats(files, *dtypes):
    """The file's values in each of some types, as if a checkpoint of floats held them."""
    loaded = [Weights(files.spec, dtype=dtype, threads=THREADS) for dtype in dtypes]
    for name, found in values(files):
        for weights in loaded:
            weights.set(name, "f32", found.shape, found)
    return loaded


def assert_within(bound, found, what):
    print(f"{what}: {found}")
    assert found.kl <= bound.kl, str(found)
    assert found.agreement >= bound.agreement, str(found)
    assert found.perplexity == pytest.approx(found.exact_perplexity, rel=0.01), str(found)


def assert_exact_is_the_reference(found, ids, model):
    stored = STORED[model]
    assert stored["ids"] == hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest(), "run store_perplexities.py"
    assert found.exact_perplexity == pytest.approx(stored["perplexity"], rel=1e-5)


@pytest.mark.parametrize("format_name", BOUNDS)
def test_divergence_from_exact_arithmetic(files, ids, format_name):
    exact, packed = load(files, format_name, "float32", "auto")
    (found,) = divergences((exact, "float32"), [(packed, "bfloat16")], ids)
    assert_within(BOUNDS[format_name], found, format_name)
    assert_exact_is_the_reference(found, ids, f"smollm2-135m {format_name}")


def test_divergence_of_gemma3(gemma3_path):
    """A mixture of formats, and four windows of text."""
    files = inspect_model(gemma3_path)
    ids = ids_of(files)
    exact, packed = load(files, files.quantization.lower(), "float32", "auto")
    (found,) = divergences((exact, "float32"), [(packed, "bfloat16")], ids)
    assert_within(GEMMA3_BOUND, found, "gemma3-270m")
    assert_exact_is_the_reference(found, ids, "gemma3-270m")


def test_divergence_of_cache_types(files, ids):
    """Only the keys and values are rounded."""
    (weights,) = load(files, "q4_1", "float32")
    found = divergences((weights, "float32"), [(weights, kv_cache_dtype) for kv_cache_dtype in CACHE_BOUNDS], ids[:768])
    for (kv_cache_dtype, bound), each in zip(CACHE_BOUNDS.items(), found, strict=True):
        assert_within(bound, each, f"cache in {kv_cache_dtype}")


def test_divergence_of_group_sizes(files, ids):
    """Larger groups say less. The file's values are integers of 4 bits in groups of 32, which int4 finds again."""
    dtypes = ("int4", "int4-g64", "int4-g128", "int8", "int8-g128")
    exact, *quantized = load_floats(files, "float32", *dtypes)
    found = divergences((exact, "float32"), [(weights, "bfloat16") for weights in quantized], ids[:512])
    for dtype, each in zip(dtypes, found, strict=True):
        print(f"{dtype}: {each}")
    kl = {dtype: each.kl for dtype, each in zip(dtypes, found, strict=True)}
    assert kl["int4"] < kl["int4-g64"] < kl["int4-g128"]
    assert kl["int8"] <= 5e-3
