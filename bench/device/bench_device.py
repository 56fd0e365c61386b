"""What the tables measure on: the device, with memory that stays there, or the emulator, which shows that they run."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
from case_runner import find_library, has_capability, module

COLD_BYTES = 512 << 20  # several times the largest cache of a device
SECONDS = 0.4  # of measuring per row


def open_device(emulate):
    return Emulated(module("_emulated")) if emulate else Real(module("_device"))


class Real:
    """A device. Arrays are places in its memory; those of this machine are never touched."""

    emulated = False

    def __init__(self, module):
        self.module = module
        self.description = module.describe()
        self._held = []

    def noise(self, shape, dtype, kind="bf16"):
        """An array on the device, full of noise: "bf16" or "bytes"."""
        array = np.empty(shape, dtype)
        self.module.hold(array, kind)
        self._held.append(array)
        return array

    def finish(self):
        """Ends calls whose arrays are not held there: what they wrote is in the arrays."""
        self.module.finish()

    def forget(self):
        """Frees all arrays."""
        self.module.release()
        self._held.clear()

    def seconds(self, calls):
        """The median time of one of these calls, which run one after another as a graph."""
        graph = self.module.capture(lambda: [call() for call in calls])
        warm = statistics.median(graph.milliseconds(3))
        repeats = max(5, min(2000, int(SECONDS * 1e3 / max(warm, 1e-3))))
        return statistics.median(graph.milliseconds(repeats)) / 1e3 / len(calls)

    def fp8_library(self):
        """(soname, folders) of what multiplies fp8. Raises LookupError."""
        if not has_capability(self.description["capability"], 8, 9):
            raise LookupError("this device has no products of fp8")
        return find_library("cublaslt")

    def copies(self, nbytes):
        """How many of so many bytes do not fit into any cache."""
        return max(1, -(-COLD_BYTES // nbytes))


class Emulated:
    """The emulator: every call runs once, at toy sizes; no time means anything."""

    emulated = True

    def __init__(self, module):
        self.module = module
        self.description = {"name": "emulated", "multiprocessors": 1}
        self._rng = np.random.default_rng(0)

    def noise(self, shape, dtype, kind="bf16"):
        array = np.empty(shape, dtype)
        raw = array.reshape(-1).view(np.uint8)
        raw[:] = self._rng.integers(0, 64, raw.size, np.uint8)
        if kind == "bf16":
            raw.view(np.uint16)[:] = 0x3E00 | raw.view(np.uint16) & 0xFF
        return array

    def finish(self):
        pass

    def forget(self):
        pass

    def seconds(self, calls):
        for call in calls:
            call()

    def fp8_library(self):
        return "libllmsrv_stand_in_cublaslt.so", [str(Path(self.module.__file__).parent)]

    def copies(self, nbytes):
        return 1
