"""From the start of a daemon's process to SERVING, with and without the packed cache, phase by phase.

    python bench/serve/start.py --model smollm2-135m --starts 9
    python bench/serve/start.py -- --dtype bfloat16 --threads 2

Starts alternate: one that packs the weights, one that maps them from a packed cache (in a folder of its own, filled by
a start that is not counted). Both read the model from a warm page cache. A phase ends with the daemon's own line about
it. All figures are medians over the starts:

  serving_s   process started to the line "serving"
  phases_s    listening: imports, flags, the server listens; read: the model's header; weights: memory planned and the
              weights there; tokenizer: waited for it beside them; engine: memory and threads; serving: the rest
  cpu_s       processor time of the process until SERVING; more than serving_s where threads worked beside each other
  first_ms    a request for one token right after SERVING: what the start left for later
  peak_mib    largest resident memory until SERVING; weights are in it once
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon import parser_of
from report import Report

from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2

PHASES = {
    "listening": r"listening on",
    "read": r"read \S+: ",
    "weights": r"(loaded|mapped) the weights",
    "tokenizer": r"waited for the tokenizer",
    "engine": r"started the engine",
    "serving": r"serving \S+ on (\S+),",
}


def ask(target, tokens):
    """Milliseconds of a request for one token."""
    message = inference_pb2.GenerateRequest(
        text="word " * tokens,
        sampling=types_pb2.SamplingParams(temperature=0.0),
        stopping=types_pb2.StoppingParams(max_tokens=1),
    )
    with grpc.insecure_channel(target) as channel:
        grpc.channel_ready_future(channel).result(10)
        began = time.perf_counter()
        inference_pb2_grpc.InferenceServiceStub(channel).Generate(message)
        return (time.perf_counter() - began) * 1e3


def read_phases(process, began):
    """Seconds at which each phase ended, and where it serves."""
    ended, lines = {}, []
    for line in process.stderr:
        lines.append(line)
        for phase, pattern in PHASES.items():
            if found := re.match(pattern, line):
                ended[phase] = time.perf_counter() - began
                if phase == "serving":
                    return ended, found[1]
    raise RuntimeError("the daemon did not start:\n" + "".join(lines))


def start_once(options, *flags):
    """Figures of one start."""
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--model", options.model, *flags]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *options.flags], stderr=subprocess.PIPE, text=True)
    try:
        ended, target = read_phases(process, began)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{process.pid}/status").read_text()
        first_ms = ask(target, options.input_tokens)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    before = dict(zip(PHASES, [0.0, *ended.values()], strict=False))
    return {
        "serving_s": ended["serving"],
        "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "first_ms": first_ms,
        "peak_mib": int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024,
        "phases_s": {phase: ended[phase] - before[phase] for phase in PHASES},
    }


def medians(starts):
    phases = {phase: statistics.median(each["phases_s"][phase] for each in starts) for phase in PHASES}
    rest = {name: statistics.median(each[name] for each in starts) for name in starts[0] if name != "phases_s"}
    return {name: round(value, 3) for name, value in rest.items()} | {
        "phases_s": {phase: round(value, 3) for phase, value in phases.items()},
        "serving_s_min": round(min(each["serving_s"] for each in starts), 3),
    }


def main():
    parser = parser_of(__doc__, input_tokens=32, output_tokens=1)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    if "--dtype" not in options.flags:
        options.flags = ["--dtype", "auto", *options.flags]
    report = Report("start", options.json, model=options.model, cores=os.cpu_count())
    with tempfile.TemporaryDirectory(prefix="llmsrv-start-") as folder:
        kinds = {"packing": [], "packed cache": ["--packed-cache", folder]}
        for flags in kinds.values():
            start_once(options, *flags)
        starts = {kind: [] for kind in kinds}
        for _ in range(options.starts):
            for kind, flags in kinds.items():
                starts[kind].append(start_once(options, *flags))
    for kind, each in starts.items():
        figures = medians(each)
        phases = ", ".join(f"{phase} {value:.3f}" for phase, value in figures["phases_s"].items())
        report.add(
            f"{kind:12}  serving after {figures['serving_s']:.3f} s (least {figures['serving_s_min']:.3f}; {phases}), "
            f"{figures['cpu_s']:.2f} s of processor time, first token {figures['first_ms']:.0f} ms, "
            f"peak {figures['peak_mib']:.0f} MiB",
            kind=kind,
            starts=options.starts,
            daemon_flags=options.flags,
            load_1m=round(os.getloadavg()[0], 2),
            **figures,
        )


if __name__ == "__main__":
    main()
