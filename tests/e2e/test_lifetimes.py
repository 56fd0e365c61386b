"""Who ends when: the daemon under load, its parent killed, itself killed, nobody left to read its log."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from daemons import START_S, Daemon, merged, request, stream
from grpc_health.v1 import health_pb2, health_pb2_grpc
from otlp_collector import Collector
from processes import is_running

from llmsrv.v1 import types_pb2

WAIT_S = 60.0
TRACE = "0af7651916cd43dd8448eb211c80319c"
SERVING = health_pb2.HealthCheckResponse.SERVING


def flags(model, *more):
    return ("--model", str(model), "--max-model-len", "512", "--http-port", "0", *more)


@pytest.fixture
def own_daemon(smollm2_path):
    daemons = []

    def start(*more):
        daemons.append(Daemon(*flags(smollm2_path, *more)))
        return daemons[-1].wait_until_serving()

    yield start
    for daemon in daemons:
        daemon.stop()


def eventually(condition, timeout_s=WAIT_S):
    """Waits until it holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.02)


def is_open(port):
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex(("127.0.0.1", port)) == 0


def children_of(pid):
    return " ".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")).split()


class HttpStream:
    """One of /v1/completions; read() gives its events."""

    def __init__(self, port, text, max_tokens):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        body = {"prompt": text, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self._answer = self._connection.getresponse()  # its head comes with the first token
        assert self._answer.status == 200

    def read(self):
        events = self._answer.read().decode().split("\n\n")
        self._connection.close()
        assert events.pop() == ""
        assert events.pop() == "data: [DONE]"
        return [json.loads(each.removeprefix("data: ")) for each in events]


def begin_64(daemon, max_tokens):
    """32 streams over each protocol, of which each has its first token; what ends them and says how they ended."""

    def by_grpc(i):
        call = stream(daemon, request(f"Story {i}:", max_tokens=max_tokens))
        first = next(call)
        return lambda: types_pb2.FinishReason.Name(merged([first, *call]).completions[0].finish.reason)[14:].lower()

    def by_http(i):
        answer = HttpStream(daemon.http_port, f"Story {i}:", max_tokens)
        return lambda: answer.read()[-1]["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(64) as pool:
        begun = [pool.submit(begin, i) for i in range(32) for begin in (by_grpc, by_http)]
        return [each.result() for each in begun]


@pytest.mark.parametrize(
    ("max_tokens", "drain_timeout", "endings"),
    [(24, "120", {"length"}), (300, "0.2", {"aborted", "abort"})],
)
def test_64_streams_at_sigterm_end_well(own_daemon, max_tokens, drain_timeout, endings):
    daemon = own_daemon("--drain-timeout", drain_timeout)
    ends = begin_64(daemon, max_tokens)
    daemon.signal()
    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(lambda end: end(), ends)) >= endings
    assert daemon.wait(WAIT_S) == 0
    daemon.wait_for("<end>")
    logged = [line for line in daemon.lines if re.search(r"INFO request outcome=(length|aborted) ", line)]
    assert len([line for line in logged if "protocol=grpc" in line]) == 32
    assert len([line for line in logged if "protocol=http" in line]) == 32
    assert "Traceback" not in "\n".join(daemon.lines)


def test_a_second_signal_ends_64_streams_at_once(own_daemon):
    daemon = own_daemon()
    ends = begin_64(daemon, 300)
    daemon.signal()
    daemon.wait_for(r"draining: \d+ requests")
    daemon.signal(signal.SIGINT)
    assert daemon.wait(WAIT_S) == 128 + signal.SIGINT
    cut = 0
    for end in ends:
        try:
            end()
        except (grpc.RpcError, http.client.HTTPException, OSError):
            cut += 1
    assert cut > 0


def test_a_second_daemon_on_the_http_port_does_not_start_and_hurts_nobody(daemon, smollm2_path):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--model", str(smollm2_path), "--port", "0"]
    command += ["--http-port", str(daemon.http_port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{daemon.http_port}")
    assert "Traceback" not in second.stderr
    assert HttpStream(daemon.http_port, "Once", 4).read()


# --- parents ---

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "llmsrv.serve.daemon", *sys.argv[2:]], stderr=open(sys.argv[1], "w"))
print(child.pid, flush=True)
time.sleep(600)
"""


class Orphan:
    """A daemon that another process starts, and its ports."""

    def __init__(self, log, *more):
        command = [sys.executable, "-c", PARENT, str(log), "--port", "0", *more]
        self.parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = int(self.parent.stdout.readline())
        eventually(lambda: re.search(r"^serving ", log.read_text(), re.M), START_S)
        self.grpc_port, self.http_port = map(int, re.findall(r"listening on \S+:(\d+)", log.read_text()))

    def kill_parent(self):
        self.parent.kill()
        self.parent.wait()

    def stop(self):
        self.kill_parent()
        if is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def orphan(smollm2_path, tmp_path):
    started = []

    def start(*more):
        started.append(Orphan(tmp_path / "log", *flags(smollm2_path, *more)))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_a_daemon_that_is_told_to_ends_with_its_parent(orphan):
    """However long the drain may take: nobody waits for it."""
    made = orphan("--exit-with-parent", "--drain-timeout", "600")
    running = HttpStream(made.http_port, "Once", 480)
    made.kill_parent()
    assert running.read()[-1]["choices"][0]["finish_reason"] in ("abort", "length")
    eventually(lambda: not is_running(made.pid))
    assert not is_open(made.grpc_port)
    assert not is_open(made.http_port)


def test_a_daemon_of_a_shell_outlives_it(orphan):
    made = orphan()
    made.kill_parent()
    time.sleep(1.0)  # four looks at the parent
    with grpc.insecure_channel(f"127.0.0.1:{made.grpc_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == SERVING
    os.kill(made.pid, signal.SIGTERM)
    eventually(lambda: not is_running(made.pid))


def test_a_killed_daemon_leaves_no_process_and_no_port(own_daemon, smollm2_path):
    killed = own_daemon()
    assert children_of(killed.process.pid) == []
    killed.process.kill()
    killed.wait()
    command = [sys.executable, "-m", "llmsrv.serve.daemon", *flags(smollm2_path), "--port", str(killed.port)]
    command += ["--http-port", str(killed.http_port)]
    again = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in again.stderr:
        lines.append(line)
        if line.startswith("serving"):
            break
    again.terminate()
    again.communicate(timeout=WAIT_S)
    assert again.returncode == 0, "".join(lines)


def test_a_killed_demo_leaves_nothing(smollm2_path):
    command = [sys.executable, "-m", "llmsrv.cli", "demo", "--keep", "--model", str(smollm2_path)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    port = int(re.search(r"listening on \S+:(\d+)", demo.stderr.readline())[1])
    reader = threading.Thread(target=demo.stderr.read, daemon=True)
    reader.start()
    for line in demo.stdout:
        if line.startswith("Serving on"):
            break
    assert is_open(port)
    children = children_of(demo.pid)
    demo.kill()
    demo.wait()
    assert children == []
    eventually(lambda: not is_open(port))


# --- the log ---


def test_a_log_that_nobody_reads_holds_up_nobody(smollm2_path):
    """A pipe holds 64 KiB: 600 lines fill it, and then some."""
    unread = subprocess.Popen(
        [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", *flags(smollm2_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in unread.stderr:
        if found := re.search(r"listening on http://\S+:(\d+)", line):
            port = int(found[1])
        if line.startswith("serving"):
            break
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    for _ in range(600):
        connection.request("POST", "/v1/completions", '{"max_tokens": -1}', {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()[:8]) == (400, b'{"error"')
    connection.close()
    assert HttpStream(port, "Once", 4).read()
    unread.terminate()
    assert unread.wait(WAIT_S) == 0
    unread.stderr.close()


def test_a_log_whose_reader_is_gone_ends_nothing(smollm2_path):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", *flags(smollm2_path)]
    unread = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = int(re.search(r"listening on \S+:(\d+)", unread.stderr.readline())[1])
    unread.stderr.close()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert any(each.status == SERVING for each in watch)
        watch.cancel()
    unread.terminate()
    assert unread.wait(WAIT_S) == 0


@pytest.mark.parametrize("mode", ["standard", "strict"])
def test_a_log_of_json_is_json_from_the_first_line_to_the_last(smollm2_path, mode):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", *flags(smollm2_path)]
    command += ["--log-format", "json", "--log-prompts", "--permission-mode", mode]
    made = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in made.stderr:
        lines.append(json.loads(line))
        if lines[-1]["message"].startswith("serving"):
            break
    (listening,) = [line["message"] for line in lines if line["message"].startswith("listening on http")]
    port = int(listening.rpartition(":")[2])
    headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request(
        "POST", "/v1/completions", '{"prompt": "Once\\nupon", "max_tokens": 3, "ignore_eos": true}', headers
    )
    answer = json.loads(connection.getresponse().read())
    connection.close()
    made.terminate()
    lines += [json.loads(line) for line in made.communicate(timeout=WAIT_S)[1].splitlines()]
    assert made.returncode == 0
    (logged,) = [line for line in lines if line["logger"] == "llmsrv.requests"]
    known = {"outcome": "length", "request_id": answer["id"], "protocol": "http", "completion_tokens": 3}
    assert known.items() <= logged.items()
    assert (logged["prompt"], logged["trace_id"]) == ("Once\nupon", TRACE)
    assert 0 < logged["ttft_s"] <= logged["total_s"]
    assert lines[-1]["message"] == "stopped"


def test_a_span_and_its_line_in_the_log_have_the_callers_trace(own_daemon):
    collector = Collector()
    daemon = own_daemon("--otlp-endpoint", collector.endpoint)
    trace = [("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")]
    daemon.inference.Generate(request(request_id="traced"), metadata=trace)
    daemon.signal()
    assert daemon.wait(WAIT_S) == 0
    (span,) = collector.wait_for(1)
    collector.stop()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    daemon.wait_for(f"request_id=traced protocol=grpc .* trace_id={TRACE}")
