"""Builds for the device found, proves the kernels on it, measures it, and says in one table what came out.

Every part is processes of its own under a limit of time: a kernel that hangs or breaks the device ends its part, not
the run. Exit code 1 when a part of correctness failed or could not run; slow is not wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import device_build as build
from case_runner import conformance_names, kernel_names, small_names
from correctness import run_cases, run_sanitizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 460.0
# Part -> the most seconds that it may take. What is left of one is the next one's.
LIMITS = {
    "build": 160, "conformance": 25, "kernels": 45, "sanitizer": 45, "peaks": 20, "decode attention": 40,
    "prefill attention": 15, "linear": 40, "determinism": 30, "whole model": 120, "anchors": 45,
}  # fmt: skip
CORRECTNESS = ("conformance", "kernels", "sanitizer")


class Run:
    """One run of the script: its device, its limits, its results."""

    def __init__(self, args, environment, out):
        self.args, self.environment, self.out = args, environment, out
        self.emulated = args.emulate
        self.report = Report("device", out, device=environment.get("LLMSRV_DEVICE_NAME"), emulated=self.emulated)
        self.end = time.monotonic() + args.seconds
        self.failed = []

    def deadline(self, part):
        return min(self.end, time.monotonic() + LIMITS[part])

    def say(self, part, text):
        print(f"{part:<18} {text}", flush=True)

    def correctness(self, part):
        """Runs cases; each failure is a line."""
        names = (
            conformance_names()
            if part == "conformance"
            else kernel_names(self.environment.get("LLMSRV_DEVICE_CAPABILITY"))
        )
        if self.args.small:
            names = small_names(names)
        outcome = run_sanitizer(self, names) if part == "sanitizer" else run_cases(self, names, self.deadline(part))
        for name, error in outcome.failed.items():
            self.say(part, f"FAILED {name}: {error}")
        for name, reason in outcome.skipped.items():
            self.say(part, f"skipped {name}: {reason}")
        self.report.add(f"{part:<18} {outcome.summary}", name=part, **outcome.as_result())
        if outcome.failed or outcome.not_run:
            self.failed.append(part)

    def measure(self, part):
        """A table, in a process of its own."""
        left = self.deadline(part) - time.monotonic()
        if left < 2:
            self.say(part, "not run: no time was left")
            return
        command = [sys.executable, str(Path(__file__).with_name("part.py")), part, "--seconds", f"{left:.1f}"]
        command += ["--emulate"] if self.emulated else []
        command += ["--json", str(self.out)]
        try:
            done = subprocess.run(command, env=self.environment, timeout=left + 10, check=False)
        except subprocess.TimeoutExpired:
            self.say(part, f"ended after {left + 10:.0f} s; rows that are missing were not measured")
            return
        if done.returncode != 0:
            self.say(part, f"ended with exit code {done.returncode}; rows that are missing were not measured")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="append JSON lines to a file in it")
    parser.add_argument("--emulate", action="store_true", help="a dry run without a device: no figures")
    parser.add_argument("--small", action="store_true", help="only a few of the cases")
    parser.add_argument("--parts", metavar="NAME,...", help=f"of {', '.join(list(LIMITS)[1:])}; default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the whole run")
    parser.add_argument("--build", metavar="FOLDER", type=Path, help="default: build/device-TARGET")
    parser.add_argument("--build-only", metavar="TARGET", help="builds for 80, 90a, ... without a device, and ends")
    args = parser.parse_args()
    args.out, args.build = (path and path.resolve() for path in (args.out, args.build))
    args.parts = args.parts.split(",") if args.parts else list(LIMITS)[1:]
    for part in args.parts:
        if part not in LIMITS or part == "build":
            parser.error(f"no such part: {part}")
    return args


def open_run(args, folder):
    """The run with its build done. Its results go to a file in the folder. Raises build.NotPossible."""
    begin = time.monotonic()
    if args.emulate:
        environment, where = build.emulated(), "emulated on this machine: no figure says anything about a device"
    else:
        device = build.find_device()
        built = args.build or build.folder_for(device.target)
        build.build(built, device.target, LIMITS["build"])
        environment = build.environment_for(built)
        described = build.describe(environment)
        environment["LLMSRV_DEVICE_NAME"] = described["name"]
        environment["LLMSRV_DEVICE_CAPABILITY"] = described["capability"]
        where = f"{described['name']}: {json.dumps(described)}"
    run = Run(args, environment, folder / ("emulated.jsonl" if args.emulate else "device.jsonl"))
    run.end -= time.monotonic() - begin
    run.say("build", f"{time.monotonic() - begin:.0f} s; {where}")
    return run


def run_parts(args, folder):
    """The exit code."""
    run = open_run(args, folder)
    for part in args.parts:
        if part in CORRECTNESS:
            run.correctness(part)
        else:
            run.measure(part)
    run.say("verdict", f"FAILED: {', '.join(run.failed)}" if run.failed else "all parts of correctness passed")
    return 1 if run.failed else 0


def main():
    args = parsed()
    os.chdir(ROOT)
    try:
        if args.build_only:
            build.build(args.build or build.folder_for(args.build_only), args.build_only, None)
            return 0
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            return run_parts(args, args.out)
        with tempfile.TemporaryDirectory() as folder:  # shares need this run's peaks
            return run_parts(args, Path(folder))
    except build.NotPossible as error:
        print(f"bench/device/run.sh: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
