"""One table, in a process of its own, with a limit of time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import anchors
import determinism
import tables
import whole_model
from bench_device import open_device
from report import Report

PARTS = {
    "peaks": tables.peaks,
    "decode attention": tables.decode_attention,
    "prefill attention": tables.prefill_attention,
    "linear": tables.linear,
    "determinism": determinism.determinism,
    "anchors": anchors.anchors,
    "whole model": whole_model.whole_model,
}


class Job:
    """A part under way: the device, the results so far, the time that is left."""

    def __init__(self, name, args):
        self.name, self.path = name, args.json
        self.end = time.monotonic() + args.seconds
        self.device = open_device(args.emulate)
        described = self.device.description
        self.report = Report("device", args.json, device=described["name"], emulated=self.device.emulated)
        self.device.report = self.report

    def row(self, what, figure, beside="", **result):
        """A line of the table. Emulated ones carry no figure."""
        if self.device.emulated:
            figure, beside = "emulated: no figure", ""
            result = {key: value for key, value in result.items() if key not in FIGURES}
        self.report.add(
            f"{self.name:<18} {what:<40} {figure:<34} {beside}".rstrip(), name=self.name, what=what, **result
        )

    def not_run(self, what, why):
        self.report.add(f"{self.name:<18} {what:<40} not run: {why}", name=self.name, what=what, not_run=str(why))

    def has(self, seconds, what):
        """Whether so much time is left for a row; says so when it is not."""
        if self.end - time.monotonic() >= seconds:
            return True
        self.not_run(what, "no time was left")
        return False

    def peak(self, kind):
        """What the part "peaks" has measured on this device last; None before that."""
        found, device = None, self.device.description["name"]
        if self.path and Path(self.path).exists():
            for line in Path(self.path).read_text().splitlines():
                result = json.loads(line)
                if (result["name"], result["device"], result.get("kind")) == ("peaks", device, kind) and kind in result:
                    found = result[kind]
        return found

    def share(self, figure, kind, wanted=None):
        """The figure as a share of a peak, in words, and as a number."""
        peak = self.peak(kind)
        if peak is None or figure is None:
            return "", None
        text = f"{figure / peak:5.0%} of {'copy' if kind == 'gb_per_s' else 'matrix peak'}"
        return text + (f" (wanted {wanted:.0%})" if wanted else ""), figure / peak


FIGURES = {
    "us", "gb_per_s", "tflop_per_s", "share", "ms", "tokens_per_s", "gap_share", "host_ms", "processor_ms",
    "own_us", "free_us", "fixed_us", "unpack_us", "rows_min",
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    PARTS[args.part](Job(args.part, args))


if __name__ == "__main__":
    main()
