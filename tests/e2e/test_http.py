"""The daemon over HTTP, as hostile clients see it, and its life."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time

from bad_json import BAD
from daemons import Daemon, request
from http_client import JSON, call, events_of, get, post

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True}


def test_probes_and_metrics(daemon):
    answers = {path: get(daemon.http_port, path) for path in ("/health", "/ready", "/version", "/metrics")}
    assert {each.status for each in answers.values()} == {200}
    assert b"llmsrv:num_requests_running" in answers["/metrics"].body


BAD_VALUES = {
    "logit_bias": [{"50000": 1}, {"-1": 1}, {"abc": 1}, {"5": 1e9}, {"5": "1"}],
    "prompt": [[-1], [50_000], [2**63 - 1], [10**30], [1.5], [[]], [], ""],
    "temperature": [-1, "hot", 1e308, [1]],
    "top_p": [0, 1.1, -1],
    "stop": [[""], [[]], ["x"] * 1000, "x" * 5000, 3],
    "n": [0, -1, 10**9, 10**30, 1.5, True],
    "max_tokens": [0, -1, 10**9, 10**30],
    "seed": [-1, 2**64, 10**40],
    "logprobs": [-1, 21, 10**20, True],
    "prompt_logprobs": [-1, 21],
    "top_k": [-2, 10**20],
    "min_tokens": [-1, 10**20],
    "stop_token_ids": [[-1], [10**20], [0] * 5000],
    "priority": [1, 10**20],
    "cache_salt": ["x" * 5000],
    "repetition_penalty": [0, -1],
    "stream_options": [{}, {"include_usage": "yes"}],
    "frequency_penalty": [3, -3],
}


def test_hostile_bodies_are_refused_and_hurt_nobody(daemon, canary):
    for name, body in BAD.items():
        answer = post(daemon.http_port, "/v1/completions", body)
        assert (answer.status, answer.error["code"]) == (400, "invalid_json"), name
    for field, values in BAD_VALUES.items():
        for value in values:
            answer = post(daemon.http_port, "/v1/completions", {"prompt": "x", field: value})
            assert answer.status == 400, (field, value, answer.body)
            assert field in answer.error["message"], (field, value, answer.body)
            assert b"Traceback" not in answer.body
    for body in (b'{"prompt": "' + b"x" * (9 << 20), b"[" * (20 << 20)):
        assert call(daemon.http_port, "POST", "/v1/completions", body, JSON).status == 413
    assert get(daemon.http_port, "/health").status == 200


def test_a_templates_variable_may_have_any_name(daemon):
    names = ("self", "source", "context", "loop", "range", "namespace", "raise_exception", "", "a b", "__class__")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    answer = post(daemon.http_port, "/v1/chat/completions", {**body, "chat_template_kwargs": dict.fromkeys(names, 1)})
    assert answer.status == 200, answer.body


def test_both_protocols_drain_on_sigterm(smollm2_path):
    flags = ("--model", str(smollm2_path), "--max-model-len", "1024", "--http-port", "0")
    daemon = Daemon(*flags)
    try:
        assert get(daemon.http_port, "/health").status == 200  # live while it loads
        daemon.wait_until_serving()
        assert get(daemon.http_port, "/ready").status == 200
        running = {}

        def over_http():
            running["http"] = post(daemon.http_port, "/v1/completions", {**LONG, "stream": True})

        def over_grpc():
            running["grpc"] = daemon.inference.Generate(request(max_tokens=150))

        threads = [threading.Thread(target=each) for each in (over_http, over_grpc)]
        for each in threads:
            each.start()
        while daemon.stats().running < 2:
            time.sleep(0.01)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("draining")
        refused = post(daemon.http_port, "/v1/completions", {"prompt": "x"})
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        assert get(daemon.http_port, "/ready").status == 503
        assert get(daemon.http_port, "/health").status == 200
        for each in threads:
            each.join(60)
        assert events_of(running["http"].body)[-1] == "[DONE]"
        assert running["grpc"].usage.completion_tokens == 150
        assert daemon.wait() == 0
    finally:
        daemon.stop()


def test_a_port_is_not_shared(daemon, smollm2_path):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--model", str(smollm2_path), "--port", "0"]
    taken = [*command, "--http-port", str(daemon.http_port)]
    result = subprocess.run(taken, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{daemon.http_port}" in result.stderr


def test_sixty_four_streams_end_when_their_clients_are_killed(daemon):
    async def test():
        writers = []
        body = json.dumps({**LONG, "max_tokens": 900, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for _ in range(64):
            _, writer = await asyncio.open_connection("127.0.0.1", daemon.http_port)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            writers.append(writer)
        while daemon.stats().running + daemon.stats().waiting < 64:
            await asyncio.sleep(0.05)
        for writer in writers:
            writer.close()

    asyncio.run(test())
    daemon.wait_until_idle(10.0)
