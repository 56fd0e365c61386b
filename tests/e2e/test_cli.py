"""The commands, as a user runs them."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from daemons import START_S, Daemon, request, stream

import llmsrv
from llmsrv.commit import built_commit


def llmsrv_command(*arguments, **options):
    command = [sys.executable, "-m", "llmsrv.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_demo_answers_over_grpc(smollm2_path):
    result = llmsrv_command("demo", "--model", str(smollm2_path), "--question", "What is the capital of Japan?")
    assert result.returncode == 0, result.stderr
    assert "Tokyo" in result.stdout
    assert re.search(r"time to first token \d+ ms, then [\d.]+ tokens/s", result.stdout)


def test_demo_keep_serves_until_it_is_told_to_stop(smollm2_path):
    command = [sys.executable, "-m", "llmsrv.cli", "demo", "--keep", "--model", str(smollm2_path), "--question", "Hi"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    shown = ""
    for line in demo.stdout:
        shown += line
        if line.strip() == "EOF":
            break
    call = re.search(r"(grpcurl .*?/Generate)\n", shown, re.DOTALL)[1]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    answer = subprocess.run(
        call, shell=True, capture_output=True, text=True, timeout=START_S, check=True, env={**os.environ, "PATH": path}
    )
    assert "FINISH_REASON_LENGTH" in answer.stdout
    code = re.search(r"<<'EOF'\n(.*?)\n\s*EOF", shown, re.DOTALL)[1]
    code = code.replace('text="Once upon a time"', 'text="Once", stopping={"max_tokens": 4}')
    code = "\n".join(line.removeprefix("  ") for line in code.splitlines())
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=START_S, check=True)
    assert answer.stdout.strip()
    demo.send_signal(signal.SIGINT)
    assert demo.wait(20) == 0


def test_generate_prints_the_text(smollm2_path):
    arguments = ["--model", str(smollm2_path), "--chat", "--temperature", "0", "--max-tokens", "20"]
    quiet = llmsrv_command("generate", *arguments, "--quiet", "What is the capital of Japan?")
    assert quiet.returncode == 0, quiet.stderr
    assert "Tokyo" in quiet.stdout
    assert quiet.stderr == ""
    loud = llmsrv_command("generate", *arguments, "What is the capital of Japan?")
    assert loud.stdout == quiet.stdout
    assert "memory plan" in loud.stderr


# Weights, workspace, cache and swap; what the process itself holds differs from run to run.
PLANNED_ROW = re.compile(r"^  (weights|workspace|KV cache|swap) +([\d.]+) MiB  (.+)$", re.MULTILINE)


def test_plan_prints_what_an_engine_takes(smollm2_path):
    flags = ("--model", str(smollm2_path), "--max-model-len", "2048", "--kv-cache-memory", "100MiB")
    planned = llmsrv_command("plan", *flags, "--swap-space", "32MiB", "--threads", "2")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^sequences that fit at once: 2 of max_model_len 2,048, 4 of 1,024 tokens", planned.stdout, re.M)
    code = (
        "from llmsrv import LLM\n"
        f"with LLM({str(smollm2_path)!r}, max_model_len=2048, kv_cache_memory='100MiB', swap_space='32MiB', threads=2)"
        " as llm:\n"
        "    plan = llm.model.plan\n"
        "    print(plan.weights_bytes, plan.workspace_bytes, plan.kv_cache_bytes, plan.swap_bytes)\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=START_S, check=True)
    assert PLANNED_ROW.findall(planned.stdout) == PLANNED_ROW.findall(loaded.stderr)
    figures = [figure for _, figure, _ in PLANNED_ROW.findall(planned.stdout)]
    assert figures == [f"{int(size) / (1 << 20):.1f}" for size in loaded.stdout.split()]


def test_what_does_not_fit_is_refused_before_loading(smollm2_path):
    for size, says in (
        ("9TiB", "error: not enough memory: the plan needs "),
        ("4MiB", "error: kv_cache_memory is too"),
    ):
        flags = ("--model", str(smollm2_path), "--max-model-len", "2048", "--kv-cache-memory", size)
        for result in (llmsrv_command("plan", *flags), llmsrv_command("generate", *flags, "x")):
            assert result.returncode == 1
            assert result.stderr.splitlines()[-1].startswith(says)
            assert "the largest max_model_len" in result.stderr
            assert "loaded the weights" not in result.stderr


def test_generate_says_what_is_wrong(smollm2_path):
    for arguments in (
        ("--model", str(smollm2_path), "--top-p", "7", "x"),
        ("--model", "/nowhere.gguf", "x"),
        ("--model", str(smollm2_path), "--dtype", "int2", "x"),
    ):
        result = llmsrv_command("generate", *arguments)
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in result.stderr


def test_version_and_help():
    commit = f" ({built_commit()})" if built_commit() else ""
    expected = f"llmsrv {llmsrv.__version__}{commit}\n"
    assert llmsrv_command("version").stdout == llmsrv_command("--version").stdout == expected
    help_text = llmsrv_command("--help").stdout
    assert all(name in help_text for name in ("demo", "generate", "plan", "replay", "version", "llmsrv-grpc"))


def test_what_a_daemon_recorded_is_replayed_without_its_model(smollm2_path, tmp_path):
    path = tmp_path / "steps.jsonl"
    flags = ("--max-model-len", "256", "--kv-cache-memory", "8MiB", "--max-num-seqs", "4", "--trace-steps", str(path))
    daemon = Daemon("--model", str(smollm2_path), *flags).wait_until_serving()
    try:
        with ThreadPoolExecutor(6) as pool:
            asked = [request(f"Story {i}: it was", max_tokens=120, cache_salt="a" * (i % 2)) for i in range(6)]
            assert all(pool.map(daemon.inference.Generate, asked))
        next(stream(daemon, request(max_tokens=200)))  # ends with the daemon
        steps = daemon.stats().steps
    finally:
        daemon.stop()
    result = llmsrv_command("replay", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    found = re.fullmatch(r"([\d,]+) steps, 7 sequences, .*\nall \1 plans are the same\n", result.stdout)
    assert found, result.stdout
    assert int(found[1].replace(",", "")) >= steps
    assert result.stderr == ""
