"""One JSON line per result, with all that is needed to compare it with another."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path


def commit():
    """The commit that is measured, with "+changes" when the tree differs from it; "unknown" outside of a checkout."""
    root = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def machine():
    """The processor's name and what runs on it."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {platform.system()} {platform.machine()}"


class Report:
    """Prints each result for people and appends it to a file of JSON lines."""

    def __init__(self, benchmark, path=None, **context):
        self._file = open(path, "a") if path else None  # noqa: SIM115 - stays open as long as the report
        self._common = {
            "benchmark": benchmark,
            "commit": commit(),
            "flags": sys.argv[1:],
            "machine": machine(),
            **context,
        }

    def add(self, text, **result):
        print(text, flush=True)
        if self._file:
            print(json.dumps({**self._common, **result}), file=self._file, flush=True)
