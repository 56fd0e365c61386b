"""Writes small GGUF files, right or wrong on purpose. Independent of the reader that it tests."""

import struct
from dataclasses import dataclass, field

SCALAR_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return u64(len(data)) + data


def scalar(kind, value):
    """A scalar of one of SCALAR_CODES, with its type."""
    return u32(kind) + struct.pack("<" + SCALAR_CODES[kind], value)


def text(value):
    return u32(STRING) + string(value)


def array(kind, values):
    """An array of scalars or strings, with its type."""
    if kind == STRING:
        items = b"".join(string(value) for value in values)
    else:
        items = b"".join(struct.pack("<" + SCALAR_CODES[kind], value) for value in values)
    return u32(ARRAY) + u32(kind) + u64(len(values)) + items


@dataclass
class Tensor:
    name: str
    dimensions: list  # fastest first, as in the file
    kind: int
    data: bytes
    offset: int | None = None  # placed one after the other when None


@dataclass
class Gguf:
    keys: list = field(default_factory=list)  # (name, encoded value)
    tensors: list = field(default_factory=list)
    version: int = 3
    alignment: int = 32
    tensor_count: int | None = None
    key_count: int | None = None

    def header(self):
        parts = [b"GGUF", u32(self.version)]
        parts.append(u64(len(self.tensors) if self.tensor_count is None else self.tensor_count))
        parts.append(u64(len(self.keys) if self.key_count is None else self.key_count))
        parts += [string(name) + value for name, value in self.keys]
        at = 0
        for tensor in self.tensors:
            offset = at if tensor.offset is None else tensor.offset
            parts.append(string(tensor.name) + u32(len(tensor.dimensions)))
            parts.append(b"".join(u64(dimension) for dimension in tensor.dimensions))
            parts.append(u32(tensor.kind) + u64(offset))
            at = self._aligned(at + len(tensor.data))
        return b"".join(parts)

    def build(self):
        header = self.header()
        out = header.ljust(self._aligned(len(header)), b"\0")
        for tensor in self.tensors:
            out += tensor.data.ljust(self._aligned(len(tensor.data)), b"\0")
        return out

    def _aligned(self, size):
        return -(-size // self.alignment) * self.alignment


def small_gguf():
    """One value of every metadata type and three tensors, about a kilobyte."""
    values = {
        0: 200,
        1: -5,
        2: 60000,
        3: -300,
        4: 4_000_000_000,
        5: -7,
        6: 0.5,
        7: 1,
        10: 2**63,
        11: -(2**62),
        12: 1e300,
    }
    return Gguf(
        keys=[
            ("general.architecture", text("llama")),
            *((f"test.scalar{kind}", scalar(kind, value)) for kind, value in values.items()),
            ("test.words", array(STRING, ["Ġa", "", "日本", "x" * 40])),
            ("test.ints", array(5, [1, -2, 3])),
            ("test.floats", array(6, [0.5, -1.5])),
            ("test.flags", array(7, [1, 0, 1])),
            ("test.nothing", array(4, [])),
        ],
        tensors=[
            Tensor("norm", [8], 0, struct.pack("<8f", *range(8))),
            Tensor("matrix", [32, 2], 3, bytes(range(40))),
            Tensor("half", [4, 3], 1, bytes(24)),
        ],
    )
