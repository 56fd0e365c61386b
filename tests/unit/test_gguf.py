"""The GGUF reader: what it reads, and that nothing in a file can make it do anything but read or say what is wrong."""

import re
import struct
import time

import gguf
import numpy as np
import pytest
from gguf_builder import ARRAY, STRING, Gguf, Tensor, array, scalar, small_gguf, string, text, u32, u64
from hypothesis import given
from hypothesis import strategies as st
from refusal import refusal, refusal_and_peak

from llmsrv.weights.gguf import GgufFile


def write(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_metadata_type(tmp_path, version):
    source = small_gguf()
    source.version = version
    with GgufFile(write(tmp_path, source.build())) as file:
        assert file.version == version
        metadata = dict(file.metadata)
    arrays = {key: metadata.pop(f"test.{key}") for key in ("ints", "floats", "flags", "nothing")}
    assert metadata == {
        "general.architecture": "llama",
        "test.scalar0": 200,
        "test.scalar1": -5,
        "test.scalar2": 60000,
        "test.scalar3": -300,
        "test.scalar4": 4_000_000_000,
        "test.scalar5": -7,
        "test.scalar6": 0.5,
        "test.scalar7": True,
        "test.scalar10": 2**63,
        "test.scalar11": -(2**62),
        "test.scalar12": 1e300,
        "test.words": ["Ġa", "", "日本", "x" * 40],
    }
    assert type(metadata["test.scalar7"]) is bool
    assert arrays["ints"].tolist() == [1, -2, 3]
    assert arrays["floats"].tolist() == [0.5, -1.5]
    assert arrays["flags"].tolist() == [True, False, True]
    assert arrays["nothing"].tolist() == []


def test_reads_tensors(tmp_path):
    with GgufFile(write(tmp_path, small_gguf().build())) as file:
        assert {name: (tensor.shape, tensor.format, tensor.nbytes) for name, tensor in file.tensors.items()} == {
            "norm": ((8,), "f32", 32),
            "matrix": ((2, 32), "q4_1", 40),
            "half": ((3, 4), "f16", 24),
        }
        assert np.frombuffer(file.data("norm"), np.float32).tolist() == list(range(8))
        assert bytes(file.data("matrix")) == bytes(range(40))
        with pytest.raises(KeyError):
            file.data("absent")


def test_honours_alignment(tmp_path):
    source = small_gguf()
    source.alignment = 256
    source.keys.append(("general.alignment", scalar(4, 256)))
    with GgufFile(write(tmp_path, source.build())) as file:
        assert all(tensor.offset % 256 == 0 for tensor in file.tensors.values())
        assert bytes(file.data("matrix")) == bytes(range(40))


def test_views_outlive_close(tmp_path):
    file = GgufFile(write(tmp_path, small_gguf().build()))
    view = file.data("matrix")
    file.close()
    file.close()
    assert bytes(view) == bytes(range(40))


def test_reads_what_the_gguf_package_writes(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["<s>", "a", "é"])
    rng = np.random.default_rng(7)
    values = rng.standard_normal((4, 64), dtype=np.float32)
    quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", values)
    writer.add_tensor("packed", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        assert file.metadata["llama.block_count"] == 3
        assert file.metadata["tokenizer.ggml.tokens"] == ["<s>", "a", "é"]
        assert (file.tensors["plain"].shape, file.tensors["plain"].format) == ((4, 64), "f32")
        assert (file.tensors["packed"].shape, file.tensors["packed"].format) == ((4, 64), "q8_0")
        assert bytes(file.data("plain")) == values.tobytes()
        assert bytes(file.data("packed")) == quantized.tobytes()


def test_real_file_equals_the_gguf_package(smollm2_path):
    reference = gguf.GGUFReader(smollm2_path)
    with GgufFile(smollm2_path) as file:
        assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
        for expected in reference.tensors:
            tensor = file.tensors[expected.name]
            assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
            assert tensor.format == expected.tensor_type.name.lower()
            assert (tensor.offset, tensor.nbytes) == (expected.data_offset, expected.n_bytes)
        for key, field in reference.fields.items():
            if not key.startswith("GGUF."):
                value = file.metadata[key]
                assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents()


def test_opening_is_fast(smollm2_path):
    """A daemon starts in a second: 98,000 strings must not take a notable part of it."""

    def seconds():
        started = time.perf_counter()
        GgufFile(smollm2_path).close()
        return time.perf_counter() - started

    assert min(seconds() for _ in range(5)) < 0.3


def broken(**changes):
    source = small_gguf()
    for name, value in changes.items():
        setattr(source, name, value)
    return source.build()


def one_key(value):
    return Gguf(keys=[("key", value)]).build()


def one_tensor(**changes):
    fields = {"name": "t", "dimensions": [32, 2], "kind": 3, "data": bytes(40)} | changes
    return Gguf(tensors=[Tensor(**fields)]).build()


MALFORMED = {
    "empty": (b"", "the file is empty"),
    "other magic": (b"PK\x03\x04" + bytes(60), "at byte 0: not a GGUF file"),
    "short magic": (b"GG", "not a GGUF file"),
    "version 1": (broken(version=1), "at byte 4: GGUF version 1 is not supported"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big endian"),
    "ends in preamble": (b"GGUF" + u32(3) + u64(0), "the file ends 0 bytes later"),
    "absurd tensor count": (broken(tensor_count=2**64 - 1), "18446744073709551615 tensors do not fit"),
    "absurd key count": (broken(key_count=2**60), "metadata keys do not fit"),
    "more keys than there are": (broken(key_count=40), "model.gguf: at byte"),
    "unknown value type": (one_key(u32(99) + bytes(40)), "the value of 'key' has the unknown type 99"),
    "unknown element type": (one_key(u32(ARRAY) + u32(99) + u64(1) + bytes(40)), "unknown element type 99"),
    "nested array": (one_key(u32(ARRAY) + u32(ARRAY) + u64(1) + bytes(40)), "nested arrays are not supported"),
    "absurd array": (one_key(u32(ARRAY) + u32(10) + u64(2**61) + bytes(40)), "do not fit into"),
    "absurd string array": (one_key(u32(ARRAY) + u32(STRING) + u64(2**61) + bytes(40)), "do not fit into"),
    "absurd string": (one_key(u32(STRING) + u64(2**63) + bytes(40)), "bytes long; at most"),
    "string beyond the end": (one_key(u32(STRING) + u64(41) + bytes(8)), "the value of 'key' needs 41 bytes"),
    "string of an array beyond the end": (
        one_key(u32(ARRAY) + u32(STRING) + u64(2) + string("a") + u64(2**40) + bytes(8)),
        "string 1 of the array 'key' ends beyond the end of the file",
    ),
    "not UTF-8": (one_key(text(b"\xff\xfe")), "the value of 'key' is not UTF-8"),
    "array not UTF-8": (one_key(array(STRING, ["a", b"\xff"])), "string 1 of the array 'key' is not UTF-8"),
    "boolean 2": (one_key(scalar(7, 2)), "boolean that is neither 0 nor 1"),
    "key twice": (Gguf(keys=[("a", scalar(4, 1)), ("a", scalar(4, 2))]).build(), "the metadata key 'a' occurs twice"),
    "alignment 0": (Gguf(keys=[("general.alignment", scalar(4, 0))]).build(), "instead of a power of two"),
    "alignment 48": (Gguf(keys=[("general.alignment", scalar(4, 48))]).build(), "instead of a power of two"),
    "alignment is text": (Gguf(keys=[("general.alignment", text("32"))]).build(), "instead of a power of two"),
    "no dimensions": (one_tensor(dimensions=[]), "has 0 dimensions"),
    "five dimensions": (one_tensor(dimensions=[32, 1, 1, 1, 1]), "has 5 dimensions"),
    "empty dimension": (one_tensor(dimensions=[32, 0]), "has an empty dimension"),
    "absurd dimensions": (one_tensor(dimensions=[2**63, 2**63, 2**63, 2**63]), "beyond the end of the file"),
    "broken row": (one_tensor(dimensions=[33, 2]), "not a multiple of 32 as Q4_1 needs"),
    "offset beyond the end": (one_tensor(offset=2**63), "beyond the end of the file"),
    "offset not aligned": (one_tensor(offset=8), "is not a multiple of 32"),
    "unsupported types": (
        Gguf(tensors=[Tensor("a", [256], 17, bytes(74)), Tensor("b", [4], 77, b"")]).build(),
        "not supported: IQ2_XS (1 tensors: a); UNKNOWN TYPE 77 (1 tensors: b)",
    ),
    "tensor twice": (
        Gguf(tensors=[Tensor("a", [8], 0, bytes(32)), Tensor("a", [8], 0, bytes(32))]).build(),
        "the tensor 'a' occurs twice",
    ),
    "overlap": (
        Gguf(tensors=[Tensor("a", [16], 0, bytes(64)), Tensor("b", [8], 0, bytes(32), offset=32)]).build(),
        "tensors 'a' and 'b' overlap",
    ),
    "data cut off": (small_gguf().build()[:-32], "the file is truncated or corrupt"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_says_what_is_wrong(tmp_path, case):
    data, message = MALFORMED[case]
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_noticed(tmp_path):
    whole = small_gguf().build()
    data_end = len(whole) - 8  # padding behind the last tensor is not needed
    for length in range(data_end):
        with pytest.raises(ValueError, match=r"model\.gguf"):
            GgufFile(write(tmp_path, whole[:length]))
    GgufFile(write(tmp_path, whole[:data_end])).close()


def test_not_a_regular_file(tmp_path):
    with pytest.raises(ValueError, match="not a regular file"):
        GgufFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        GgufFile(tmp_path / "absent.gguf")


HEADER_BYTES = len(small_gguf().header())
EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]

mutations = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, HEADER_BYTES - 1), st.integers(1, 255)),
    st.tuples(st.just("u32"), st.integers(0, HEADER_BYTES - 4), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("small"), st.integers(0, HEADER_BYTES - 4), st.integers(0, 16)),
    st.tuples(st.just("u64"), st.integers(0, HEADER_BYTES - 8), st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)),
    st.tuples(st.just("cut"), st.integers(0, HEADER_BYTES + 64), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, HEADER_BYTES), st.integers(0, 255)),
    st.tuples(st.just("delete"), st.integers(0, HEADER_BYTES), st.integers(1, 16)),
)


def mutate(data, mutation):
    kind, at, value = mutation
    if kind == "flip" and at < len(data):
        return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
    if kind in ("u32", "small"):
        return data[:at] + u32(value) + data[at + 4 :]
    if kind == "u64":
        return data[:at] + u64(value) + data[at + 8 :]
    if kind == "insert":
        return data[:at] + bytes([value]) + data[at:]
    if kind == "delete":
        return data[:at] + data[at + value :]
    return data[:at] if kind == "cut" else data


@pytest.fixture(scope="module")
def fuzz_path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


@given(st.lists(mutations, min_size=1, max_size=4))
def test_mutated_file_is_read_or_refused(fuzz_path, changes):
    """Success or ValueError, with memory bounded by the file's size, and every tensor's bytes inside the file."""
    data = small_gguf().build()
    for change in changes:
        data = mutate(data, change)
    fuzz_path.write_bytes(data)

    def read():
        with GgufFile(fuzz_path) as file:
            for name, tensor in file.tensors.items():
                assert len(file.data(name)) == tensor.nbytes

    message, peak_bytes = refusal_and_peak(read)
    assert message is None or "model.gguf" in message
    assert peak_bytes < 200_000 + 100 * len(data)


@given(st.binary(max_size=400))
def test_any_bytes_behind_the_magic_are_read_or_refused(fuzz_path, tail):
    fuzz_path.write_bytes(b"GGUF" + u32(3) + tail)
    message = refusal(lambda: GgufFile(fuzz_path).close())
    assert message is None or "model.gguf" in message
