"""The device script, as far as a machine without a device can run it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "device"
FIGURES = {"us", "ms", "gb_per_s", "tflop_per_s", "share", "tokens_per_s", "gap_share", "host_ms", "processor_ms"}


def run_script(*flags):
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(
        [str(SCRIPT / "run.sh"), *flags], capture_output=True, text=True, check=False, timeout=250, env=environment
    )


def test_a_dry_run_passes_and_records_no_figures(tmp_path):
    done = run_script("--emulate", "--small", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all parts of correctness passed" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["emulated.jsonl"]
    results = [json.loads(line) for line in (tmp_path / "emulated.jsonl").read_text().splitlines()]
    assert all(result["emulated"] and not FIGURES & set(result) for result in results)
    by_part = {result["name"]: result for result in results}
    parts = {"conformance", "kernels", "sanitizer", "peaks", "decode attention", "linear", "determinism"}
    assert parts <= set(by_part)
    assert by_part["determinism"]["same_bits"]
    assert "an_element_of_a_product_does_not_depend_on_its_place" in by_part["conformance"]["passed"]
    assert by_part["kernels"]["passed"]
    assert not by_part["kernels"]["failed"]
    assert max(result.get("timed_steps", 0) for result in results if result["name"] == "whole model") > 1


def test_without_a_device_it_says_so_in_one_line():
    done = run_script()
    if "no NVIDIA device" not in done.stderr:
        pytest.skip("this machine has a device")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


CHILD = """
import json, os, pathlib, sys, time
for name in sys.argv[sys.argv.index("--on") + 2 :]:
    print(json.dumps({"begin": name}), flush=True)
    if name == "dies":
        os._exit(5)
    if name == "hangs":
        pathlib.Path(__file__).with_name("hanging").touch()
        time.sleep(600)
    how = {"wrong": {"error": "AssertionError: 3"}, "needs more": {"skipped": "no such library"}}.get(name, {})
    print(json.dumps({"end": name} | how), flush=True)
"""


@pytest.fixture
def run_cases(monkeypatch, tmp_path):
    """Runs cases of the child above; the time is up as soon as one hangs."""
    sys.path.insert(0, str(SCRIPT))
    try:
        import correctness
    finally:
        sys.path.remove(str(SCRIPT))
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(correctness, "CASES", tmp_path / "child.py")
    clock = SimpleNamespace(monotonic=lambda: float((tmp_path / "hanging").exists()))
    monkeypatch.setattr(correctness, "time", clock)
    run = SimpleNamespace(emulated=True, environment=None)
    return lambda *names: correctness.run_cases(run, names, deadline=0.5)


def test_a_case_that_dies_takes_only_itself_along(run_cases):
    outcome = run_cases("one", "dies", "wrong", "two")
    assert outcome.passed == ["one", "two"]
    assert outcome.failed["wrong"] == "AssertionError: 3"
    assert outcome.failed["dies"].startswith("died")
    assert not outcome.not_run


def test_a_case_that_lacks_something_is_neither_passed_nor_failed(run_cases):
    outcome = run_cases("one", "needs more", "two")
    assert outcome.passed == ["one", "two"]
    assert outcome.skipped == {"needs more": "no such library"}
    assert not outcome.failed
    assert outcome.summary == "2 passed, 0 failed, 1 skipped"


def test_a_case_that_hangs_ends_with_its_part(run_cases):
    outcome = run_cases("one", "hangs", "two")
    assert outcome.failed["hangs"].startswith("still running")
    assert outcome.passed == ["one"]
    assert outcome.not_run == ["two"]
