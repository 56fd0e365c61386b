"""`llmsrv top` and `llmsrv bench` against a real daemon."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from daemons import request

COMMAND = (sys.executable, "-m", "llmsrv.cli")
LIMIT_S = 120


def run(*arguments, **environment):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_top_prints_one_sample_where_there_is_no_terminal(daemon):
    daemon.inference.Generate(request("Watched", max_tokens=6))
    daemon.wait_until_idle()
    told = run("top", "--address", daemon.address)
    assert told.returncode == 0, told.stderr
    sample = daemon.stats()
    assert "serving" in told.stdout
    assert "smol" in told.stdout
    assert f"finished {sample.sequence_states['finished'].entered:,}" in told.stdout
    assert f"of {sample.kv_blocks_total:,}" in told.stdout
    cached = re.search(r"cached ([\d,]+)", told.stdout)[1]
    assert int(cached.replace(",", "")) == sample.kv_blocks_cached
    assert "\x1b" not in told.stdout


def test_top_says_in_a_sentence_that_nobody_is_there():
    told = run("top", "--address", "127.0.0.1:1", "--once")
    assert told.returncode == 1
    assert re.fullmatch(r"error: 127\.0\.0\.1:1: UNAVAILABLE: .*\n", told.stderr)


def read_until(terminal, word):
    seen, end = b"", time.monotonic() + LIMIT_S
    while word not in seen:
        assert time.monotonic() < end, seen[-2000:]
        seen += os.read(terminal, 1 << 16)
    return seen


def test_top_watches_in_a_terminal_until_ctrl_c(daemon):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "top", "--address", daemon.address, "--interval", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, b"KV blocks")
        read_until(ours, b"KV blocks")  # a second sample
        process.send_signal(signal.SIGINT)
        assert b"\x1b[?1049l" in read_until(ours, b"\x1b[?1049l"), "the screen that was there is back"
        _, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, b"")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("over", ["grpc", "completions", "chat"])
def test_bench_closed_loop_over_each_protocol(daemon, tmp_path, over):
    where = (
        ["--address", daemon.address] if over == "grpc" else ["--base-url", f"http://127.0.0.1:{daemon.http_port}/v1"]
    )
    kind = ["--chat"] if over == "chat" else []
    files = [tmp_path / "run.json", tmp_path / "run.svg"]
    sizes = ("--requests", "5", "--concurrency", "2", "--input-tokens", "12", "--output-tokens", "7", "--warmup", "1")
    told = run(
        *("bench", *where, *kind, *sizes, "--json", str(files[0]), "--plot", str(files[1])),
        *("--goodput", "ttft:60000,tpot:0.0001"),
        LLMSRV_API_KEY="kept out of the file",
    )
    assert told.returncode == 0, told.stderr
    assert "5 of 5 requests ended well" in told.stdout
    for words in ("TTFT", "TPOT", "ITL", "E2E", "time to first token", "goodput: 0.00 requests/s (0.0 % of all)"):
        assert words in told.stdout
    assert "5/5 requests" in told.stderr
    record = json.loads(files[0].read_text())
    assert record["figures"]["output_tokens"] == 35
    assert [each["output_tokens"] for each in record["requests"]] == [7] * 5
    assert record["model"] == "smol"
    assert "kept out" not in files[0].read_text()
    if over != "chat":
        assert [each["input_tokens"] for each in record["requests"]] == [12] * 5
    ElementTree.fromstring(files[1].read_text())


def test_bench_sends_at_the_times_of_a_trace(daemon, tmp_path):
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 400 * i, "input_length": 20 + i, "output_length": 3 + i} for i in range(4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run("bench", "--address", daemon.address, "--trace", str(trace), "--json", str(tmp_path / "run.json"))
    assert told.returncode == 0, told.stderr
    requests = json.loads((tmp_path / "run.json").read_text())["requests"]
    assert [(each["input_tokens"], each["output_tokens"]) for each in requests] == [(20 + i, 3 + i) for i in range(4)]
    assert all(each["sent_s"] >= 0.4 * i - 0.01 for i, each in enumerate(requests))


def test_bench_tells_why_everything_failed(daemon):
    told = run("bench", "--address", daemon.address, "--requests", "2", "--input-tokens", "2000", "--warmup", "0")
    assert told.returncode == 1
    assert "0 of 2 requests ended well" in told.stdout
    assert re.search(r"failed: 2 x INVALID_ARGUMENT, for example: ", told.stdout)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--address", "127.0.0.1:1", "--requests", "1"), "UNAVAILABLE"),
        (("--base-url", "nonsense"), "is not an address"),
        (("--address", "a:1", "--base-url", "http://b/v1"), "one server at a time"),
        (("--request-rate", "0"), "must be above 0"),
        (("--request-rate", "1", "--trace", "x"), "one kind of load"),
        (("--trace", "/nowhere/trace.jsonl"), "No such file"),
        (("--goodput", "itl:5"), "ttft:200,tpot:50"),
        (("--extra-body", "[]"), "JSON object"),
    ],
)
def test_bench_refuses_in_a_sentence(flags, words):
    told = run("bench", *flags)
    assert told.returncode == 1
    assert told.stderr.startswith("error: ")
    assert words in told.stderr
    assert len(told.stderr.splitlines()) == 1
