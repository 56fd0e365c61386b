"""What the first request after an idle timeout waits for the KV cache's memory, on a daemon that this script starts.

    python bench/serve/wake.py --model smollm2-135m --wakes 7
    python bench/serve/wake.py --kv-cache-memory 4GiB

The daemon runs with --idle-timeout. A wake: it is left alone until its memory has gone back to the system (seen in its
resident size), then gets a short request. The same request is then sent again and again while the memory is there,
bypassing the prefix cache as the first one did.

  wake_ms    first request after the memory was given back, sent to its end, one token: median over the wakes
  warm_ms    the same request while the memory is there: median
  delay_ms   wake_ms - warm_ms: what the memory costs
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2

MIB = 1 << 20
PATIENCE_S = 120.0


class IdlingDaemon:
    """A daemon that gives its memory back after a second; its log goes on to standard error."""

    def __init__(self, options):
        command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--model", options.model]
        flags = [
            "--idle-timeout",
            "1",
            "--kv-cache-memory",
            options.kv_cache_memory,
            "--swap-space",
            options.swap_space,
        ]
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
        self.kv_bytes = self.swap_bytes = 0.0
        address = self._read_until_serving()
        threading.Thread(target=self._drain, daemon=True).start()
        self.channel = grpc.insecure_channel(address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def _read_until_serving(self):
        address = ""
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.search(r"listening on (\S+)", line):
                address = found[1]
            if found := re.match(r"  (KV cache|swap) +([\d.]+) MiB", line):
                setattr(self, "kv_bytes" if found[1] == "KV cache" else "swap_bytes", float(found[2]) * MIB)
            if line.startswith("serving "):
                return address
        raise SystemExit("the daemon did not start")

    def _drain(self):
        for line in self.process.stderr:
            print(line, end="", file=sys.stderr)

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def ask(self):
        """Milliseconds of one request for one token."""
        message = inference_pb2.GenerateRequest(
            text="The quick brown fox jumps over the lazy dog.",
            sampling=types_pb2.SamplingParams(temperature=0.0),
            stopping=types_pb2.StoppingParams(max_tokens=1),
            bypass_prefix_cache=True,
        )
        began = time.perf_counter()
        self.inference.Generate(message)
        return (time.perf_counter() - began) * 1e3

    def wait_until_given_back(self, bytes_max):
        end = time.monotonic() + PATIENCE_S
        while self.resident_bytes() > bytes_max:
            if time.monotonic() > end:
                raise SystemExit("the memory was not given back")
            time.sleep(0.05)

    def stop(self):
        self.channel.close()
        self.process.terminate()
        self.process.wait()


def measure(daemon, options):
    """Milliseconds of the waking requests, and of all others."""
    wakes, warm = [], [daemon.ask() for _ in range(options.warm)]
    with_memory = daemon.resident_bytes()
    for number in range(options.wakes):
        daemon.wait_until_given_back(with_memory - 0.9 * (daemon.kv_bytes + daemon.swap_bytes))
        wakes.append(daemon.ask())
        warm += [daemon.ask() for _ in range(options.warm)]
        print(f"wake {number + 1}/{options.wakes}: {wakes[-1]:.0f} ms", file=sys.stderr, flush=True)
    return wakes, warm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kv-cache-memory", default="512MiB")
    parser.add_argument("--swap-space", default="128MiB")
    parser.add_argument("--wakes", type=int, default=5)
    parser.add_argument("--warm", type=int, default=5, help="warm requests after each wake")
    parser.add_argument("--json", help="append one JSON line per result to this file")
    options = parser.parse_args()
    report = Report("wake", options.json, model=options.model, cores=os.cpu_count())
    daemon = IdlingDaemon(options)
    try:
        wakes, warm = measure(daemon, options)
    finally:
        daemon.stop()
    wake_ms, warm_ms = statistics.median(wakes), statistics.median(warm)
    mib = round((daemon.kv_bytes + daemon.swap_bytes) / MIB)
    report.add(
        f"wake: {wake_ms:.0f} ms, warm: {warm_ms:.0f} ms, delay for {mib} MiB: {wake_ms - warm_ms:.0f} ms",
        load_1m=round(os.getloadavg()[0], 2),
        kv_mib=round(daemon.kv_bytes / MIB),
        swap_mib=round(daemon.swap_bytes / MIB),
        wakes=[round(each, 1) for each in wakes],
        wake_ms=round(wake_ms, 1),
        warm_ms=round(warm_ms, 1),
        delay_ms=round(wake_ms - warm_ms, 1),
    )


if __name__ == "__main__":
    main()
