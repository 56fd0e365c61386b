"""Batches and sessions on a real engine: the same path as one call, so the same tokens."""

import queue
import threading

import grpc
import pytest
from daemons import merged, request, without_what_differs

from llmsrv.v1 import inference_pb2

SEEDED = [
    request(f"{number}. Tell me", greedy=False, max_tokens=12, sampling={"temperature": 1.2, "seed": number, "n": 2})
    for number in range(12)
]


def alone(daemon, asked):
    return without_what_differs(daemon.inference.Generate(asked))


def batch(daemon, requests, **call):
    return daemon.inference.BatchGenerate(inference_pb2.BatchGenerateRequest(requests=requests), **call)


class Session:
    """One session, whose requests are written from here."""

    def __init__(self, daemon):
        self._sent = queue.SimpleQueue()
        self.call = daemon.inference.GenerateSession(iter(self._sent.get, None))
        self.responses = {}
        self.errors = {}

    def start(self, request_id, asked, stream=None):
        named = inference_pb2.GenerateRequest(request_id=request_id)
        named.MergeFrom(asked)
        start = inference_pb2.GenerateStreamRequest(request=named, stream=stream)
        self._sent.put(inference_pb2.GenerateSessionRequest(start=start))

    def cancel(self, request_id):
        self._sent.put(inference_pb2.GenerateSessionRequest(cancel_request_id=request_id))

    def done(self):
        self._sent.put(None)

    def read(self):
        self._note(next(self.call))

    def _note(self, message):
        for item in message.items:
            if item.HasField("error"):
                self.errors[item.request_id] = item.error.code
            else:
                self.responses.setdefault(item.request_id, []).append(item.response)

    def read_all(self):
        for message in self.call:
            self._note(message)


def test_a_batch_has_the_tokens_of_single_calls(daemon):
    expected = [alone(daemon, each) for each in SEEDED]
    bad = request("x", sampling={"temperature": -1.0})
    answers = {each.request_index: each for each in batch(daemon, [*SEEDED[:6], bad, *SEEDED[6:]])}
    assert answers.pop(6).error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    got = [without_what_differs(answers[index].response) for index in sorted(answers)]
    assert got == expected


def test_a_batch_larger_than_the_queue_is_done(tiny_daemon):
    """Four run and four may wait: a batch keeps within that."""
    answers = list(batch(tiny_daemon, [request(f"{i}:", max_tokens=4) for i in range(40)]))
    assert [each.error for each in answers if each.HasField("error")] == []
    assert sorted(each.request_index for each in answers) == list(range(40))


def test_a_cancelled_batch_frees_everything(daemon):
    call = batch(daemon, [request(f"{i}:", max_tokens=900) for i in range(40)])
    while not daemon.stats().running:
        pass
    call.cancel()
    daemon.wait_until_idle()


def test_a_session_has_the_tokens_of_single_calls(daemon):
    expected = {f"r{i}": alone(daemon, each) for i, each in enumerate(SEEDED)}
    session = Session(daemon)
    for i, each in enumerate(SEEDED):
        session.start(f"r{i}", each)
    session.start("bad", request("x", sampling={"temperature": -1.0}))
    session.done()
    session.read_all()
    assert session.errors == {"bad": grpc.StatusCode.INVALID_ARGUMENT.value[0]}
    assert {name: without_what_differs(merged(parts)) for name, parts in session.responses.items()} == expected


def test_a_cancel_in_a_session_frees_one_request(daemon):
    session = Session(daemon)
    session.start("long", request(max_tokens=900))
    session.start("short", request(max_tokens=8))
    while "long" not in session.responses:
        session.read()
    session.cancel("long")
    session.done()
    session.read_all()
    assert session.errors == {"long": grpc.StatusCode.CANCELLED.value[0]}
    assert merged(session.responses["short"]).usage.completion_tokens == 8


def test_a_session_that_is_cut_frees_everything(daemon):
    session = Session(daemon)
    for i in range(8):
        session.start(f"r{i}", request(f"{i}:", max_tokens=900))
    while len(session.responses) < 8:
        session.read()
    session.call.cancel()
    session.done()
    daemon.wait_until_idle()


@pytest.mark.parametrize("tokens", [0, 5])
def test_coalescing_changes_messages_and_nothing_else(daemon, tokens):
    asked = request(max_tokens=40, sampling={"temperature": 1.0, "seed": 7}, output={"token_ids": True})
    plain = inference_pb2.GenerateStreamRequest(request=asked)
    held = inference_pb2.GenerateStreamRequest(request=asked)
    held.stream.max_coalesce_delay.FromSeconds(60)
    held.stream.max_coalesce_tokens = tokens
    expected = without_what_differs(merged(daemon.inference.GenerateStream(plain)))
    messages = list(daemon.inference.GenerateStream(held))
    assert without_what_differs(merged(messages)) == expected
    counts = [sum(delta.token_count for delta in each.deltas) for each in messages]
    assert len(counts) <= (2 if tokens == 0 else 9)
    assert all(each >= tokens for each in counts[1:-1])


def test_threads_share_one_session_with_other_calls(daemon):
    """What else runs is neither hurt nor slowed to a stop by a session that nobody reads."""
    session = Session(daemon)
    for i in range(4):
        session.start(f"r{i}", request(f"{i}:", max_tokens=200))
    answers = []
    callers = [
        threading.Thread(target=lambda: answers.append(daemon.inference.Generate(request(max_tokens=8))))
        for _ in range(8)
    ]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert [each.usage.completion_tokens for each in answers] == [8] * 8
    session.done()
    session.read_all()
    assert {merged(each).usage.completion_tokens for each in session.responses.values()} == {200}
