"""Reader of safetensors files and of folders that hold one or several of them.

Layout of a file: header length u64, the header (JSON: name → dtype, shape, data_offsets), then the data, to which
offsets are relative. The tensors must cover the data without holes or overlaps, so a truncated file is always noticed.
Our own reader, because views of bfloat16 and the wording of errors both need it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from llmsrv.weights.json_file import parse_json_object, read_json_object
from llmsrv.weights.mapped_file import BLOCK_SIZES, MappedFile, StoredTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
# Room for more than 100,000 tensors in one file.
_MAX_HEADER_BYTES = 16 << 20
_MAX_INDEX_BYTES = 64 << 20
_MAX_DIMENSIONS = 8
_MAX_INTEGER = 2**63 - 1


def read_safetensors_folder(folder: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """All tensors of a model folder: those of `model.safetensors`, or of the shards that its index names.

    Raises ValueError when a file is missing, malformed, or disagrees with the index.
    """
    folder = Path(folder)
    index = folder / INDEX_NAME
    if index.exists():
        return _read_shards(index)
    single = folder / SINGLE_NAME
    if single.exists():
        return read_safetensors(single)
    raise ValueError(f"{folder}: there is neither {SINGLE_NAME} nor {INDEX_NAME}")


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """The tensors of one file, by name. Raises OSError when it cannot be opened, ValueError when it is malformed."""
    file = MappedFile(path)
    try:
        return _read_table(file)
    finally:
        file.close()


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    owner = _read_index(index)
    shards = sorted(set(owner.values()))
    missing = [shard for shard in shards if not (index.parent / shard).exists()]
    if missing:
        raise ValueError(f"{index}: shards that the index names are missing: {_some(missing)}")
    tables = {shard: read_safetensors(index.parent / shard) for shard in shards}
    absent = [f"{name} in {shard}" for name, shard in owner.items() if name not in tables[shard]]
    if absent:
        raise ValueError(f"{index}: tensors that the index names are missing: {_some(absent)}")
    unlisted = [f"{name} in {shard}" for shard in shards for name in tables[shard] if owner.get(name) != shard]
    if unlisted:
        raise ValueError(f"{index}: the index does not name these tensors of its shards: {_some(unlisted)}")
    return {name: tables[shard][name] for name, shard in owner.items()}


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name → shard file name. Shards must lie in the folder itself: the index is not trusted."""
    weight_map = read_json_object(path, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path}: weight_map is missing or empty")
    for name, shard in weight_map.items():
        if not _is_shard_name(shard):
            raise ValueError(f"{path}: tensor {name!r} is said to be in {shard!r}, which is not a file of this folder")
    return weight_map


def _is_shard_name(value: object) -> bool:
    return (
        isinstance(value, str) and value.endswith(".safetensors") and value.isprintable() and Path(value).name == value
    )


def _read_table(file: MappedFile) -> dict[str, StoredTensor]:
    """The tensor table of one file, every range checked against the file's size."""
    if file.size < 8:
        raise ValueError(f"{file.path}: {file.size} bytes long, too short for a safetensors file")
    header_bytes = int.from_bytes(file.slice(0, 8), "little")
    if header_bytes > min(_MAX_HEADER_BYTES, file.size - 8):
        raise ValueError(
            f"{file.path}: at byte 0: the header is said to be {header_bytes} bytes long, but the file has only "
            f"{file.size - 8} more bytes and at most {_MAX_HEADER_BYTES} are read; it is truncated or not safetensors"
        )
    header = parse_json_object(bytes(file.slice(8, header_bytes)), f"{file.path}: header")
    header.pop("__metadata__", None)
    _refuse_unsupported(file.path, header)
    data_start = 8 + header_bytes
    tensors = [_stored_tensor(file.path, name, entry, data_start) for name, entry in header.items()]
    expected = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != expected:
            problem = "overlaps the tensor before it" if tensor.offset < expected else "leaves a hole before it"
            raise ValueError(f"{file.path}: tensor {tensor.name!r} at byte {tensor.offset} {problem}")
        expected = tensor.offset + tensor.nbytes
    if expected != file.size:
        raise ValueError(
            f"{file.path}: the tensors end at byte {expected}, but the file is {file.size} bytes long; "
            "it is truncated or corrupt"
        )
    return {tensor.name: tensor for tensor in tensors}


def _refuse_unsupported(path: Path, header: Mapping[str, object]) -> None:
    found: dict[str, list[str]] = {}
    for name, entry in header.items():
        dtype = entry.get("dtype") if isinstance(entry, dict) else None
        if isinstance(dtype, str) and dtype not in _FORMATS:
            found.setdefault(dtype, []).append(name)
    if found:
        kinds = "; ".join(f"{dtype} ({len(names)} tensors: {_some(names)})" for dtype, names in sorted(found.items()))
        raise ValueError(
            f"{path}: tensor types that are not supported: {kinds}. Supported: {', '.join(sorted(_FORMATS))}"
        )


def _stored_tensor(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    where = f"{path}: header entry {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where}: needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{where}: dtype is not a string")
    if not _is_integers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{where}: shape is not a list of at most {_MAX_DIMENSIONS} counts")
    if not _is_integers(offsets) or len(offsets) != 2:
        raise ValueError(f"{where}: data_offsets is not a pair of byte offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * BLOCK_SIZES[_FORMATS[dtype]][1]
    if end - begin != nbytes:
        raise ValueError(f"{where}: {dtype} {shape} is {nbytes} bytes, but data_offsets span {end - begin}")
    return StoredTensor(path, name, tuple(shape), _FORMATS[dtype], data_start + begin, nbytes)


def _is_integers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _MAX_INTEGER for item in value)


def _some(names: list[str]) -> str:
    """The first few names of a list that may be long."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
