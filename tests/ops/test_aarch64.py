"""The kernels on aarch64: cross-compiled, run in emulation, and the same bits as here.

They need what Debian calls g++-aarch64-linux-gnu and qemu-user-static; without them nothing is tested.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from testing_module import ROOT, tool

from llmsrv import _testing

COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
BUILD = ROOT / "build" / "aarch64"


def succeed(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def program():
    """The program that says what every operation gives, by the project's own build."""
    if COMPILER is None or EMULATOR is None:
        pytest.skip("no aarch64 machine, nor aarch64-linux-gnu-g++ and qemu-aarch64-static in its place")
    succeed(
        tool("cmake"), "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
        "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static", "-DCMAKE_BUILD_TYPE=Release", "-DLLMSRV_TESTING=ON", "-DLLMSRV_WERROR=ON",
    )  # fmt: skip
    succeed(tool("cmake"), "--build", BUILD, "--target", "kernel_digests")
    return Path(BUILD / "python" / "bindings" / "kernel_digests")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("isa", ["scalar", "neon"])
def test_every_operation_gives_the_same_bits(program, isa):
    """Integers are exact in every table, and neon has the plain table's floats."""
    found = {}
    for line in succeed(EMULATOR, program, isa).splitlines():
        digest, _, name = line.partition(" ")
        found[name] = int(digest)
    expected = dict(_testing.kernel_digests("scalar"))
    assert len(expected) > 200
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
