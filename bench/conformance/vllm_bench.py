"""vLLM's own load client, `vllm bench serve --backend openai`, against a daemon of ours.

    python bench/peers/install.py --peers vllm      # once: the client is in vLLM's package
    python bench/conformance/vllm_bench.py

Two data sets of the client's own: `random`, and `timed_trace`, a trace with times, lengths and block hashes, which it
sends as token ids. End of sequence is ignored. All answers pass a proxy, and each is then held to the shapes that
OpenAI publishes (openai_shapes.py). Definitions:

  completed, failed   as the client counts them
  checked             answers that have the right shape; one that has not ends the script
  token_prompts       streams whose prompt was sent as token ids
  client_tokens       output tokens as the client counts them; answered_tokens: as our usage says. They must agree.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from daemon import Daemon
from openai_shapes import check_answer, check_stream
from recorder import Recorder
from report import Report

from llmsrv.serve.http_api import answer_fields

NAME = "smollm2-135m"
HOME = Path.home() / ".cache/llmsrv/peers"
SEED = 0
OWN = {"/tokenize": answer_fields.Tokenized, "/detokenize": answer_fields.Detokenized}  # the client asks for these, too


def trace_file(folder, count):
    """A trace whose prompts share their beginnings, as conversations do: one line per request."""
    draw = random.Random(SEED)
    lines = []
    for i in range(count):
        tokens = draw.randrange(20, 200)
        hashes = [draw.randrange(3), *(1000 * i + each for each in range(tokens // 16))]
        made = {"timestamp": 100 * i, "input_length": tokens, "output_length": draw.randrange(2, 40)}
        lines.append(json.dumps({**made, "hash_ids": hashes}))
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_client(home, port, folder, name, arguments, count):
    """Its figures; raises with its output when it fails."""
    result = folder / f"{name}.json"
    command = [
        *(home / "vllm/venv/bin/vllm", "bench", "serve", "--backend", "openai", "--base-url"),
        *(f"http://127.0.0.1:{port}", "--endpoint", "/v1/completions", "--model", NAME),
        *("--tokenizer", home / "weights/hf-bf16", "--dataset-name", name, "--num-prompts", count),
        *("--ignore-eos", "--seed", SEED, "--save-result", "--result-filename", result, "--disable-tqdm"),
        *arguments,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: the client failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(result.read_text())


def check(answers):
    """(how many answers have a shape that is known, and have it; the usages of all streams among them)"""
    checked, usages = 0, []
    for each in answers:
        if each.status != 200 or not each.whole:
            raise RuntimeError(f"{each.path}: status {each.status}, whole: {each.whole}: {each.body[:500]!r}")
        if each.content_type.startswith("text/event-stream"):
            usages.append(check_stream(each.body)[-1]["usage"])
        elif each.path in OWN:
            msgspec.json.decode(each.body, type=OWN[each.path], strict=True)
        elif each.path.startswith("/v1/"):
            check_answer(each.body)
        else:
            continue
        checked += 1
    return checked, usages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=HOME, help="where bench/peers/install.py put vLLM")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--json", help="append one JSON line per result to this file")
    options = parser.parse_args()
    report = Report("vllm_bench", options.json)
    flags = ("--model", NAME, "--served-model-name", NAME, "--max-model-len", "1024", "--kv-cache-memory", "256MiB")
    with tempfile.TemporaryDirectory() as made, Daemon(*flags, "--http-port", "0") as daemon:
        folder = Path(made)
        runs = {
            "random": ["--random-input-len", 100, "--random-output-len", 32, "--max-concurrency", 8],
            "timed_trace": [
                *("--dataset-path", trace_file(folder, options.requests)),
                *("--timed-trace-sec-multiplier", 0.001, "--timed-trace-chunk-hash-size", 16),
            ],
        }
        for name, arguments in runs.items():
            with Recorder(daemon.http_target) as recorder:
                found = run_client(options.home, recorder.port, folder, name, arguments, options.requests)
            checked, usages = check(recorder.answers)
            streams = [json.loads(each.asked) for each in recorder.answers if each.path == "/v1/completions"]
            ids = sum(isinstance(each["prompt"], list) for each in streams)
            # Its first requests are trials, which its figures leave out.
            generated = sum(each["completion_tokens"] for each in usages[-found["completed"] :])
            report.add(
                f"{name}: {found['completed']} completed, {found['failed']} failed, {checked} answers "
                f"checked, {ids} prompts of ids; {found['total_output_tokens']} tokens by the client, {generated} "
                "by the answers",
                dataset=name,
                completed=found["completed"],
                failed=found["failed"],
                checked=checked,
                token_prompts=ids,
                client_tokens=found["total_output_tokens"],
                answered_tokens=generated,
                mean_ttft_ms=found["mean_ttft_ms"],
                mean_tpot_ms=found["mean_tpot_ms"],
            )
            if found["failed"] or found["completed"] != options.requests or generated != found["total_output_tokens"]:
                raise SystemExit(f"{name}: not every request was answered in full")


if __name__ == "__main__":
    main()
