"""What this machine can do at most: memory reads, multiply-adds, and the cost of running threads as a team.

Definitions: bandwidth is the 90th percentile over reads of 4 MiB each, walking through 256 MiB. A compute peak is the
best run of independent chains in registers (a multiply-add is two operations). The barrier is the median time of an
empty team run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np

from llmsrv import _core, _testing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

MIB = 1 << 20


def bandwidth(threads):
    return float(np.quantile(_testing.read_bandwidths(threads, 256 * MIB, 4 * MIB, 640), 0.9))


def barrier_seconds(threads):
    return statistics.median(_testing.time_empty_runs(threads, 20_000))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()
    report = Report("peak", args.json, seed=None)

    for threads in sorted({1, args.threads}):
        value = bandwidth(threads) / 1e9
        report.add(
            f"read bandwidth  {threads} threads  {value:8.1f} GB/s", name="read", threads=threads, gb_per_s=value
        )
        for name, operations in _testing.compute_peaks(threads, 7):
            value = operations / 1e9
            report.add(f"{name:<18} {threads} threads  {value:8.0f} Gop/s", name=name, threads=threads, gop_per_s=value)
    if args.threads > 1:
        value = barrier_seconds(args.threads) * 1e6
        report.add(f"barrier  {args.threads} threads  {value:.2f} us", name="barrier", threads=args.threads, us=value)


if __name__ == "__main__":
    main()
