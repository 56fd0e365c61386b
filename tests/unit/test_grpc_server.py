"""The gRPC server over a scripted engine: what a real one does too rarely to wait for it."""

import asyncio
import contextlib
import sys
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from fakes import FakeOutput, core_error, finish
from grpc_health.v1 import health_pb2
from grpc_served import NOT_SERVING, SERVING, details, living, reason, run, run_without_collector

from llmsrv.config import ServeConfig
from llmsrv.errors import Code, ServiceError
from llmsrv.generation import Generation
from llmsrv.serve.calls import INLINE_BYTES
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.v1 import admin_pb2, inference_pb2, inference_pb2_grpc, types_pb2


def test_an_engine_that_fails_in_mid_stream():
    async def test(served):
        call = served.stream()
        key = await served.submitted()
        served.engine.emit(key, b"a")
        assert (await call.read()).deltas[0].text == "a"  # what was delivered stays valid
        served.engine.fail_all("a broken invariant")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "Traceback" not in caught.value.details()
        while await served.state() == SERVING:
            await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stream().read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert reason(caught.value) == "ENGINE_FAILED"
        stats = await served.admin.GetStats(admin_pb2.GetStatsRequest())
        assert stats.stats.state == admin_pb2.SERVER_STATE_FAILED

    run(test)


def test_a_stall_shows_and_passes():
    async def test(served):
        watch = served.health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        served.engine.stuck_s = 1e6
        assert (await watch.read()).status == NOT_SERVING
        info = await served.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
        assert info.state == admin_pb2.SERVER_STATE_STALLED
        served.engine.stuck_s = 0.0
        assert (await watch.read()).status == SERVING
        watch.cancel()

    run(test)


def test_a_bug_of_ours_is_internal_and_tells_nothing():
    async def test(served):
        def broken(*_):
            raise KeyError("secret detail")

        served.engine.build = broken
        for call in (served.inference.Generate(inference_pb2.GenerateRequest(text="x")), served.stream().read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in caught.value.details()
        assert served.service.in_flight == 0

    run(test)


@pytest.mark.parametrize("how", ["cancel", "deadline", "connection"])
def test_a_call_that_ends_early_aborts_the_request(how):
    async def test(served):
        call = served.stream(timeout=0.2 if how == "deadline" else None)
        key = await served.submitted()
        served.engine.emit(key, b"a")
        await call.read()
        if how == "cancel":
            call.cancel()
        elif how == "connection":
            await served.channel.close()
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        assert ("abort", key) in served.engine.calls
        assert served.engine.live == {}

    run(test)


def test_a_unary_call_that_ends_early_aborts_the_request():
    async def test(served):
        call = served.inference.Generate(inference_pb2.GenerateRequest(text="x"), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        assert served.engine.live == {}

    run(test)


@pytest.mark.parametrize("seconds", [None, 20.0])
def test_a_calls_deadline_reaches_the_engine(seconds):
    async def test(served):
        stops = types_pb2.StoppingParams(stop_strings=["x" * INLINE_BYTES])
        large = inference_pb2.GenerateRequest(text="hi", stopping=stops)  # is converted beside the loop
        calls = [served.stream(timeout=seconds), served.inference.Generate(large, timeout=seconds)]
        await served.submitted(len(calls))
        for each in served.engine.submitted.values():
            # On its way a timeout is rounded up to the unit that it travels in.
            assert each.deadline_s is None if seconds is None else seconds - 15 < each.deadline_s < seconds + 1
        for call in calls:
            call.cancel()

    run(test)


def test_a_request_that_waited_too_long_is_told_when_to_come_back():
    async def test(served):
        call = served.stream()
        key = await served.submitted()
        error = core_error(Code.RESOURCE_EXHAUSTED, "it waited for 1 s (queue_timeout)")
        served.engine.push([FakeOutput(key, error=error, final=True)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = details(caught.value)
        assert found["ErrorInfo"].reason == "QUEUE_TIMEOUT"
        assert found["RetryInfo"].retry_delay.ToMilliseconds() >= 100

    run(test)


def test_a_request_that_cannot_meet_its_deadline():
    async def test(served):
        call = served.stream(timeout=20)
        key = await served.submitted()
        error = core_error(Code.DEADLINE_EXCEEDED, "the deadline cannot be met")
        served.engine.push([FakeOutput(key, error=error, final=True)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert reason(caught.value) == "DEADLINE_PASSED"

    run(test)


def test_what_the_engine_adds_to_a_refusal_reaches_the_client():
    async def test(served):
        facts = {"needed_blocks": "9", "total_blocks": "8"}
        refusal = ServiceError(Code.FAILED_PRECONDITION, "the prompt needs 9 of 8 blocks", metadata=facts)
        served.engine.submit = Mock(side_effect=refusal)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stream().read()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        found = details(caught.value)["ErrorInfo"]
        assert (found.reason, found.metadata) == ("KV_CACHE_TOO_SMALL", facts)

    run(test)


def test_the_time_limit_is_a_finish():
    async def test(served):
        limits = types_pb2.StoppingParams()
        limits.time_limit.FromMilliseconds(1500)
        call = served.inference.Generate(inference_pb2.GenerateRequest(text="hi", stopping=limits))
        key = await served.submitted()
        assert served.engine.submitted[key].params.time_limit_s == 1.5
        served.engine.emit(key, b"ab", finish=finish("time_limit"), final=True)
        (completion,) = (await call).completions
        assert completion.text == "ab"
        assert completion.finish.reason == types_pb2.FINISH_REASON_TIME_LIMIT
        assert served.service.outcomes == {"time_limit": 1}

    run(test)


def test_stats_show_everything_that_the_engine_tells():
    async def test(served):
        stats = (await served.admin.GetStats(admin_pb2.GetStatsRequest())).stats
        assert (stats.kv_blocks_used, stats.kv_blocks_cached, stats.kv_blocks_free) == (0, 3, 61)
        assert stats.kv_blocks_total == 64
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.copied_prefix_tokens) == (20, 10, 2)
        assert (stats.preemptions, stats.recomputed_tokens, stats.deadline_drops) == (11, 6, 0)
        assert (stats.swap_outs, stats.swap_ins) == (5, 4)
        assert (stats.swapped_out_blocks, stats.swapped_in_blocks) == (15, 12)
        assert (stats.swap_blocks_held, stats.swap_blocks_total) == (4, 32)
        assert (stats.utilization, stats.swap_bytes_per_second) == (0.75, 2.5e9)
        assert stats.step_time_per_token.ToMicroseconds() == 2000
        assert stats.oldest_wait.ToMilliseconds() == 1500
        (swapped,) = stats.sequence_states.values()
        assert (swapped.current, swapped.entered, swapped.time.ToMilliseconds()) == (1, 5, 500)
        assert list(stats.sequence_states) == ["swapped"]

    run(test)


def test_1000_cancelled_streams_leave_nothing():
    async def test(served):
        async def one():
            call = served.stream()
            await asyncio.sleep(0)
            call.cancel()

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(100)))
        call = served.stream("last")
        while not any(bytes(each.prompt) == b"last" for each in served.engine.submitted.values()):
            await asyncio.sleep(0.01)
        key = next(key for key, each in served.engine.submitted.items() if bytes(each.prompt) == b"last")
        served.engine.emit(key, b"x", finish=finish("length"), final=True)
        assert [message async for message in call][-1].HasField("end")
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        assert served.engine.live == {}
        assert served.service._live == {}

    run(test)


def test_a_reader_that_stalls_gets_few_large_messages():
    async def test(served):
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]
        async with grpc.aio.insecure_channel(served.address, options) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.GenerateStreamRequest(request=inference_pb2.GenerateRequest(text="hi"))
            call = stub.GenerateStream(request)
            key = await served.submitted()
            for _ in range(200):
                served.engine.push([FakeOutput(key, 0, list(b"x" * 1000))])
                await asyncio.sleep(0.001)
            served.engine.emit(key, b"", finish=finish("length"), final=True)
            await asyncio.sleep(0.2)
            messages = [message async for message in call]
        assert sum(len(delta.text) for message in messages for delta in message.deltas) == 200_000
        assert len(messages) < 100

    run(test)


@pytest.mark.parametrize(("interval_s", "cut_off"), [(0.001, False), (60.0, True)])
def test_how_often_a_client_may_ping_while_nothing_is_sent(interval_s, cut_off):
    async def test(served):
        options = [("grpc.keepalive_time_ms", 100), ("grpc.http2.max_pings_without_data", 0)]
        async with grpc.aio.insecure_channel(served.address, options) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            call = stub.Generate(inference_pb2.GenerateRequest(text="hi"))
            key = await served.submitted()
            if cut_off:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                return
            await asyncio.sleep(1)
            served.engine.emit(key, b"x", finish=finish("length"), final=True)
            assert (await call).completions[0].text == "x"

    run(test, grpc_min_ping_interval=interval_s)


@pytest.mark.parametrize("how", ["ok", "refused", "failed", "cancelled"])
def test_a_request_is_freed_when_it_ends(how):
    """By reference counts: what only the garbage collector frees piles up under load."""

    async def test(served):
        for i in range(5):
            call = served.stream("" if how == "refused" else "hi")
            if how != "refused":
                key = await served.submitted(i + 1)
                served.engine.emit(key, b"a")
                await call.read()
            if how == "cancelled":
                call.cancel()
            elif how == "failed":
                error = core_error(Code.INTERNAL, "bad numbers")
                served.engine.push([FakeOutput(key, error=error, final=True)])
            elif how == "ok":
                served.engine.emit(key, b"b", finish=finish("length"), final=True)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                while await call.read() is not grpc.aio.EOF:
                    pass
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        kept = living(Generation, ServiceError)
        assert kept == []

    run_without_collector(test)


def test_channelz_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc_channelz.v1", None)

    async def body():
        with pytest.raises(ValueError, match=r"channelz: .*pip install"):
            GrpcServer(ServeConfig(model="fake", channelz=True))

    asyncio.run(body())
