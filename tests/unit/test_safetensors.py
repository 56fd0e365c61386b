"""The safetensors reader: what it reads, and that a malformed file or index is refused with a reason."""

import copy
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refusal, refusal_and_peak
from safetensors.numpy import save_file

from llmsrv.weights.mapped_file import TensorReader
from llmsrv.weights.safetensors import read_safetensors, read_safetensors_folder

ENTRIES = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F16", "shape": [1, 2, 2], "data_offsets": [32, 40]},
}


def build(header, data=bytes(range(40))):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(tmp_path, data, name="model.safetensors"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def with_entry(name, **changes):
    entries = copy.deepcopy(ENTRIES)
    entries[name] |= changes
    return entries


def test_reads_tensors(tmp_path):
    path = write(tmp_path, build({"__metadata__": {"format": "pt"}, **ENTRIES}))
    tensors = read_safetensors(path)
    assert {name: (tensor.shape, tensor.format) for name, tensor in tensors.items()} == {
        "a": ((2, 3), "f32"),
        "b": ((4,), "bf16"),
        "c": ((1, 2, 2), "f16"),
    }
    with TensorReader() as reader:
        assert bytes(reader.data(tensors["b"])) == bytes(range(24, 32))
        reader.drop_pages(tensors["b"])
        assert bytes(reader.data(tensors["c"])) == bytes(range(32, 40))


def test_reads_what_the_safetensors_package_writes(tmp_path):
    rng = np.random.default_rng(3)
    values = {"x": rng.standard_normal((5, 7), dtype=np.float32), "y": rng.standard_normal(9).astype(np.float16)}
    save_file(values, tmp_path / "model.safetensors")
    tensors = read_safetensors_folder(tmp_path)
    with TensorReader() as reader:
        for name, value in values.items():
            assert tensors[name].shape == value.shape
            assert bytes(reader.data(tensors[name])) == value.tobytes()


MALFORMED = {
    "empty": (b"", "the file is empty"),
    "short": (bytes(7), "too short for a safetensors file"),
    "absurd header": (b"\xff" * 8 + bytes(40), "the header is said to be 18446744073709551615 bytes long"),
    "header beyond the end": ((100).to_bytes(8, "little") + bytes(40), "truncated or not safetensors"),
    "not JSON": (build(b"{nonsense"), "header: not usable JSON"),
    "not UTF-8": (build(b'{"\xff": 1}'), "header: not UTF-8"),
    "not an object": (build(b"[]"), "the JSON is not an object"),
    "deeply nested": (build(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "name twice": (build(b'{"a": 1, "a": 2}'), "the key 'a' occurs twice"),
    "NaN": (build(b'{"a": NaN}'), "NaN is not JSON"),
    "entry not an object": (build({"a": 3}), "header entry 'a': needs exactly dtype, shape and data_offsets"),
    "entry with more": (build(with_entry("a", more=1)), "header entry 'a': needs exactly"),
    "dtype not text": (build(with_entry("a", dtype=1)), "dtype is not a string"),
    "unsupported": (build(with_entry("b", dtype="F8_E4M3")), "not supported: F8_E4M3 (1 tensors: b)"),
    "negative shape": (build(with_entry("a", shape=[-2, -3])), "shape is not a list"),
    "fractional shape": (build(with_entry("a", shape=[2.0, 3])), "shape is not a list"),
    "boolean shape": (build(with_entry("a", shape=[True, 6])), "shape is not a list"),
    "absurd shape": (build(with_entry("a", shape=[2**62, 2**62])), "bytes, but data_offsets span 24"),
    "huge integer": (build(b'{"a": ' + b"9" * 10_000 + b"}"), "header: not usable JSON"),
    "one offset": (build(with_entry("a", data_offsets=[0])), "not a pair of byte offsets"),
    "offsets reversed": (build(with_entry("a", data_offsets=[24, 0])), "data_offsets span -24"),
    "shape and offsets differ": (build(with_entry("a", shape=[2, 2])), "is 16 bytes, but data_offsets span 24"),
    "overlap": (build(with_entry("b", data_offsets=[20, 28])), "tensor 'b' at byte"),
    "hole": (build({"a": ENTRIES["a"], "c": ENTRIES["c"]}), "leaves a hole before it"),
    "data cut off": (build(ENTRIES)[:-1], "it is truncated or corrupt"),
    "data too long": (build(ENTRIES) + b"x", "it is truncated or corrupt"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_says_what_is_wrong(tmp_path, case):
    data, message = MALFORMED[case]
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


def write_shards(folder, weight_map):
    write(folder, build({"a": ENTRIES["a"]}, bytes(24)), "model-1.safetensors")
    write(folder, build({"b": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)), "model-2.safetensors")
    index = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map}).encode()
    write(folder, index, "model.safetensors.index.json")


GOOD_MAP = {"a": "model-1.safetensors", "b": "model-2.safetensors"}


def test_reads_shards(tmp_path):
    write_shards(tmp_path, GOOD_MAP)
    tensors = read_safetensors_folder(tmp_path)
    assert {name: tensor.path.name for name, tensor in tensors.items()} == GOOD_MAP


BAD_INDICES = {
    "not JSON": (b"{", "not usable JSON"),
    "no map": (b"{}", "weight_map is missing or empty"),
    "empty map": ({}, "weight_map is missing or empty"),
    "shard not text": (GOOD_MAP | {"a": 1}, "which is not a file of this folder"),
    "parent folder": (GOOD_MAP | {"a": "../model-1.safetensors"}, "which is not a file of this folder"),
    "absolute": (GOOD_MAP | {"a": "/etc/model-1.safetensors"}, "which is not a file of this folder"),
    "other file": (GOOD_MAP | {"a": "config.json"}, "which is not a file of this folder"),
    "NUL": (GOOD_MAP | {"a": "a\0.safetensors"}, "which is not a file of this folder"),
    "missing shard": (GOOD_MAP | {"c": "model-3.safetensors"}, "missing: model-3.safetensors"),
    "missing tensor": (GOOD_MAP | {"c": "model-2.safetensors"}, "missing: c in model-2.safetensors"),
    "wrong shard": (GOOD_MAP | {"a": "model-2.safetensors"}, "missing: a in model-2.safetensors"),
}


@pytest.mark.parametrize("case", BAD_INDICES)
def test_bad_index_says_what_is_wrong(tmp_path, case):
    weight_map, message = BAD_INDICES[case]
    write_shards(tmp_path, weight_map)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_safetensors_folder(tmp_path)


def test_shard_that_the_index_does_not_name_is_no_part_of_the_model(tmp_path):
    write_shards(tmp_path, {"a": "model-1.safetensors"})
    assert list(read_safetensors_folder(tmp_path)) == ["a"]


def test_index_must_name_all_tensors_of_its_shards(tmp_path):
    write_shards(tmp_path, GOOD_MAP)
    write(tmp_path, build(ENTRIES), "model-1.safetensors")
    with pytest.raises(ValueError, match="the index does not name these tensors of its shards: b in model-1"):
        read_safetensors_folder(tmp_path)


def test_folder_without_weights(tmp_path):
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
        read_safetensors_folder(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
numbers = st.integers(-4, 64) | st.sampled_from([2**31, 2**63 - 1, 2**64])
hostile_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64"]) | json_values,
        "shape": st.lists(numbers, max_size=3) | json_values,
        "data_offsets": st.lists(numbers, min_size=2, max_size=2) | json_values,
    }
)


@pytest.fixture(scope="module")
def fuzz_path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "model.safetensors"


def read_or_refuse(path, data):
    path.write_bytes(data)

    def read():
        tensors = read_safetensors(path)
        with TensorReader() as reader:
            assert all(len(reader.data(tensor)) == tensor.nbytes for tensor in tensors.values())

    message, peak_bytes = refusal_and_peak(read)
    assert message is None or path.name in message
    assert peak_bytes < 200_000 + 100 * len(data)


@given(st.dictionaries(st.text(max_size=6), hostile_entries | json_values, max_size=4))
def test_hostile_header_is_read_or_refused(fuzz_path, header):
    read_or_refuse(fuzz_path, build({**ENTRIES, **header}))


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 300))
def test_mutated_bytes_are_read_or_refused(fuzz_path, changes, length):
    data = bytearray(build(ENTRIES))
    for at, value in changes:
        data[at % len(data)] = value
    read_or_refuse(fuzz_path, bytes(data[:length]))


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from([*GOOD_MAP.values(), "x"]) | json_values) | json_values)
def test_hostile_index_is_read_or_refused(tmp_path_factory, weight_map):
    folder = tmp_path_factory.getbasetemp() / "index"
    folder.mkdir(exist_ok=True)
    write_shards(folder, json.dumps({"weight_map": weight_map}).encode())
    message = refusal(lambda: read_safetensors_folder(folder))
    assert message is None or str(folder) in message
