"""The choice of an instruction set, and that no kernel can leak into code that runs without it."""

from __future__ import annotations

import os
import platform
import subprocess
from itertools import permutations
from pathlib import Path

import pytest
from cases import ISAS

from llmsrv import _testing

ROOT = Path(__file__).resolve().parents[2]
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma"],
    "amx": ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mamx-tile", "-mamx-bf16"],
    "avx512": ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"],
    "avx512_bf16": ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"],
    "attention_avx512_bf16": [
        "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"
    ],
    "int8_scalar": [],
    "int8_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "int8_avx512": [
        "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mgfni"
    ],
}  # fmt: skip
# These have only what differs from AVX-512.
EXPORTS = {
    "amx": ["linear_bf16", "linear_scratch_bytes"],
    "avx512_bf16": ["linear_bf16", "linear_scratch_bytes"],
    "attention_avx512_bf16": ["attention_bf16"],
}
NEON_FLAGS = {"int8_neon": ["-march=armv8.2-a+dotprod"]}
if platform.machine() == "aarch64":
    ISA_FLAGS = {isa: ISA_FLAGS[isa] for isa in ("scalar", "int8_scalar")} | NEON_FLAGS


def test_the_scalar_table_is_always_there_and_last():
    assert ISAS[-1] == "scalar"
    # Which of the two tables in the middle is faster, depends on the maker.
    orders = [("amx", *middle, "avx2", "neon", "scalar") for middle in permutations(("avx512_bf16", "avx512"))]
    assert ISAS in [[isa for isa in order if isa in ISAS] for order in orders]


def test_the_best_table_is_the_default():
    assert _testing.CpuBackend(1, "").description == f"cpu ({ISAS[0]}, 1 thread)"


def test_each_table_can_be_forced(isa):
    assert _testing.CpuBackend(2, isa).description == f"cpu ({isa}, 2 threads)"


@pytest.mark.parametrize("wrong", ["sse9", "AVX2", "sve9", " "])
def test_an_impossible_choice_names_itself_and_what_there_is(wrong):
    with pytest.raises(ValueError, match=f"'{wrong}'") as error:
        _testing.CpuBackend(1, wrong)
    assert "LLMSRV_ISA" in str(error.value)
    assert ", ".join(ISAS) in str(error.value)


def test_the_environment_names_the_choice(monkeypatch):
    monkeypatch.delenv("LLMSRV_ISA", raising=False)
    assert _testing.cpu_isa_from_environment() == ""
    os.putenv("LLMSRV_ISA", "scalar")
    try:
        assert _testing.cpu_isa_from_environment() == "scalar"
    finally:
        os.unsetenv("LLMSRV_ISA")


@pytest.mark.parametrize("isa", ISA_FLAGS)
def test_kernel_objects_share_no_symbols(isa, tmp_path):
    """A weak symbol could be merged with another file's copy, and code without AVX would run the one with it.

    Unoptimized, so that nothing is inlined away.
    """
    compiler = os.environ.get("CXX", "c++")
    built = tmp_path / "kernels.o"
    flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-fPIC", f"-I{ROOT}", *ISA_FLAGS[isa]]
    source = ROOT / "cpp" / "cpu" / f"kernels_{isa}.cc"
    subprocess.run([compiler, *flags, "-c", str(source), "-o", str(built)], check=True)
    listing = subprocess.run(["nm", "-C", "--defined-only", str(built)], capture_output=True, text=True, check=True)
    shared = [line for line in listing.stdout.splitlines() if line.split()[1] not in "tTrRdDbBn"]
    assert shared == []
    exported = [line.split(" ", 2)[2] for line in listing.stdout.splitlines() if line.split()[1].isupper()]
    names = [name.split("(")[0] for name in exported]
    assert sorted(names) == [f"llmsrv::cpu::{isa}::{name}" for name in EXPORTS.get(isa, ["table"])]
