"""Reader of GGUF files, versions 2 and 3, little endian.

Nothing in the file is trusted. Every count and length is held against the bytes that are left before anything of that
size is allocated, so memory stays a small multiple of the file's header. Any malformed file raises ValueError with the
file's name, what is wrong and at which byte.

Layout: magic "GGUF", version u32, tensor count u64, key count u64; then the keys (string, type u32, value); then the
tensor table (string, dimension count u32, dimensions u64 with the fastest first, type u32, offset u64); then, at the
next multiple of `general.alignment`, the data, to which offsets are relative. A string is a u64 length and UTF-8 bytes.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsrv.weights.mapped_file import BLOCK_SIZES, MappedFile, StoredTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_KEY_BYTES = 65535

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Scalar metadata types by id. Strings and arrays are handled apart.
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("u1"),  # bool: one byte, 0 or 1
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL = 7
_STRING = 8
_ARRAY = 9

# Tensor types by id. Those in BLOCK_SIZES can be read; the names of the others are for the error message.
_TENSOR_TYPES: dict[int, str] = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
}

# Fewest bytes that one key (length, type, value) and one tensor (length, dimension count, type, offset) take.
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8


class GgufFile:
    """One GGUF file: its metadata, its tensor table, and views of its data without a copy.

    `metadata`: str, bool, int, float; arrays are lists of str or numpy arrays.
    `tensors`: by name, in the order of the file; shapes are [out, in], the reverse of the file's dimensions.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads the header. Raises OSError when the file cannot be opened and ValueError when it is malformed."""
        self._file = MappedFile(path)
        self.path = self._file.path
        self.size = self._file.size
        try:
            header = _Header(self._file)
            self.version = header.version
            self.metadata: dict[str, object] = header.metadata
            self.tensors: dict[str, StoredTensor] = header.tensors
        except BaseException:
            self._file.close()
            raise

    def data(self, name: str) -> memoryview:
        """The bytes of one tensor, valid while it is held. Raises KeyError for a name that is not in `tensors`."""
        tensor = self.tensors[name]
        return self._file.slice(tensor.offset, tensor.nbytes)

    def drop_pages(self, name: str) -> None:
        """Takes a tensor's bytes out of resident memory; they can be read again."""
        tensor = self.tensors[name]
        self._file.drop_pages(tensor.offset, tensor.nbytes)

    def close(self) -> None:
        """Ends the mapping. Views that are still held keep it alive. Idempotent."""
        self._file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Header:
    """Parses everything before the data. `_at` is the next byte to read; `_end` the size of the file."""

    def __init__(self, file: MappedFile) -> None:
        self._path = file.path
        self._buffer = file.slice(0, file.size)
        self._at = 0
        self._end = file.size
        try:
            tensor_count, key_count = self._read_preamble()
            self.metadata = self._read_metadata(key_count)
            self.tensors = self._read_tensors(tensor_count)
        finally:
            self._buffer.release()

    def _read_preamble(self) -> tuple[int, int]:
        magic = bytes(self._buffer[:4])
        if magic != _MAGIC:
            raise self._error(0, f"not a GGUF file: it starts with {magic!r} instead of {_MAGIC!r}")
        self._at = 4
        self.version = self._u32("the version")
        if self.version not in _VERSIONS:
            # A version number only makes sense with its bytes swapped when the file was written big endian.
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            if swapped in _VERSIONS:
                raise self._error(4, "the file is big endian; only little endian files are supported")
            raise self._error(4, f"GGUF version {self.version} is not supported, only 2 and 3 are")
        tensor_count = self._count(_MIN_TENSOR_BYTES, "tensors")
        key_count = self._count(_MIN_KEY_BYTES, "metadata keys")
        return tensor_count, key_count

    def _read_metadata(self, count: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for _ in range(count):
            at = self._at
            key = self._string("a metadata key", _MAX_KEY_BYTES)
            if key in metadata:
                raise self._error(at, f"the metadata key {key!r} occurs twice")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> object:
        kind = self._u32(f"the type of {key!r}")
        if kind == _STRING:
            return self._string(f"the value of {key!r}", self._end)
        if kind == _ARRAY:
            return self._array(key)
        values = self._scalars(kind, 1, f"the value of {key!r}")
        return values[0].item()

    def _array(self, key: str) -> object:
        what = f"the array {key!r}"
        kind = self._u32(f"the element type of {what}")
        if kind == _STRING:
            count = self._count(8, f"strings in {what}")
            return self._strings(count, what)
        if kind == _ARRAY:
            raise self._error(self._at - 4, f"{what} holds arrays; nested arrays are not supported")
        if kind not in _SCALARS:
            raise self._error(self._at - 4, f"{what} has the unknown element type {kind}")
        count = self._count(_SCALARS[kind].itemsize, f"elements in {what}")
        return self._scalars(kind, count, what)

    def _scalars(self, kind: int, count: int, what: str) -> NDArray[Any]:
        """Copies `count` values out of the file, so that metadata outlives the mapping."""
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self._error(self._at - 4, f"{what} has the unknown type {kind}")
        at = self._at
        self._need(count * dtype.itemsize, what)
        values: NDArray[Any] = np.frombuffer(self._buffer, dtype, count, at).copy()
        self._at = at + count * dtype.itemsize
        if kind == _BOOL:
            if np.any(values > 1):
                raise self._error(at, f"{what} has a boolean that is neither 0 nor 1")
            values = values.astype(np.bool_)
        return values

    def _strings(self, count: int, what: str) -> list[str]:
        """A tokenizer's table has 100,000 entries and more: this loop is most of the time of opening a file."""
        buffer, end, at = self._buffer, self._end, self._at
        read_length = _U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + read_length(buffer, at)[0]
                if at > end:  # a slice would be cut short silently
                    raise self._error(start - 8, f"string {len(strings)} of {what} ends beyond the end of the file")
                strings.append(str(buffer[start:at], "utf-8"))
        except struct.error:
            raise self._error(at, f"the file ends inside {what}, after {len(strings)} strings") from None
        except UnicodeDecodeError as error:
            raise self._error(start, f"string {len(strings)} of {what} is not UTF-8: {error.reason}") from None
        self._at = at
        return strings

    def _read_tensors(self, count: int) -> dict[str, StoredTensor]:
        rows = [self._tensor_row() for _ in range(count)]
        self._refuse_unsupported([(name, kind) for name, _, kind, _, _ in rows])
        alignment = self._alignment()
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, dimensions, kind, offset, at in rows:
            if name in tensors:
                raise self._error(at, f"the tensor {name!r} occurs twice")
            if offset % alignment:
                raise self._error(at, f"the offset {offset} of tensor {name!r} is not a multiple of {alignment}")
            nbytes = self._tensor_bytes(name, dimensions, kind, at)
            if start + offset + nbytes > self._end:
                raise self._error(
                    at,
                    f"tensor {name!r} ends at byte {start + offset + nbytes}, beyond the end of the file "
                    f"({self._end} bytes); the file is truncated or corrupt",
                )
            shape = tuple(reversed(dimensions))
            tensors[name] = StoredTensor(self._path, name, shape, _TENSOR_TYPES[kind], start + offset, nbytes)
        self._refuse_overlaps(tensors)
        return tensors

    def _tensor_row(self) -> tuple[str, tuple[int, ...], int, int, int]:
        """One row of the table: name, dimensions as stored, type id, offset, and the byte where the row starts."""
        at = self._at
        name = self._string("a tensor's name", _MAX_KEY_BYTES)
        count = self._u32(f"the dimension count of tensor {name!r}")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise self._error(at, f"tensor {name!r} has {count} dimensions instead of 1 to {_MAX_DIMENSIONS}")
        dimensions = tuple(self._u64(f"a dimension of tensor {name!r}") for _ in range(count))
        kind = self._u32(f"the type of tensor {name!r}")
        offset = self._u64(f"the offset of tensor {name!r}")
        return name, dimensions, kind, offset, at

    def _tensor_bytes(self, name: str, dimensions: tuple[int, ...], kind: int, at: int) -> int:
        block_values, block_bytes = BLOCK_SIZES[_TENSOR_TYPES[kind]]
        if 0 in dimensions:
            raise self._error(at, f"tensor {name!r} has an empty dimension: {list(dimensions)}")
        if dimensions[0] % block_values:
            raise self._error(
                at,
                f"rows of tensor {name!r} have {dimensions[0]} values, not a multiple of {block_values} "
                f"as {_TENSOR_TYPES[kind].upper()} needs",
            )
        return math.prod(dimensions) // block_values * block_bytes

    def _refuse_unsupported(self, tensors: list[tuple[str, int]]) -> None:
        by_type: dict[str, list[str]] = {}
        for name, kind in tensors:
            type_name = _TENSOR_TYPES.get(kind, f"unknown type {kind}")
            if type_name not in BLOCK_SIZES:
                by_type.setdefault(type_name.upper(), []).append(name)
        if by_type:
            found = "; ".join(
                f"{kind} ({len(names)} tensors: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
                for kind, names in sorted(by_type.items())
            )
            supported = ", ".join(name.upper() for name in BLOCK_SIZES)
            raise ValueError(f"{self._path}: tensor types that are not supported: {found}. Supported: {supported}")

    def _refuse_overlaps(self, tensors: dict[str, StoredTensor]) -> None:
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise self._error(after.offset, f"tensors {before.name!r} and {after.name!r} overlap")

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(value) is not int or value < 1 or value & (value - 1):
            raise ValueError(f"{self._path}: general.alignment is {value!r} instead of a power of two")
        return value

    def _string(self, what: str, max_bytes: int) -> str:
        at = self._at
        length = self._u64(f"the length of {what}")
        if length > max_bytes:
            raise self._error(at, f"{what} is {length} bytes long; at most {max_bytes} are possible")
        self._need(length, what)
        start, self._at = self._at, self._at + length
        try:
            return str(self._buffer[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(start, f"{what} is not UTF-8: {error.reason}") from None

    def _count(self, min_bytes: int, what: str) -> int:
        """A count of things of at least `min_bytes` each; refused when so many cannot be in the rest of the file."""
        at = self._at
        count = self._u64(f"the number of {what}")
        if count * min_bytes > self._end - self._at:
            raise self._error(at, f"{count} {what} do not fit into the {self._end - self._at} bytes that are left")
        return count

    def _u32(self, what: str) -> int:
        self._need(4, what)
        value: int = _U32.unpack_from(self._buffer, self._at)[0]
        self._at += 4
        return value

    def _u64(self, what: str) -> int:
        self._need(8, what)
        value: int = _U64.unpack_from(self._buffer, self._at)[0]
        self._at += 8
        return value

    def _need(self, nbytes: int, what: str) -> None:
        if nbytes > self._end - self._at:
            raise self._error(
                self._at,
                f"{what} needs {nbytes} bytes, but the file ends {self._end - self._at} bytes later; it is truncated",
            )

    def _error(self, at: int, problem: str) -> ValueError:
        return ValueError(f"{self._path}: at byte {at}: {problem}")
