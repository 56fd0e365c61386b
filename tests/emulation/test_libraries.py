"""NVIDIA's libraries: how they are looked for, what is said when they are missing, and what cuBLASLt is asked for."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from machine import assert_near, stored, unwritten_with_gaps, values_before_gaps, with_gaps
from row_cases import as_read, numbers

from llmsrv import _emulated

STAND_IN = "libllmsrv_stand_in_cublaslt.so"
FOLDER = Path(_emulated.__file__).parent
MISSING = "libllmsrv_nobody_has_this.so.13"


def test_a_missing_library_is_one_sentence(tmp_path):
    with pytest.raises(_emulated.LibraryError) as error:
        _emulated.library_path(MISSING, [])
    assert str(error.value) == (
        f"{MISSING} was not found: it is not loaded, no wheel of NVIDIA's is installed, and the system has none; "
        "pip install it"
    )
    with pytest.raises(_emulated.LibraryError) as error:
        _emulated.library_path(MISSING, [str(tmp_path), "/nowhere"])
    assert f"it is not in {tmp_path}, /nowhere, and the system" in str(error.value)


def test_a_broken_library_is_not_passed_over(tmp_path):
    (tmp_path / MISSING).write_bytes(b"no library")
    with pytest.raises(_emulated.LibraryError, match=rf"^{tmp_path}/{MISSING} does not load: .*"):
        _emulated.library_path(MISSING, [str(tmp_path)])


def test_the_first_folder_that_has_it_wins_and_a_loaded_one_wins_over_all(tmp_path):
    """In a process of its own: a library stays loaded."""
    folders = [tmp_path / name for name in ("empty", "one", "two")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[1:]:
        shutil.copy(FOLDER / STAND_IN, folder / STAND_IN)
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("_emulated", {_emulated.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
folders = {[str(folder) for folder in folders]}
print(module.library_path({STAND_IN!r}, folders))
print(module.library_path({STAND_IN!r}, folders[::-1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(folders[1] / STAND_IN)] * 2


def test_wheels_are_found_beside_the_package(tmp_path):
    plugin = tmp_path / "llmsrv" / "libllmsrv_cuda.so"
    for wheel in ("cu13", "nccl"):
        assert _emulated.wheel_folders(str(plugin), wheel) == []
        wheels = tmp_path / "nvidia" / wheel / "lib"
        wheels.mkdir(parents=True)
        assert _emulated.wheel_folders(str(plugin), wheel) == [str(wheels)]


def test_a_library_without_a_function_is_one_sentence():
    """The module itself is a library that has none of cuBLASLt's functions."""
    with pytest.raises(_emulated.LibraryError, match="is too old or too new: it lacks cublasLt"):
        _emulated.DenseProducts(Path(_emulated.__file__).name, [str(FOLDER)], deterministic=True)


def products(deterministic):
    return _emulated.DenseProducts(STAND_IN, [str(FOLDER)], deterministic=deterministic)


def searches():
    return _emulated.library_counts()["searches"]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("dtype", "absolute", "relative"), [("f32", 3e-6, 1e-6), ("bf16", 1e-6, 2.0**-8)])
def test_products_are_right_in_every_shape(deterministic, dtype, absolute, relative):
    """Rows and columns are not taken for one another, rows may lie apart, and a product can be added."""
    rng = np.random.default_rng(31)
    dense = products(deterministic)
    for rows, outputs, cols in [(1, 1, 8), (5, 3, 16), (70, 24, 40), (0, 8, 8)]:
        weights = stored(numbers(rng, outputs, cols), "bf16")
        source = with_gaps(numbers(rng, rows, cols), "bf16")
        dense.prepare(weights, dtype == "f32", max(rows, 1))
        for adds in (False, True):
            whole, out = unwritten_with_gaps(rows, outputs, dtype)
            if adds:
                out[...] = with_gaps(numbers(rng, rows, outputs), dtype)
            expected = as_read(source) @ as_read(weights).T + (as_read(out) if adds else 0)
            dense.multiply(source, weights, out, adds)
            assert_near(values_before_gaps(whole), expected, absolute, relative)


def row_bits(dense, source, weights, rows):
    whole, out = unwritten_with_gaps(rows, weights.shape[0], "f32")
    dense.multiply(source[:rows], weights, out)
    return values_before_gaps(whole)[0].tolist()


def test_a_row_has_the_same_bits_beside_any_others():
    """The stand-in's algorithms differ in bits, and the best one depends on the number of rows."""
    rng = np.random.default_rng(32)
    weights = stored(numbers(rng, 24, 200), "bf16")
    source = stored(numbers(rng, 100, 200), "bf16")
    results = {}
    for deterministic in (True, False):
        dense = products(deterministic)
        before = searches()
        dense.prepare(weights, True, 100)
        made = searches() - before
        results[deterministic] = {tuple(row_bits(dense, source, weights, rows)) for rows in (1, 2, 30, 64, 100)}
        assert searches() - before == made, "an algorithm was looked for while it was needed"
        assert made == (1 if deterministic else 8)
    assert len(results[True]) == 1
    assert len(results[False]) == 3


def test_a_product_that_was_not_prepared_is_an_error():
    weights = stored(np.ones((8, 8)), "bf16")
    dense = products(deterministic=False)
    dense.prepare(weights, True, 4)
    _, out = unwritten_with_gaps(5, 8, "f32")
    with pytest.raises(_emulated.LibraryError, match="was not prepared"):
        dense.multiply(stored(np.ones((5, 8)), "bf16"), weights, out)


def test_fp8_products_want_multiples_of_16():
    products = _emulated.Fp8Products(STAND_IN, [str(FOLDER)], workspace=np.empty(0, np.uint8), deterministic=True)
    for outputs, cols in [(24, 32), (32, 24)]:
        with pytest.raises(ValueError, match=r"^CUDA fp8 linear: 24 is no multiple of 16$"):
            products.prepare(outputs, cols, 8)
