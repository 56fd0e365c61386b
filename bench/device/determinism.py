"""What promise P3 costs in linear layers: our kernels, whose rows keep their bits, against cuBLASLt's free choice.

Definitions: `free` is the algorithm that the library finds best for a step of rows (1, 2, 4, ...). `fixed` is the one
it finds for 512 rows without split sums, at any number of rows: whether rows then keep their bits is what "bits"
compares, row 0 beside any number of others. Both take bf16 rows, so `unpack` is added to what a layer of packed weights
costs with them. Matrices stay in the caches, if they fit, for all of them alike. The crossing is where unpack and free
take the time of our kernel, by straight lines between the rows that were measured: what LibraryLinear::kRowsMin
(cpp/cuda/library_linear.h) should be.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from anchors import NotHere, wheel_folders
from case_runner import module
from shapes import LINEAR

ROWS = [1, 8, 64, 256, 512, 2048]
WORKSPACE_BYTES = 32 << 20


def determinism(job):
    device = job.device
    shapes, counts = ({"toy": (32, 64)}, [1, 5, 70]) if device.emulated else (LINEAR, ROWS)
    for name, shape in shapes.items():
        if not job.has(4, name):
            continue
        try:
            libraries = open_libraries(device)
        except NotHere as error:
            job.not_run("beside cuBLASLt", error)
            return
        compare_times(job, name, shape, counts, libraries)
        compare_bits(job, name, shape, counts, libraries["fixed"])
        device.forget()


def open_libraries(device):
    """The library's products with a free choice, and with a fixed one. Raises NotHere."""
    workspace = None if device.emulated else device.noise((WORKSPACE_BYTES,), np.uint8)
    stand_in = ("libllmsrv_stand_in_cublaslt.so", [str(Path(device.module.__file__).parent)])
    soname, folders = stand_in if device.emulated else ("libcublasLt.so.13", list(wheel_folders()))
    try:
        return {
            kind: device.module.DenseProducts(soname, folders, kind == "fixed", workspace) for kind in ("free", "fixed")
        }
    except RuntimeError as error:
        raise NotHere(str(error)) from error


def compare_times(job, name, shape, counts, libraries):
    device, (outputs, cols) = job.device, shape
    panel_bytes = module("_testing").PackedMatrix("bf16", 16, cols).nbytes
    panels = device.noise((-(-outputs // 16), panel_bytes), np.uint8)
    rows = device.noise((outputs, cols), np.uint16)
    unpacking = device.seconds([lambda: device.module.unpack(weights=panels, out=rows, format="bf16")])
    times = {}
    for count in counts:
        source, out = (device.noise((count, n), np.uint16) for n in (cols, outputs))
        calls = {
            "own": lambda i=source, o=out: device.module.packed_linear(
                in_=i, weights=panels, bias=None, out=o, format="bf16", adds=False
            )
        }
        for kind, library in libraries.items():
            library.prepare(rows, False, count)
            calls[kind] = lambda i=source, o=out, library=library: library.multiply(i, rows, o)
        times[count] = {kind: device.seconds([call]) for kind, call in calls.items()}
        us = {f"{kind}_us": seconds and seconds * 1e6 for kind, seconds in times[count].items()}
        figure = " ".join(f"{kind} {(seconds or 0) * 1e6:.1f} us" for kind, seconds in times[count].items())
        job.row(f"{name} {outputs} x {cols}, M = {count}", figure, rows=count, outputs=outputs, cols=cols, **us)
    crossing = None if unpacking is None else crossing_of(times, unpacking)
    job.row(
        f"{name} {outputs} x {cols}, crossing", f"unpack {(unpacking or 0) * 1e6:.1f} us, from {crossing} rows on",
        unpack_us=unpacking and unpacking * 1e6, rows_min=crossing,
    )  # fmt: skip


def crossing_of(times, unpacking):
    """The rows from which on unpacking and the free choice are faster than our kernel; None when they never are."""
    gains = [(count, each["own"] - each["free"] - unpacking) for count, each in times.items()]
    if gains[0][1] > 0:
        return gains[0][0]
    for (below, loss), (above, gain) in pairwise(gains):
        if loss <= 0 < gain:
            return round(below + (above - below) * -loss / (gain - loss))
    return None


def compare_bits(job, name, shape, counts, fixed):
    """Row 0 beside others: the arrays travel, as their numbers matter."""
    outputs, cols = shape
    rng = np.random.default_rng(3)
    source, weights = (random_bf16(rng, n, cols) for n in (max(counts), outputs))
    fixed.prepare(weights, True, max(counts))
    first_rows = set()
    for count in counts:
        out = np.zeros((count, outputs), np.float32)
        fixed.multiply(source[:count], weights, out)
        job.device.finish()
        first_rows.add(out[0].tobytes())
    same = len(first_rows) == 1
    job.row(
        f"{name} {outputs} x {cols}, fixed: bits", "the same at any M" if same else f"{len(first_rows)} different",
        same_bits=same,
    )  # fmt: skip


def random_bf16(rng, rows, cols):
    """Numbers of ordinary size, cut off to bf16."""
    return (rng.standard_normal((rows, cols), np.float32).view(np.uint32) >> 16).astype(np.uint16)
