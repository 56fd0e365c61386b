"""Runs emulated kernels under one order of threads, with watched outputs, and knows bf16 and poisoned memory."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

GUARD_ELEMENTS = 256
# What a device may differ by in units of what the emulator may; bench/device/case_runner.py raises it there.
TOLERANCE_FACTOR = 1.0
# What stands in memory of each type where nothing was written: NaN, or the number that no kernel writes.
POISON = {
    "f32": np.float32(np.nan),
    "f16": np.float16(np.nan),
    "bf16": np.uint16(0x7FC0),
    "fp8": np.uint8(0x7F),
    "int8": np.int8(-128),
}
GAP_ELEMENTS = 16
ORDERS = [("forward", 1), ("reverse", 1), ("shuffled", 1), ("shuffled", 2)]
CASES = []  # every check of kernels: function(machine) raises when a result is wrong
BARRIER_CASES = []  # those that are also run with barriers left out: each kernel in one of them


def kernel_case(function):
    """Registers a check that also notices a missing barrier."""
    BARRIER_CASES.append(function)
    return further_case(function)


def further_case(function):
    """Registers a check of kernels whose barriers another case looks after."""
    CASES.append(function)
    return function


class NotHere(Exception):
    """What a check of kernels needs and this machine lacks."""


class RaceError(AssertionError):
    """Two accesses to one byte without a barrier between them."""


def modules():
    """The emulated builds that are here: plain, and the race checker unless this is a sanitizer build."""
    from llmsrv import _emulated

    try:
        return {"plain": _emulated, "race": race_checker()}
    except ImportError:
        return {"plain": _emulated}


def race_checker():
    """The build that finds races. Raises ImportError in a sanitizer build."""
    return importlib.import_module("llmsrv._emulated_race")


class Machine:
    """One build of the emulator under one order of threads."""

    def __init__(self, module, order: str, seed: int = 1) -> None:
        self.module = module
        self.order = order
        self.seed = seed

    def run(self, kernel: str, written: dict[str, np.ndarray], /, **arguments) -> None:
        """Launches; the written arrays are watched for races between blocks too."""
        self.module.set_order(self.order, self.seed)
        self.module.take_race()
        for name, array in written.items():
            self.module.watch(array, name)
        try:
            getattr(self.module, kernel)(**written, **arguments)
        finally:
            self.module.unwatch()
        race = self.module.take_race()
        if race:
            raise RaceError(race)

    def library(self, name):
        """(soname, folders) of what stands in for "cublaslt" or "nccl"."""
        return f"libllmsrv_stand_in_{name}.so", [str(Path(self.module.__file__).parent)]

    def require_capability(self, major, minor):
        """Raises NotHere on a device of a lower compute capability; the emulator knows them all."""

    @contextmanager
    def without(self, site):
        """Leaves one barrier or wait out."""
        self.module.leave_out(*site)
        try:
            yield
        finally:
            self.module.leave_out_nothing()


def to_bf16(values) -> np.ndarray:
    """Rounds to nearest even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_bf16(bits) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(values, dtype) -> np.ndarray:
    """Values as the kernels hold them, between guards of NaN: what is read beside them shows in the result."""
    values = to_bf16(values) if dtype == "bf16" else np.asarray(values, POISON[dtype].dtype)
    whole = poison(values.size + 2 * GUARD_ELEMENTS, dtype)
    inner = whole[GUARD_ELEMENTS:-GUARD_ELEMENTS].reshape(values.shape)
    inner[...] = values
    return inner


def unwritten(shape, dtype) -> np.ndarray:
    """Room for a result, NaN all over, between guards."""
    whole = poison(int(np.prod(shape)) + 2 * GUARD_ELEMENTS, dtype)
    return whole[GUARD_ELEMENTS:-GUARD_ELEMENTS].reshape(shape)


def with_gaps(values, dtype) -> np.ndarray:
    """As stored(), with NaN between the rows as beside them."""
    whole = unwritten((values.shape[0], values.shape[1] + GAP_ELEMENTS), dtype)
    inner = whole[:, :-GAP_ELEMENTS]
    inner[...] = to_bf16(values) if dtype == "bf16" else values
    return inner


def unwritten_with_gaps(rows, cols, dtype):
    """(the whole matrix, the room for a result in it): nothing may be written between the rows."""
    whole = unwritten((rows, cols + GAP_ELEMENTS), dtype)
    return whole, whole[:, :cols]


def values_before_gaps(whole) -> np.ndarray:
    """What was written into the room of unwritten_with_gaps()."""
    values = values_of(whole)
    assert np.isnan(values[:, -GAP_ELEMENTS:]).all(), "something was written between the rows"
    return values[:, :-GAP_ELEMENTS]


def poison(count, dtype) -> np.ndarray:
    """NaN of the type, starting at a multiple of 64 bytes."""
    nothing = POISON[dtype]
    raw = np.empty(count * nothing.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    whole = raw[start : start + count * nothing.itemsize].view(nothing.dtype)
    whole[...] = nothing
    return whole


def values_of(array) -> np.ndarray:
    """What a result means, in double precision; the guards beside it must be as they were."""
    assert_guarded(array)
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def assert_guarded(array):
    if array.size == 0:
        return  # NumPy gives what holds nothing any address
    raw = array.base
    first = array.ctypes.data - raw.ctypes.data
    nothing = next(each for each in POISON.values() if each.dtype == array.dtype)
    guard = np.full(GUARD_ELEMENTS, nothing).tobytes()
    for start in (first - len(guard), first + array.nbytes):
        assert raw[start : start + len(guard)].tobytes() == guard, "something was written beside the result"


def assert_near(actual, expected, absolute, relative=0.0):
    """NaN places first, then |actual - expected| <= absolute * rms(expected) + relative * |expected|.

    `absolute` counts TOLERANCE_FACTOR times.
    """
    assert actual.shape == expected.shape
    assert np.array_equal(np.isnan(actual), np.isnan(expected)), "NaN in other places"
    scale = np.sqrt(np.mean(expected * expected)) if expected.size else 0.0
    wrong = np.abs(actual - expected) > TOLERANCE_FACTOR * absolute * scale + relative * np.abs(expected)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} too far, first at {at}: got {actual[at]!r}, expected {expected[at]!r}"
        )
