"""A daemon from a file, the environment and flags, as `llmsrv config` shows it; and one in the strict mode."""

import http.client
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemons import START_S, Daemon, request, stream

from llmsrv.serve import landlock
from llmsrv.v1 import admin_pb2

# As people have it; the host memory is what a machine that runs tests has.
SERVING = """\
[orchestrator]
env = "production-serving"
idle_timeout = "10m"
permission_mode = "strict"
[serving]
gpu_memory_utilization = 0.90
max_model_len = 4096
swap_space = 0.0625
[distributed]
tensor_parallel_size = {ranks}
"""


@pytest.fixture
def serving(tmp_path):
    path = tmp_path / "serving.toml"
    path.write_text(SERVING.format(ranks=1))
    return path


def run(*command, **environment):
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, **environment)


@contextmanager
def serving_daemon(*flags):
    daemon = Daemon(*flags)
    try:
        yield daemon.wait_until_serving()
    finally:
        daemon.stop()


def test_an_original_file_serves_on_a_cpu(serving, smollm2_path, monkeypatch):
    monkeypatch.setenv("LLMSRV_MODEL", str(smollm2_path))
    monkeypatch.setenv("LLMSRV_MAX_NUM_SEQS", "3")
    with serving_daemon("--config", str(serving), "--max-queued-requests", "5") as daemon:
        daemon.wait_for(r"^gpu_memory_utilization is of no use on a CPU: kv_cache_memory says")
        daemon.wait_for(r"^serving .* \(production-serving\), ready after")
        assert "max_model_len 4096" not in "".join(daemon.lines)
        info = daemon.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
        assert (info.max_running, info.max_waiting) == (3, 5)
        swap = daemon.wait_for(r"^  swap +([\d.]+) MiB")
        assert 60 < float(swap[1]) <= 64
        assert daemon.inference.Generate(request()).usage.completion_tokens == 8


def test_what_does_not_work_here_is_told_with_its_line(serving):
    serving.write_text(SERVING.format(ranks=2))
    says = f"error: {serving}:10: tensor_parallel_size: must be 1, not 2: this version computes each model whole"
    for command in ("llmsrv.serve.daemon",), ("llmsrv.cli", "config", "show"), ("llmsrv.cli", "config", "check"):
        result = run(*command, "--config", str(serving), "--model", "m")
        assert result.returncode == 2
        assert says in result.stderr
        assert result.stdout == ""


def test_the_shown_configuration_is_one(serving, tmp_path):
    flags = ("--model", "m", "--tenant-weight", "a=2", "--no-prefix-cache", "--kv-cache-memory", "1536KiB")
    shown = run("llmsrv.cli", "config", "show", "--config", str(serving), *flags)
    assert shown.returncode == 0, shown.stderr
    assert re.search(rf"^max_model_len = 4096 +# {serving}:7$", shown.stdout, re.M)
    assert re.search(r'^kv_cache_memory = "1536KiB" +# flag --kv-cache-memory$', shown.stdout, re.M)
    assert re.search(r"^prefix_cache = false +# flag --prefix-cache$", shown.stdout, re.M)
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    once_more = run("llmsrv.cli", "config", "show", "--config", str(again))
    without_origins = [re.sub(r" +# [^#]*$", "", text, flags=re.M) for text in (shown.stdout, once_more.stdout)]
    assert without_origins[0] == without_origins[1]
    assert run("llmsrv.cli", "config", "check", "--config", str(again)).stdout == "nothing is wrong\n"


def test_the_plan_is_that_of_the_file(serving, smollm2_path):
    flags = ("--model", str(smollm2_path), "--port", "1", "--deterministic", "off")
    planned = run("llmsrv.cli", "plan", "--config", str(serving), *flags)
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^sequences that fit at once: \d+ of max_model_len 4,096,", planned.stdout, re.M)
    assert "gpu_memory_utilization is of no use on a CPU" in planned.stdout
    assert planned.stdout.count("deterministic off changes nothing on a CPU, which always is deterministic\n") == 1


def test_help_tells_of_all_commands_flags():
    for command in ("show", "check"):
        shown = run("llmsrv.cli", "config", command, "--help")
        assert shown.returncode == 0
        assert "--max-model-len" in shown.stdout
        assert "LLMSRV_MAX_MODEL_LEN" in shown.stdout


def test_a_strict_daemon_gives_up_its_rights_and_does_its_work(smollm2_path, tmp_path):
    trace, kept = tmp_path / "steps.jsonl", tmp_path / "kept"
    flags = ("--max-model-len", "512", "--kv-cache-memory", "32MiB", "--http-port", "0", "--idle-timeout", "1")
    written = ("--trace-steps", str(trace), "--packed-cache", str(kept))
    with serving_daemon("--model", "smollm2-135m", "--permission-mode", "strict", *flags, *written) as daemon:
        daemon.wait_for(r"^permission_mode strict: writes no file, executes nothing and connects nowhere from now on$")
        for status in Path(f"/proc/{daemon.process.pid}/task").glob("*/status"):
            state = status.read_text()
            assert re.search(r"^NoNewPrivs:\t1$", state, re.M)
            assert re.search(r"^Seccomp:\t2$", state, re.M)
        opened = [path.resolve().name for path in Path(f"/proc/{daemon.process.pid}/fd").iterdir()]
        assert not [name for name in opened if "io_uring" in name]
        assert daemon.inference.Generate(request(max_tokens=40)).usage.completion_tokens == 40
        assert len(list(stream(daemon, request(max_tokens=5)))) >= 2
        connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=START_S)
        for path in ("/metrics", "/ready", "/v1/models"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            body = answer.read()
        assert [each["id"] for each in json.loads(body)["data"]] == ["smollm2-135m"]
        connection.close()
        daemon.wait_until_idle()
        daemon.signal()
        assert daemon.wait() == 0
        assert not [line for line in daemon.lines if "Traceback" in line]
    assert trace.read_text().count("\n") > 40
    assert list(kept.glob("*.packed"))


def test_a_strict_daemon_says_what_the_kernel_lacks(smollm2_path):
    """Or else that files are limited: one line says which of the two holds."""
    try:
        says = rf"reads the model and the installation alone \(Landlock {landlock.landlock_version()}\)"
    except landlock.Unavailable as error:
        says = rf"this kernel has no Landlock \({error}\)"
    with serving_daemon("--model", str(smollm2_path), "--permission-mode", "strict") as daemon:
        assert daemon.wait_for(rf"^permission_mode strict: {says}")


def test_a_strict_daemon_has_no_model_that_it_cannot_find():
    result = run("llmsrv.serve.daemon", "--model", "no-such-model", "--permission-mode", "strict")
    assert result.returncode == 1
    assert re.fullmatch(r"error: model 'no-such-model': there is no such file .*\n", result.stderr)
