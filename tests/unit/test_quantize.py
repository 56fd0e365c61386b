"""Quantizing float weights while loading: the integers and scales against their definition in quantize.h."""

import numpy as np
import pytest
from quant_blocks import GROUP_FORMATS, random_blocks, scale_cols

from llmsrv import _core, _testing

GROUP = 32


def as_f16(values):
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float16)


def in_steps(values, d):
    """values / d, rounded to the nearest even; 0 where d is 0."""
    return np.rint(np.divide(values, d, out=np.zeros_like(values), where=d > 0))


def int8(groups):
    """Integers of the groups, their scales, and their minima. [..., columns of a group]"""
    d = as_f16(np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127))
    return np.clip(in_steps(groups, d.astype(np.float32)), -127, 127), d, np.zeros_like(d)


def int4(groups):
    m = as_f16(groups.min(axis=-1, keepdims=True))
    span = np.maximum(groups.max(axis=-1, keepdims=True) - m.astype(np.float32), np.float32(0))
    d = as_f16(span / np.float32(15))
    return np.clip(in_steps(groups - m.astype(np.float32), d.astype(np.float32)), 0, 15), d, m


DEFINITIONS = {"q8_0": int8, "q4_1": int4} | {name: int4 if "int4" in name else int8 for name in GROUP_FORMATS}
NAMES = list(DEFINITIONS)


def parts(name, weight):
    """Integers, scales and minima of a weight, group by group. [rows, groups, ...]"""
    return DEFINITIONS[name](weight.reshape(len(weight), -1, scale_cols(name)))


def meaning(name, weight):
    """What is left of a weight."""
    q, d, m = parts(name, weight)
    return (q.astype(np.float32) * d.astype(np.float32) + m.astype(np.float32)).reshape(weight.shape)


def quantized(name, weight, source="f32", threads=1):
    rows, cols = weight.shape
    matrix = _testing.PackedMatrix(name, rows, cols)
    matrix.set_rows(0, rows, source, weight.tobytes(), threads)
    return np.array([matrix.unpack_row(row) for row in range(rows)]), matrix.packed()


def random_weight(rows, cols, seed=0):
    """Groups of very different size, with an offset each."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-6, 3, (rows, cols // GROUP, 1))
    groups = (rng.standard_normal((rows, cols // GROUP, GROUP)) + rng.standard_normal((rows, cols // GROUP, 1))) * sizes
    return groups.reshape(rows, cols).astype(np.float32)


def test_rounding_to_half_precision():
    """Every half, every tie between two neighbours, the floats next to each, and random bits."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = halves[np.isfinite(halves)].astype(np.float32)
    ties = (np.sort(exact)[1:] + np.sort(exact)[:-1]) / 2
    rng = np.random.default_rng(0)
    random = rng.integers(0, 1 << 32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([65519.996, 65520.0, -65520.0, np.inf, -np.inf, np.nan], np.float32)
    values = np.concatenate(
        [exact, ties, np.nextafter(ties, np.float32(9e9)), np.nextafter(ties, np.float32(-9e9)), random, edges]
    )
    got = _testing.to_f16(values)
    expected = as_f16(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(got[numbers], expected.view(np.uint16)[numbers])
    assert np.isnan(got.view(np.float16)[~numbers]).all()


@pytest.mark.parametrize("rows", [1, 16, 33])
@pytest.mark.parametrize("name", NAMES)
def test_by_definition(name, rows):
    weight = random_weight(rows, 5 * scale_cols(name))
    expected = meaning(name, weight)
    bytes_seen = set()
    for threads in (1, 2, 3):
        values, packed = quantized(name, weight, threads=threads)
        np.testing.assert_array_equal(values, expected)
        bytes_seen.add(packed)
    assert len(bytes_seen) == 1


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_larger_groups_are_blocks_that_share_a_scale(name):
    """The bytes are those of a file's blocks that repeat it; 4 bits leave the repeated ones out."""
    rows, cols = 33, 3 * scale_cols(name)
    weight = random_weight(rows, cols)
    q, d, m = parts(name, weight)
    q = q.reshape(rows, -1, GROUP)
    d, m = (np.repeat(each, scale_cols(name) // GROUP, axis=1).view(np.uint8) for each in (d, m))
    if "int8" in name:
        block_name, blocks = "q8_0", [d, q.astype(np.int8).view(np.uint8)]
    else:
        nibbles = q.astype(np.uint8)
        block_name, blocks = "q4_1", [d, m, nibbles[..., :16] | nibbles[..., 16:] << 4]
    matrix = _testing.PackedMatrix(block_name, rows, cols)
    matrix.set_rows(0, rows, block_name, np.concatenate(blocks, axis=-1).tobytes())
    expected = matrix.packed()
    if "int4" in name:
        superblocks = np.frombuffer(expected, np.uint8).reshape(-1, scale_cols(name) // 64, 640)
        lines = superblocks[..., :512].reshape(len(superblocks), -1)
        first = superblocks[:, 0]
        expected = np.concatenate([lines, first[:, 512:544], first[:, 576:608]], axis=1).tobytes()
    assert quantized(name, weight, threads=3)[1] == expected


@pytest.mark.parametrize("name", GROUP_FORMATS)
def test_larger_groups_take_only_floats(name):
    matrix = _testing.PackedMatrix(name, 1, 128)
    for source, block_bytes in (("q4_1", 20), ("q8_0", 34)):
        with pytest.raises(RuntimeError, match="check failed"):
            matrix.set_rows(0, 1, source, bytes(4 * block_bytes))
    with pytest.raises(RuntimeError, match="check failed"):
        _testing.PackedMatrix(name, 1, scale_cols(name) + GROUP)


@pytest.mark.parametrize("name", NAMES)
def test_special_groups(name):
    """All equal, all zero, one outlier, ties, and scales that are subnormal or vanish."""
    weight = np.zeros((6, scale_cols(name)), np.float32)
    weight[0] = 0.7
    weight[2, 3] = -60000.0
    weight[3] = np.linspace(-127, 127, scale_cols(name)).round() / 2
    weight[4] = np.linspace(1e-7, 2e-6, scale_cols(name))
    weight[5] = np.linspace(-1e-9, 1e-9, scale_cols(name))
    values, _ = quantized(name, weight)
    np.testing.assert_array_equal(values, meaning(name, weight))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_held_becomes_nan_and_stays_in_its_group(name, bad):
    group = scale_cols(name)
    weight = random_weight(3, 3 * group)
    expected, _ = quantized(name, weight)
    weight[1, group + 5] = bad
    values, _ = quantized(name, weight)
    assert np.isnan(values[1, group : 2 * group]).all()
    expected[1, group : 2 * group] = np.nan
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_sources(name):
    weight = random_weight(4, 2 * scale_cols(name)).astype(np.float16)
    np.testing.assert_array_equal(quantized(name, weight, "f16")[0], quantized(name, weight.astype(np.float32))[0])


def test_errors_are_half_a_step():
    weight = np.random.default_rng(1).standard_normal((50, 4 * GROUP)).astype(np.float32)
    groups = weight.reshape(50, 4, GROUP)
    for name, steps in (("q8_0", np.abs(groups).max(axis=-1) / 127), ("q4_1", np.ptp(groups, axis=-1) / 15)):
        error = np.abs(quantized(name, weight)[0].reshape(groups.shape) - groups).max(axis=-1)
        assert (error < 0.5 * steps * 1.02 + 1e-3).all()


SPEC = {
    "vocab_size": 40, "hidden_size": 64, "intermediate_size": 48, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
    "head_dim": 32, "max_position": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip
MATRICES = ["embed", "lm_head", *(f"layers.0.{part}" for part in ("q", "k", "v", "o", "gate", "up", "down"))]


@pytest.mark.parametrize(("dtype", "name"), [("int8", "q8_0"), ("int4", "q4_1")])
def test_formats_of_a_quantized_model(dtype, name):
    """Both tables get 8 bits; rows of 48 are no whole groups; what the file has quantized stays."""
    sources = {"layers.0.v": "q5_0", "layers.0.o": "f16", "layers.0.gate": "bf16"}
    weights = _core.Weights(_core.ModelSpec(**SPEC), dtype=dtype, threads=1, sources=sources)
    special = {"embed": "q8_0", "lm_head": "q8_0", "layers.0.v": "q5_0", "layers.0.down": "bf16"}
    assert weights.formats == {each: special.get(each, name) for each in MATRICES}
    weights.set("layers.0.o", "f16", (64, 64), np.zeros((64, 64), np.float16))
    blocks = random_blocks(np.random.default_rng(0), "q5_0", 64)
    weights.set("layers.0.v", "q5_0", (32, 64), blocks)


@pytest.mark.parametrize(
    ("dtype", "others", "tables", "down"),
    [
        ("int4-g64", "int4-g64", "q8_0", "q4_1"),
        ("int4-g128", "int4-g64", "q8_0", "q4_1"),
        ("int8-g64", "int8-g64", "int8-g64", "q8_0"),
        ("int8-g128", "int8-g64", "int8-g64", "q8_0"),
    ],
)
def test_rows_that_are_no_whole_groups_take_the_next_smaller_ones(dtype, others, tables, down):
    """Rows have 64 columns, those of down 96; 8-bit tables of a 4-bit model have small groups."""
    weights = _core.Weights(_core.ModelSpec(**SPEC | {"intermediate_size": 96}), dtype=dtype, threads=1)
    special = {"embed": tables, "lm_head": tables, "layers.0.down": down}
    assert weights.formats == {each: special.get(each, others) for each in MATRICES}


@pytest.mark.parametrize("dtype", ["int4-g32", "int4-g256", "int4-", "int4-g64 ", "int5-g64", "auto-g64"])
def test_other_sizes_are_refused(dtype):
    with pytest.raises(ValueError, match="dtype of weights must be"):
        _core.Weights(_core.ModelSpec(**SPEC), dtype=dtype, threads=1)
