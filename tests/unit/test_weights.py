"""Weights whose matrices differ in format, as mixed GGUF files have them."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from quant_blocks import random_blocks

from llmsrv import _core, _testing

# Query rows end inside a panel; rows of o have 96 columns, all others 256.
SHAPE = {
    "vocab_size": 70, "hidden_size": 256, "intermediate_size": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 1,
    "head_dim": 24, "max_position": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "qkv_bias": True,
    "tied_embeddings": True,
}  # fmt: skip
TOKENS = [3, 17, 69, 0, 17, 44, 5, 5, 61]
MIXED = {
    "embed": "q6_k",
    "layers.0.q": "q4_k", "layers.0.k": "q4_k", "layers.0.v": "q6_k", "layers.0.o": "q5_0",
    "layers.0.gate": "q4_0", "layers.0.up": "q5_1", "layers.0.down": "q5_k",
    "layers.1.q": "q8_0", "layers.1.k": "q4_1", "layers.1.v": "q8_0", "layers.1.o": "q4_1",
    "layers.1.gate": "f16", "layers.1.up": "q4_k", "layers.1.down": "f32",
}  # fmt: skip
PLAIN = {"f32": np.float32, "f16": np.float16}


def spec(**changes):
    return _core.ModelSpec(**SHAPE | changes)


def source_bytes(rng, name, values):
    """The values in a source format, and what they then stand for. K formats get random integers of a like size."""
    if name in PLAIN:
        return values.astype(PLAIN[name])
    if name.endswith("_k"):
        rows, cols = values.shape
        blocks = random_blocks(rng, name, rows * cols // 256)
        at = 208 if name == "q6_k" else 0
        blocks[:, at : at + 2] = (
            np.full(len(blocks), 6e-5 if name == "q6_k" else 1e-4, np.float16).view(np.uint8).reshape(-1, 2)
        )
        if name != "q6_k":
            blocks[:, 2:4] = np.full(len(blocks), 1e-3, np.float16).view(np.uint8).reshape(-1, 2)
        return blocks.reshape(rows, -1)
    return quantize(values, GGMLQuantizationType[name.upper()])


def filled(dtype, sources, seed=0):
    """All weights of one random model, set from the same bytes whatever the dtype."""
    model = spec()
    weights = _core.Weights(model, dtype=dtype, threads=2, sources=sources)
    rng = np.random.default_rng(seed)
    for name, shape in _core.expected_weights(model).items():
        if len(shape) == 1:
            values = rng.normal(1.0 if name.endswith("norm") else 0.0, 0.3, shape).astype(np.float32)
            weights.set(name, "f32", shape, values)
        else:
            values = rng.normal(0, 1.2 / np.sqrt(shape[1]), shape).astype(np.float32)
            source = sources.get(name, "f32")
            weights.set(name, source, shape, source_bytes(rng, source, values))
    assert weights.missing() == []
    return weights


def test_auto_keeps_each_matrix_as_it_is():
    weights = filled("auto", MIXED)
    kept = {name: source for name, source in MIXED.items() if source not in PLAIN}
    assert weights.formats == {name: kept.get(name, "bf16") for name in MIXED}


@pytest.mark.parametrize(("dtype", "format_name"), [("bfloat16", "bf16"), ("float32", "f32")])
def test_a_plain_dtype_is_for_all_matrices(dtype, format_name):
    assert set(filled(dtype, MIXED).formats.values()) == {format_name}


@pytest.mark.parametrize("sources", [{}, MIXED, {"layers.0.k": "q4_k"}, {"layers.1.up": "q8_0", "embed": "q8_0"}])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32", "int8-g128", "int4-g128"])
def test_bytes_by_arithmetic(dtype, sources):
    """Every matrix alone, in whole panels of 16 rows; neighbours of one format in a stack share a panel."""
    model = spec()
    weights = _core.Weights(model, dtype=dtype, threads=1, sources=sources)
    expected = 0
    stacks = {}
    for name, shape in _core.expected_weights(model).items():
        if len(shape) == 1:
            expected += 4 * shape[0]
            continue
        layer, _, part = name.rpartition(".")
        stack = stacks.setdefault((layer, {"k": "q", "v": "q", "up": "gate"}.get(part, part)), [])
        if stack and stack[-1][0] == weights.formats[name]:
            stack[-1][1] += shape[0]
        else:
            stack.append([weights.formats[name], shape[0], shape[1]])
    for stack in stacks.values():
        expected += sum(_testing.PackedMatrix(name, rows, cols).nbytes for name, rows, cols in stack)
    assert weights.bytes == expected


def test_a_matrix_takes_only_the_announced_format():
    weights = _core.Weights(spec(), dtype="auto", threads=1, sources={"layers.0.q": "q5_1"})
    with pytest.raises(ValueError, match=r"'layers\.0\.q': is q4_0, but memory was taken for q5_1"):
        weights.set("layers.0.q", "q4_0", (96, 256), bytes(96 * 8 * 18))
    with pytest.raises(ValueError, match=r"'layers\.0\.q': is f32, but memory was taken for q5_1"):
        weights.set("layers.0.q", "f32", (96, 256), bytes(96 * 256 * 4))
    weights.set("layers.0.q", "q5_1", (96, 256), bytes(96 * 8 * 24))
    weights.set("layers.0.k", "q8_0", (24, 256), bytes(24 * 8 * 34))  # held as bf16: any source will do


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({"layers.2.q": "q8_0"}, r"unknown weight 'layers\.2\.q'"),
        ({"embed": "q2_k"}, "'embed': unknown format 'q2_k'"),
        ({"layers.0.o": "q4_k"}, r"'layers\.0\.o': rows of 96 values are no whole blocks of q4_k"),
    ],
)
def test_impossible_sources_are_refused(sources, says):
    with pytest.raises(ValueError, match=says):
        _core.Weights(spec(), dtype="auto", threads=1, sources=sources)


def test_logits_of_packed_weights_are_those_of_unpacked_ones():
    """Activations are rounded to 8 bits on the way, so the logits differ a little; a misplaced row differs wholly."""
    packed = _testing.forward_logits(filled("auto", MIXED), TOKENS)
    exact = _testing.forward_logits(filled("float32", MIXED), TOKENS)
    error = np.linalg.norm(packed - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < 0.05
    other = _testing.forward_logits(filled("float32", MIXED, seed=1), TOKENS)
    assert (np.linalg.norm(other - exact, axis=1) / np.linalg.norm(exact, axis=1)).min() > 0.5
