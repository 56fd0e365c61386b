"""Weights of a checked model → the core. One pass over the files in their own order, one tensor at a time.

Bytes go from the mapping straight into the core's packed memory; pages that were read are given back at once, so that
loading needs no second copy of the model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmsrv._core import Weights
from llmsrv.weights.mapped_file import StoredTensor, TensorReader
from llmsrv.weights.model_files import GenerationDefaults, ModelFiles, inspect_model
from llmsrv.weights.packed_cache import PackedCache
from llmsrv.weights.progress import ProgressCallback, no_progress, show_progress

__all__ = [
    "GenerationDefaults",
    "ModelFiles",
    "PackedCache",
    "inspect_model",
    "load_weights",
    "show_progress",
]

_COMPARED_BYTES = 16 << 20


def load_weights(
    files: ModelFiles,
    *,
    dtype: str,
    threads: int,
    progress: ProgressCallback = no_progress,
    cache: PackedCache | None = None,
) -> Weights:
    """All weights. `dtype` of the matrices: auto (as the files have them), bfloat16, float32, int8 or int4.

    They are taken from `cache`, or read from the files and left there for the next time. Raises ValueError for another
    dtype, and when the files have changed since they were inspected.
    """
    weights = Weights(files.spec, dtype=dtype, threads=threads, sources=files.weight_sources)
    if cache is not None and cache.map(weights, progress):
        return weights
    _read_weights(weights, files, progress)
    if cache is not None:
        cache.write(weights)
    return weights


def _read_weights(weights: Weights, files: ModelFiles, progress: ProgressCallback) -> None:
    jobs = [(weight, source, files.tensors[source.tensor]) for weight, source in files.blueprint.sources.items()]
    jobs.sort(key=lambda job: (job[2].path, job[2].offset))
    total = sum(tensor.nbytes for _, _, tensor in jobs)
    done = 0
    progress(done, total)
    with TensorReader() as reader:
        for copy, original in files.blueprint.copies.items():
            _check_copy(reader, files.tensors[copy], files.tensors[original])
        for weight, source, tensor in jobs:
            data = reader.data(tensor)
            if source.rows is not None:
                data = _gather_rows(data, source.rows)
            if source.offset:
                weights.set(weight, "f32", tensor.shape, _float32(data, tensor) + np.float32(source.offset))
            else:
                weights.set(weight, tensor.format, tensor.shape, data)
            reader.drop_pages(tensor)
            done += tensor.nbytes
            progress(done, total)


def _gather_rows(data: memoryview, rows: NDArray[np.int64]) -> memoryview:
    """The bytes with row rows[r] at place r. Rows are whole blocks in every format, so they move as they are."""
    return np.frombuffer(data, np.uint8).reshape(rows.size, -1)[rows].reshape(-1).data


def _float32(data: memoryview, tensor: StoredTensor) -> NDArray[np.float32]:
    """The values of a tensor of plain floats."""
    if tensor.format == "f32":
        return np.frombuffer(data, np.float32)
    if tensor.format == "f16":
        return np.frombuffer(data, np.float16).astype(np.float32)
    if tensor.format == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"{tensor.path}: {tensor.name} is {tensor.format}; only plain floats are supported here")


def _check_copy(reader: TensorReader, copy: StoredTensor, original: StoredTensor) -> None:
    """Refuses a tensor that is said to be tied to another one but holds something else."""
    first, second = reader.data(copy), reader.data(original)
    same = (copy.format, copy.shape) == (original.format, original.shape) and all(
        first[at : at + _COMPARED_BYTES].tobytes() == second[at : at + _COMPARED_BYTES].tobytes()
        for at in range(0, copy.nbytes, _COMPARED_BYTES)
    )
    reader.drop_pages(copy)
    reader.drop_pages(original)
    if not same:
        raise ValueError(
            f"{copy.path}: {copy.name} differs from {original.name}, although the configuration says that they are "
            "tied. If the checkpoint is right, set tie_word_embeddings to false"
        )
