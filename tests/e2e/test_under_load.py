"""Many clients, clients that leave, clients that are slow, and a server that is full: nothing stays behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import grpc
import pytest
from daemons import details, merged, request, stream

from llmsrv.v1 import admin_pb2, inference_pb2, inference_pb2_grpc, types_pb2


def test_64_streams_at_once_are_64_streams_alone(daemon):
    prompts = [f"Tell me about the number {i}." for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda prompt: merged(stream(daemon, request(prompt))), prompts))
    assert all(answer.usage.completion_tokens == 8 for answer in together)
    for i in (0, 31, 63):
        assert daemon.inference.Generate(request(prompts[i])).completions == together[i].completions


def test_200_aborts_at_random_moments(daemon):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    plans = [(rng.randrange(4), rng.random() * 0.2, rng.choice([1, 1, 3]), rng.randrange(1, 300)) for _ in range(200)]

    def abort(plan):
        how, delay_s, n, words = plan
        message = request("word " * words, max_tokens=300, greedy=False, sampling={"n": n}, request_id=f"id-{plan}")
        if how == 0:  # the unary call is cancelled
            call = daemon.inference.Generate.future(message)
            time.sleep(delay_s)
            call.cancel()
            return None
        call = stream(daemon, message, timeout=delay_s + 0.01 if how == 1 else None)
        if how == 2:  # by an administrator: what was generated is valid
            time.sleep(delay_s)
            daemon.admin.Abort(admin_pb2.AbortRequest(ids=admin_pb2.AbortRequest.Ids(request_ids=[f"id-{plan}"])))
        timer = threading.Timer(delay_s, call.cancel)
        timer.start()
        try:
            for _ in call:
                pass
            return None
        except grpc.RpcError as error:
            return error.code()
        finally:
            timer.cancel()

    with ThreadPoolExecutor(12) as pool:
        codes = set(pool.map(abort, plans))
    assert codes <= {None, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
    daemon.wait_until_idle()
    assert daemon.inference.Generate(request()).usage.completion_tokens == 8


def test_an_administrators_abort_is_a_valid_end(daemon):
    call = stream(daemon, request(request_id="long", max_tokens=800, output={"token_ids": True}))
    first = next(call)
    target = admin_pb2.AbortRequest.Ids(request_ids=["long", "unknown"])
    assert list(daemon.admin.Abort(admin_pb2.AbortRequest(ids=target)).aborted_request_ids) == ["long"]
    answer = merged([first, *call])
    assert answer.completions[0].finish.reason == types_pb2.FINISH_REASON_ABORTED
    assert answer.usage.completion_tokens == len(answer.completions[0].token_ids) < 800
    with pytest.raises(grpc.RpcError) as caught:
        daemon.admin.Abort(admin_pb2.AbortRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_deadline_ends_the_request(daemon):
    for call in (
        lambda: daemon.inference.Generate(request(max_tokens=900), timeout=0.3),
        lambda: list(stream(daemon, request(max_tokens=900), timeout=0.3)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        daemon.wait_until_idle()


CLIENT = """
import sys, grpc
from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2
stub = inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
request = inference_pb2.GenerateRequest(
    text="Once",
    stopping=types_pb2.StoppingParams(max_tokens=900, ignore_eos=True),
    sampling=types_pb2.SamplingParams(n=2),
)
for message in stub.GenerateStream(inference_pb2.GenerateStreamRequest(request=request)):
    print("message", flush=True)
"""


def test_a_killed_client_leaves_nothing(daemon):
    client = subprocess.Popen([sys.executable, "-c", CLIENT, daemon.address], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "message\n"
    assert daemon.stats().running > 0
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    daemon.wait_until_idle()


def test_a_slow_reader_holds_up_nobody(daemon):
    """Its window is full after a few dozen messages of this size; what it has not read is merged."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]
    with grpc.insecure_channel(daemon.address, options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        message = request(max_tokens=400, output={"logprobs": True, "top_logprobs": 20, "token_ids": True})
        slow = stub.GenerateStream(inference_pb2.GenerateStreamRequest(request=message))
        first = next(slow)
        assert daemon.inference.Generate(request()).usage.completion_tokens == 8
        daemon.wait_until_idle(60)  # the engine is done with it although most was not read
        messages = [first, *slow]
    answer = merged(messages)
    assert answer.usage.completion_tokens == len(answer.completions[0].logprobs) == 400
    assert len(messages) < 400


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(tiny_daemon):
    message = request("word " * 20, max_tokens=90)
    running = [stream(tiny_daemon, message) for _ in range(16)]
    refusals, answers = [], 0
    for call in running:
        try:
            answers += merged(call).usage.completion_tokens == 90
        except grpc.RpcError as error:
            refusals.append(error)
    assert answers >= 4
    assert refusals
    for error in refusals:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(error)["RetryInfo"].retry_delay.ToMilliseconds() >= 100
        assert details(error)["ErrorInfo"].reason == "QUEUE_FULL"


def test_a_full_pool_preempts_and_changes_nothing(daemon, tiny_daemon):
    """3 MiB hold 136 tokens: four requests of 100 tokens cannot all stay, and none may notice."""
    before = tiny_daemon.stats().preemptions
    messages = [request(f"Number {i}:", max_tokens=90) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        squeezed = list(pool.map(lambda message: merged(stream(tiny_daemon, message)), messages))
    assert tiny_daemon.stats().preemptions > before
    for message, answer in zip(messages, squeezed, strict=True):
        assert daemon.inference.Generate(message).completions == answer.completions


def test_outcomes_are_counted(daemon):
    before = dict(daemon.stats().requests)
    daemon.inference.Generate(request())
    daemon.inference.Generate(request(max_tokens=60, stopping={"stop_strings": [" "]}))
    with pytest.raises(grpc.RpcError):
        daemon.inference.Generate(request(sampling={"top_p": 7}))
    with pytest.raises(grpc.RpcError):
        daemon.inference.Generate(request(sampling={"bad_words": ["x"]}))
    call = stream(daemon, request(max_tokens=900))
    next(call)
    call.cancel()
    daemon.wait_until_idle()
    gained = {name: count - before.get(name, 0) for name, count in daemon.stats().requests.items()}
    assert {name: count for name, count in gained.items() if count} == {
        "length": 1,
        "stop": 1,
        "INVALID_ARGUMENT": 1,
        "UNIMPLEMENTED": 1,
        "CANCELLED": 1,
    }


def test_watch_stats(daemon):
    interval = admin_pb2.WatchStatsRequest()
    interval.interval.FromMilliseconds(100)
    watch = daemon.admin.WatchStats(interval)
    samples = [next(watch).stats for _ in range(3)]
    watch.cancel()
    times = [sample.time.ToMilliseconds() for sample in samples]
    assert all(later - earlier >= 80 for earlier, later in pairwise(times))
    interval.interval.FromMilliseconds(10)
    with pytest.raises(grpc.RpcError) as caught:
        next(daemon.admin.WatchStats(interval))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
