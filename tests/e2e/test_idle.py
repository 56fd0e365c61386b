"""A daemon that nobody uses gives the memory of its KV cache back, and takes it again with the next request."""

import os
import time
from contextlib import contextmanager

import pytest
from daemons import Daemon, request, stream, without_what_differs
from google.protobuf.duration_pb2 import Duration

MIB = 1 << 20


@pytest.fixture(scope="module")
def idle_daemon(smollm2_path):
    daemon = Daemon(
        *("--model", str(smollm2_path), "--max-model-len", "1024", "--kv-cache-memory", "192MiB"),
        *("--swap-space", "64MiB", "--idle-timeout", "1"),
    )
    try:
        yield daemon.wait_until_serving()
    finally:
        daemon.stop()


def resident_bytes(daemon):
    with open(f"/proc/{daemon.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def planned_bytes(daemon, *names):
    """KV cache and swap pool, or other rows of the plan that is printed at start."""
    return sum(float(daemon.wait_for(rf"^  {name} +([\d.]+) MiB")[1]) * MIB for name in names or ("KV cache", "swap"))


@contextmanager
def busy(daemon):
    """A request is in flight: the daemon does not rest."""
    call = stream(daemon, request("Something else:", max_tokens=900))
    next(call)
    try:
        yield
    finally:
        call.cancel()


def wait_until_given_back(daemon, bytes_max):
    end = time.monotonic() + 60
    while resident_bytes(daemon) > bytes_max:
        assert time.monotonic() < end, f"{resident_bytes(daemon) / MIB:.0f} MiB are still there"
        time.sleep(0.05)


def wait_until_there(daemon, bytes_min):
    """It comes in the background, while requests run."""
    end = time.monotonic() + 60
    while resident_bytes(daemon) < bytes_min:
        assert time.monotonic() < end, f"only {resident_bytes(daemon) / MIB:.0f} MiB are there"
        time.sleep(0.05)


def test_the_memory_goes_and_comes_again_and_nothing_else_changes(idle_daemon):
    planned = planned_bytes(idle_daemon)
    assert planned == pytest.approx(256 * MIB, rel=0.01)
    asked = request("It was a dark and stormy night. " * 10, max_tokens=40, output={"token_ids": True})
    for _ in range(3):
        first = idle_daemon.inference.Generate(asked)
        with busy(idle_daemon):
            wait_until_there(idle_daemon, 0.9 * planned_bytes(idle_daemon, "total"))
            before = resident_bytes(idle_daemon)
        wait_until_given_back(idle_daemon, before - 0.9 * planned)
        resting = idle_daemon.stats()
        assert (resting.kv_blocks_cached, resting.kv_blocks_used) == (0, 0)
        assert resting.kv_blocks_free == resting.kv_blocks_total

        again = idle_daemon.inference.Generate(asked)
        assert without_what_differs(again) == without_what_differs(first)
        assert again.usage.cached_prompt_tokens == 0
        assert idle_daemon.stats().prefix_cache_hits == resting.prefix_cache_hits
        with busy(idle_daemon):
            wait_until_there(idle_daemon, before - 0.1 * planned)
            # What was computed since is found, and is what it was.
            for _ in range(2):
                cached = idle_daemon.inference.Generate(asked)
            assert cached.usage.cached_prompt_tokens > 0
            assert without_what_differs(cached) == without_what_differs(first)


def test_a_request_in_flight_keeps_the_memory(idle_daemon):
    """Much longer than the timeout: it counts only time without requests."""
    limit = Duration(seconds=3)
    call = stream(idle_daemon, request(max_tokens=1000, stopping={"time_limit": limit}))
    next(call)
    wait_until_there(idle_daemon, 0.9 * planned_bytes(idle_daemon, "total"))
    sizes = [resident_bytes(idle_daemon) for _ in call]
    assert min(sizes[1:]) >= max(sizes) - 0.1 * planned_bytes(idle_daemon)
