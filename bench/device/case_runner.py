"""Runs cases of tests/emulation on a device, or on the emulator: one line of JSON before and after each.

Ends after a case that broke the device: nothing can be said about the next ones in the same process.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import importlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "emulation")]

# On tensor cores the products of a step are lined up and cut off, not rounded one by one as on the emulator.
TOLERANCE_FACTOR = 4.0
LIBRARIES = {"cublaslt": "libcublasLt.so.13", "nccl": "libnccl.so.2"}
SMALL = ("rms_norm", "move_blocks", "sample")


def module(name):
    """A module of the build that the environment names."""
    import llmsrv

    for folder in os.environ.get("LLMSRV_DEVICE_MODULES", "").split(os.pathsep):
        if folder and folder not in llmsrv.__path__:
            llmsrv.__path__.insert(0, folder)
    return importlib.import_module(f"llmsrv.{name}")


def all_cases():
    """Name -> case, the wrappers of single instructions first."""
    module("_testing")
    import all_cases
    import machine

    machine.TOLERANCE_FACTOR = TOLERANCE_FACTOR
    cases = sorted(all_cases.CASES, key=lambda case: not case.__module__.endswith("wrapper_cases"))
    return {case.__name__: case for case in cases}


def listed(wrappers):
    """Names of cases, those of wrappers or all others, read without the modules that they need."""
    for path in sorted((TESTS / "emulation").glob("*_cases.py")):
        if path.name.endswith("wrapper_cases.py") == wrappers:
            yield from names_in(path)


def names_in(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id in ("kernel_case", "further_case") for mark in node.decorator_list
        ):
            yield node.name


def conformance_names():
    return list(listed(True))


def kernel_names(capability):
    """Of a device of this compute capability; None is the emulator, which has all instructions."""
    others = set() if capability in (None, "9.0") else set(names_in(TESTS / "emulation" / "hopper_cases.py"))
    return [name for name in listed(False) if name not in others]


def small_names(names):
    """A few seconds of them on the emulator."""
    kept = [name for name in names if name in SMALL]
    return kept or names


class DeviceMachine:
    """Runs kernels on the device. In place of the emulator's machine of tests/emulation/machine.py."""

    def __init__(self, module):
        self.module = module

    def library(self, name):
        from machine import NotHere

        try:
            return find_library(name)
        except LookupError as error:
            raise NotHere(error.args[0]) from error

    def require_capability(self, major, minor):
        from machine import NotHere

        capability = self.module.describe()["capability"]
        if not has_capability(capability, major, minor):
            raise NotHere(f"needs compute capability {major}.{minor}, and this device has {capability}")

    def run(self, kernel, written, /, **arguments):
        try:
            getattr(self.module, kernel)(**written, **arguments)
            self.module.finish()
        except BaseException:
            self.module.forget()
            raise


def make_machine(on):
    if on == "device":
        return DeviceMachine(module("_device"))
    from machine import Machine

    return Machine(module("_emulated_race" if on == "race checker" else "_emulated"), "shuffled")


def has_capability(capability, major, minor):
    """Whether a device's "9.0" is at least so much."""
    return tuple(int(part) for part in capability.split(".")) >= (major, minor)


def find_library(name):
    """(soname, folders) of "cublaslt" or "nccl". Raises LookupError with the reasons."""
    soname = LIBRARIES[name]
    folders = [str(folder) for folder in wheel_folders()]
    reasons = []
    for path in [soname, *(f"{folder}/{soname}" for folder in folders)]:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
        else:
            return soname, folders
    raise LookupError("; ".join(reasons))


def wheel_folders():
    """Where NVIDIA's wheels put their libraries, of this and of older versions."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for inside in ("cu13", "cublas", "nccl"):
            if (Path(root) / inside / "lib").is_dir():
                yield Path(root) / inside / "lib"


def say(**line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["device", "emulator", "race checker"], required=True)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    cases = all_cases()
    machine = make_machine(args.on)
    from machine import NotHere

    broken = getattr(machine.module, "DeviceError", ())
    for name in args.names:
        say(begin=name)
        start = time.perf_counter()
        try:
            cases[name](machine)
        except NotHere as error:
            say(end=name, skipped=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it was, it belongs into the table
            say(end=name, error=f"{type(error).__name__}: {error}")
            if isinstance(error, broken):
                return 3
        else:
            say(end=name, seconds=time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
