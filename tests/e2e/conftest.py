"""Daemons for the end-to-end tests. After every test each of them holds no KV block."""

import threading

import pytest
from daemons import Daemon
from http_client import events_of, post

_running = []


@pytest.fixture(scope="session")
def daemon(smollm2_path):
    """The usual one: more room than the tests need."""
    yield from _kept(
        Daemon(
            *("--model", str(smollm2_path), "--served-model-name", "smol", "--max-model-len", "1024"),
            *("--kv-cache-memory", "128MiB", "--max-num-seqs", "16", "--max-num-batched-tokens", "256"),
            *("--http-port", "0"),
        )
    )


@pytest.fixture(scope="session")
def tiny_daemon(smollm2_path):
    """One whose pool and queue are soon full."""
    yield from _kept(
        Daemon(
            *("--model", str(smollm2_path), "--max-model-len", "128", "--kv-cache-memory", "3MiB"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-queued-requests", "4"),
            *("--max-choices", "4", "--max-logprobs", "5", "--http-port", "0"),
        )
    )


def _one_at_a_time(smollm2_path, *flags):
    return Daemon(
        *("--model", str(smollm2_path), "--max-model-len", "8192", "--kv-cache-memory", "192MiB"),
        *("--max-num-seqs", "1", "--max-queued-requests", "4", *flags),
    )


@pytest.fixture(scope="session")
def single_daemon(smollm2_path):
    """One that runs one request at a time and lets four wait."""
    yield from _kept(_one_at_a_time(smollm2_path))


@pytest.fixture(scope="session")
def priority_daemon(smollm2_path):
    """The same, the most urgent first."""
    yield from _kept(_one_at_a_time(smollm2_path, "--scheduling-policy", "priority"))


def _kept(daemon):
    try:
        _running.append(daemon.wait_until_serving())
        yield daemon
    finally:
        if daemon in _running:
            _running.remove(daemon)
        daemon.stop()


@pytest.fixture
def canary(daemon):
    """Streams beside the test, one after the other: the text of each must be the same as alone."""
    body = {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    alone = post(daemon.http_port, "/v1/completions", body).json["choices"][0]["text"]
    over, found = threading.Event(), []

    def sing():
        while not over.is_set() or not found:
            found.append(post(daemon.http_port, "/v1/completions", {**body, "stream": True}).body)

    beside = threading.Thread(target=sing)
    beside.start()
    yield
    over.set()
    beside.join(60)
    assert not beside.is_alive()
    for each in found:
        *chunks, done = events_of(each)
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone


@pytest.fixture(autouse=True)
def nothing_is_held_afterwards():
    yield
    for daemon in _running:
        daemon.wait_until_idle()
