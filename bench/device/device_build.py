"""Finds the device and builds the modules for it, with the tools of this machine: nothing is fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("_testing", "_core", "_device", "llmsrv_cuda_plugin")


class NotPossible(Exception):
    """Why nothing can be run, as a sentence."""


@dataclass
class Device:
    """The first device of this machine."""

    target: str  # nvcc's name: 80, 90a, 100f


def find_device():
    """Asks the driver's own tool. Raises NotPossible."""
    smi = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    try:
        listed = subprocess.run(
            [smi, "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise NotPossible(f"no NVIDIA device was found ({error}); --emulate runs without one") from error
    capability = listed.stdout.split()[0] if listed.stdout.split() else ""
    if not capability.replace(".", "").isdigit():
        raise NotPossible(f"no NVIDIA device was found (nvidia-smi says {listed.stdout.strip()!r})")
    return Device(target_of(capability))


def target_of(capability):
    """nvcc's name of a compute capability, with the instructions that only its family has."""
    number = capability.replace(".", "")
    return number + {"9": "a", "10": "f", "12": "f"}.get(capability.split(".")[0], "")


def folder_for(target):
    return ROOT / "build" / f"device-{target}-cp{sys.version_info.major}{sys.version_info.minor}"


def tool(name):
    """The tool of this Python's environment, else the system's. Raises NotPossible."""
    beside_python = Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise NotPossible(f"{name} was not found: pip install cmake ninja")
    return found


def build(folder, target, seconds):
    """Configures and builds; says what failed with the compiler's words. Raises NotPossible."""
    import pybind11

    configure = [
        tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", "-DLLMSRV_TESTING=ON", "-DLLMSRV_CUDA=ON",
        f"-DLLMSRV_CUDA_ARCHITECTURES={target}", f"-DLLMSRV_DEVICE_ARCHITECTURE={target}",
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={folder / 'module'}",
    ]  # fmt: skip
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    for command in (configure, [tool("cmake"), "--build", str(folder), "--target", *TARGETS]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise NotPossible(
                f"the build took more than {seconds} s; it goes on where it was when run again"
            ) from error
        if done.returncode != 0:
            raise NotPossible(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def environment_for(folder):
    """For processes that use the modules of a build."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), environment.get("PYTHONPATH", "")])
    environment["LLMSRV_DEVICE_MODULES"] = str(folder / "module")
    return environment


def emulated():
    """The same with the modules that the tests use; they are built when they are missing."""
    environment = dict(os.environ)
    try:
        import llmsrv
    except ImportError:
        sys.path.insert(0, str(ROOT / "python"))
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), environment.get("PYTHONPATH", "")])
        import llmsrv
    sys.path.insert(0, str(ROOT / "tests"))
    import testing_module

    inside = len(list(llmsrv.__path__))
    try:
        testing_module.ensure(print, "_emulated", ("_emulated", "_emulated_race", "_testing"))
        testing_module.ensure(print, "_testing", ("_testing",))
    except RuntimeError as error:
        raise NotPossible(str(error)) from error
    environment["LLMSRV_DEVICE_MODULES"] = os.pathsep.join(list(llmsrv.__path__)[inside:])
    return environment


def describe(environment):
    """What the device says of itself. Raises NotPossible."""
    code = "import case_runner, json; print(json.dumps(case_runner.module('_device').describe()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    if done.returncode != 0:
        raise NotPossible(f"the device cannot be used: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)
