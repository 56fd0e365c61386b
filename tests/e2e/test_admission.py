"""Who is let in, who goes first, and what time does to a request: a real daemon that runs one request at a time."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from daemons import details, merged, request, stream, violated_fields
from google.protobuf.duration_pb2 import Duration

from llmsrv.v1 import types_pb2

LONG = 7000  # tokens: half a minute of work on a fast machine


def after(seconds):
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def wait_until(holds, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def busy(daemon, **fields):
    """A request runs and stays; what comes now waits."""
    call = stream(daemon, request(max_tokens=LONG, **fields))
    next(call)
    try:
        yield
        assert daemon.stats().running == 1, "it ended too early for the test to mean something"
    finally:
        call.cancel()


# --- the queue ---


def test_a_full_queue_refuses_while_nothing_moves(single_daemon):
    with ThreadPoolExecutor(4) as pool, busy(single_daemon):
        waiting = [pool.submit(single_daemon.inference.Generate, request(f"Number {i}:")) for i in range(4)]
        wait_until(lambda: single_daemon.stats().waiting == 4)
        for call in (single_daemon.inference.Generate, lambda message: next(stream(single_daemon, message))):
            error = refused(lambda call=call: call(request()))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details(error)["ErrorInfo"].reason == "QUEUE_FULL"
            assert 100 <= details(error)["RetryInfo"].retry_delay.ToMilliseconds() <= 30_000
        assert single_daemon.stats().waiting == 4
        assert not any(each.done() for each in waiting)
    assert all(each.result().usage.completion_tokens == 8 for each in waiting)


def test_a_wait_that_is_too_long_is_refused(single_daemon):
    with busy(single_daemon):
        error = refused(lambda: single_daemon.inference.Generate(request(queue_timeout=after(0.3))))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(error)["ErrorInfo"].reason == "QUEUE_TIMEOUT"
        assert details(error)["RetryInfo"].retry_delay.ToMilliseconds() >= 100
        assert single_daemon.stats().waiting == 0


def test_a_request_that_has_its_place_has_no_queue_timeout(single_daemon):
    answer = single_daemon.inference.Generate(request(max_tokens=100, queue_timeout=after(0.2)))
    assert answer.usage.completion_tokens == 100


def test_times_must_be_positive_and_both_are_named(daemon):
    for bad in (Duration(), Duration(seconds=-1), Duration(nanos=-1)):
        message = request(queue_timeout=bad, stopping={"time_limit": bad})
        error = refused(lambda message=message: daemon.inference.Generate(message))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert set(violated_fields(error)) == {"queue_timeout", "stopping.time_limit"}


def test_lower_priorities_run_first_and_ties_by_arrival(priority_daemon):
    arrivals = [("a", 5), ("b", -1), ("c", 5), ("d", 0)]
    ended = []

    def run(name, priority):
        priority_daemon.inference.Generate(request(f"{name}:", priority=priority))
        ended.append(name)

    # A more urgent one would take the place of what runs, and wait for nobody.
    with ThreadPoolExecutor(len(arrivals)) as pool, busy(priority_daemon, priority=-2):
        for count, (name, priority) in enumerate(arrivals, 1):
            pool.submit(run, name, priority)
            wait_until(lambda count=count: priority_daemon.stats().waiting == count)
    assert ended == ["b", "d", "a", "c"]


# --- deadlines ---


def test_a_deadline_that_passes_at_once(daemon):
    for i in range(20):
        error = refused(lambda i=i: daemon.inference.Generate(request("word " * 500), timeout=0.0005 * (i + 1)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    daemon.wait_until_idle()


def test_a_deadline_that_passes_in_the_queue_costs_no_prefill(single_daemon):
    with busy(single_daemon):
        before = single_daemon.stats()
        error = refused(lambda: single_daemon.inference.Generate(request("word " * 500), timeout=0.5))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: single_daemon.stats().waiting == 0)
        stats = single_daemon.stats()
        assert (stats.running, stats.prompt_tokens) == (1, before.prompt_tokens)
    single_daemon.wait_until_idle()


def test_a_deadline_that_passes_while_it_runs_frees_its_blocks(single_daemon):
    call = stream(single_daemon, request(max_tokens=LONG), timeout=1.0)
    first = next(call)
    assert first.start.prompt.token_count == 4
    assert refused(lambda: list(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    single_daemon.wait_until_idle()
    assert single_daemon.stats().kv_blocks_used == 0


def test_a_deadline_that_is_met_changes_nothing(single_daemon):
    plain = single_daemon.inference.Generate(request())
    timed = single_daemon.inference.Generate(request(), timeout=60)
    assert timed.completions == plain.completions


# --- time limits ---


def test_a_time_limit_returns_what_is_done(daemon):
    message = request(max_tokens=900, stopping={"time_limit": after(0.5)}, output={"token_ids": True})
    for answer in (daemon.inference.Generate(message), merged(stream(daemon, message))):
        (completion,) = answer.completions
        assert completion.finish.reason == types_pb2.FINISH_REASON_TIME_LIMIT
        assert 0 < answer.usage.completion_tokens == len(completion.token_ids) < 900
        whole = daemon.inference.Generate(request(max_tokens=answer.usage.completion_tokens))
        assert completion.text == whole.completions[0].text
    assert daemon.stats().requests["time_limit"] >= 2


def test_a_time_limit_counts_in_the_queue_too(single_daemon):
    with busy(single_daemon):
        answer = single_daemon.inference.Generate(request(stopping={"time_limit": after(0.3)}))
        (completion,) = answer.completions
        assert completion.finish.reason == types_pb2.FINISH_REASON_TIME_LIMIT
        assert (completion.text, answer.usage.completion_tokens) == ("", 0)


def test_every_choice_ends_at_the_time_limit(daemon):
    answer = daemon.inference.Generate(
        request(max_tokens=900, greedy=False, sampling={"n": 3, "seed": 1}, stopping={"time_limit": after(1.0)})
    )
    assert [each.finish.reason for each in answer.completions] == [types_pb2.FINISH_REASON_TIME_LIMIT] * 3


def test_a_time_limit_that_is_not_reached_changes_nothing(daemon):
    plain = daemon.inference.Generate(request())
    limited = daemon.inference.Generate(request(stopping={"time_limit": after(60)}))
    assert limited.completions == plain.completions


# --- what is shown ---


def test_the_states_of_all_sequences_are_counted_and_timed(daemon):
    before = daemon.stats().sequence_states
    daemon.inference.Generate(request(sampling={"n": 2, "seed": 1}, greedy=False))
    daemon.wait_until_idle()
    stats = daemon.stats()
    assert set(stats.sequence_states) == {"pending", "running", "swapped", "preempted", "finished"}
    for name in ("pending", "running", "finished"):
        assert stats.sequence_states[name].entered == before[name].entered + 2
    assert stats.sequence_states["running"].time.ToNanoseconds() > before["running"].time.ToNanoseconds()
    assert [stats.sequence_states[name].current for name in ("pending", "running", "swapped")] == [0, 0, 0]
    assert stats.kv_blocks_free + stats.kv_blocks_cached == stats.kv_blocks_total
    assert stats.utilization == 0
    assert stats.oldest_wait.ToNanoseconds() == 0


def test_the_oldest_wait_and_the_used_slots_are_shown(single_daemon):
    with ThreadPoolExecutor(1) as pool, busy(single_daemon):
        waiting = pool.submit(single_daemon.inference.Generate, request())
        wait_until(lambda: single_daemon.stats().oldest_wait.ToNanoseconds() > 0)
        stats = single_daemon.stats()
        assert (stats.running, stats.waiting) == (1, 1)
        assert 0 < stats.utilization <= 1
    assert waiting.result().usage.completion_tokens == 8


# --- what can never run ---


def test_a_prompt_that_the_kv_cache_could_never_hold_is_told_how_small_it_is(tiny_daemon):
    """The model reads 8192 tokens, the cache of this daemon holds some 130."""
    total = tiny_daemon.stats().kv_blocks_total
    for fields in ({"text": "word " * 300}, {"text": None, "token_ids": types_pb2.TokenIds(ids=[5] * 1500)}):
        error = refused(lambda fields=fields: tiny_daemon.inference.Generate(request(**fields)))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        info = details(error)["ErrorInfo"]
        assert info.reason == "KV_CACHE_TOO_SMALL"
        assert info.metadata["total_blocks"] == str(total)
        assert int(info.metadata["needed_blocks"]) > total
        assert "BadRequest" not in details(error)
    # Another fault of the same request is the client's own, and comes first.
    error = refused(lambda: tiny_daemon.inference.Generate(request("word " * 300, sampling={"top_p": 2.0})))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_fields(error) == ["sampling.top_p"]
    # More than the model could read, and much more than that, which is not even counted.
    for length in (9_000, 40_000):
        ids = types_pb2.TokenIds(ids=[5] * length)
        error = refused(lambda ids=ids: tiny_daemon.inference.Generate(request(None, token_ids=ids)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violated_fields(error) == ["token_ids.ids"]
