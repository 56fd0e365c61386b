"""How streams are cut, and what becomes of those that nobody reads: over a scripted engine."""

import asyncio
import gc

import grpc
import grpc.aio
import pytest
from fakes import FakeOutput, finish
from grpc_served import details, reason, rest_of, run, until

from llmsrv.v1 import inference_pb2, inference_pb2_grpc

# HTTP/2's smallest windows, so that a few messages fill them.
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]


def options(delay_s=None, tokens=0):
    made = inference_pb2.StreamOptions(max_coalesce_tokens=tokens)
    if delay_s is not None:
        made.max_coalesce_delay.FromMilliseconds(round(delay_s * 1000))
    return made


def stream(stub, how, text="hi"):
    request = inference_pb2.GenerateRequest(text=text)
    return stub.GenerateStream(inference_pb2.GenerateStreamRequest(request=request, stream=how))


def text_of(message):
    return "".join(delta.text for delta in message.deltas)


def test_tokens_are_held_until_there_are_enough():
    async def test(served):
        call = stream(served.inference, options(60, tokens=4))
        key = await served.submitted()
        texts = []
        for each in b"abcdefghij":
            served.engine.emit(key, bytes([each]))
            await asyncio.sleep(0.01)
            if each == ord("a"):
                texts.append(text_of(await call.read()))  # the first token is not held
        served.engine.emit(key, b"", finish=finish("length"), final=True)  # nor is the end
        texts += [text_of(each) for each in await rest_of(call)]
        assert texts == ["a", "bcde", "fghi", "j"]

    run(test)


def test_tokens_are_held_for_so_long():
    async def test(served):
        call = stream(served.inference, options(0.5))
        key = await served.submitted()
        served.engine.emit(key, b"a")
        assert text_of(await call.read()) == "a"
        began = asyncio.get_running_loop().time()
        served.engine.emit(key, b"b")
        await asyncio.sleep(0.01)
        served.engine.emit(key, b"c")
        assert text_of(await call.read()) == "bc"
        assert asyncio.get_running_loop().time() - began > 0.45
        served.engine.emit(key, b"d")
        assert text_of(await call.read()) == "d"
        call.cancel()

    run(test)


def test_the_sequences_of_a_request_count_together():
    async def test(served):
        request = inference_pb2.GenerateRequest(text="hi", sampling={"n": 2})
        call = served.inference.GenerateStream(
            inference_pb2.GenerateStreamRequest(request=request, stream=options(60, tokens=4))
        )
        key = await served.submitted()
        served.engine.push([FakeOutput(key, index, [ord("a")]) for index in (0, 1)])
        assert len((await call.read()).deltas) == 2
        for _ in range(2):
            served.engine.push([FakeOutput(key, index, [ord("b")]) for index in (0, 1)])
        assert [delta.text for delta in (await call.read()).deltas] == ["bb", "bb"]
        call.cancel()

    run(test)


def test_without_options_every_step_is_sent():
    async def test(served):
        for how in (None, options(0)):
            call = stream(served.inference, how)
            key = await served.submitted(len(served.engine.submitted) + 1)
            for each in b"abc":
                served.engine.emit(key, bytes([each]))
                assert text_of(await call.read()) == chr(each)
            call.cancel()

    run(test)


@pytest.mark.parametrize(
    ("how", "field"),
    [
        (options(-0.5), "stream.max_coalesce_delay"),
        (options(61), "stream.max_coalesce_delay"),
        (options(None, 5), "stream.max_coalesce_tokens"),
        (options(0, 5), "stream.max_coalesce_tokens"),
    ],
)
def test_impossible_options(how, field):
    async def test(served):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream(served.inference, how).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [each.field for each in details(caught.value)["BadRequest"].field_violations] == [field]

    run(test)


def test_a_stream_that_nobody_reads_is_ended_and_the_others_are_not():
    async def test(served):
        async with grpc.aio.insecure_channel(served.address, [*NARROW, ("x", 1)]) as channel:
            stalled = stream(inference_pb2_grpc.InferenceServiceStub(channel), None, "stalled")
            key = await served.submitted()
            steady = stream(served.inference, None, "steady")
            await served.submitted(2)
            assert text_of(await next_of(served, 2, steady)) == "y"
            emitting = asyncio.create_task(keep_emitting(served, key))
            while ("abort", key) not in served.engine.calls:  # its blocks are free
                assert text_of(await next_of(served, 2, steady)) == "y"
            emitting.cancel()
            assert list(served.engine.live) == [2]
            assert served.service.in_flight == 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:  # who reads again is told
                await rest_of(stalled)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reason(caught.value) == "STREAM_STALLED"
        served.engine.emit(2, b"z", finish=finish("length"), final=True)
        assert text_of(await steady.read()) == "z"

    run(test, stream_stall_timeout=0.5)


async def next_of(served, key, call):
    served.engine.emit(key, b"y")
    return await call.read()


async def keep_emitting(served, key):
    while key in served.engine.live:
        served.engine.push([FakeOutput(key, 0, list(b"x" * 2000))])
        await asyncio.sleep(0.005)


def test_a_client_that_leaves_after_the_stall(caplog):
    async def test(served):
        async with grpc.aio.insecure_channel(served.address, NARROW) as channel:
            call = stream(inference_pb2_grpc.InferenceServiceStub(channel), None)
            key = await served.submitted()
            await keep_emitting(served, key)
            call.cancel()
            await until(lambda: not served.server.stalls._endings)

    run(test, stream_stall_timeout=0.5)
    gc.collect()  # what nobody looked at is complained of then
    assert [each for each in caplog.records if each.name != "llmsrv.serve.stall"] == []


def test_an_engine_that_is_slow_is_no_stall():
    async def test(served):
        call = stream(served.inference, None)
        key = await served.submitted()
        served.engine.emit(key, b"a")
        assert text_of(await call.read()) == "a"
        await asyncio.sleep(0.5)  # several limits
        served.engine.emit(key, b"b", finish=finish("length"), final=True)
        assert text_of(await call.read()) == "b"

    run(test, stream_stall_timeout=0.1)


@pytest.mark.parametrize("kind", ["batch", "session"])
def test_batches_and_sessions_that_nobody_reads(kind):
    async def test(served):
        async with grpc.aio.insecure_channel(served.address, NARROW) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            requests = [inference_pb2.GenerateRequest(text="hi", request_id=f"r{i}") for i in range(100)]
            if kind == "batch":
                call = stub.BatchGenerate(inference_pb2.BatchGenerateRequest(requests=requests))
            else:
                call = stub.GenerateSession()
                for each in requests:
                    start = inference_pb2.GenerateStreamRequest(request=each)
                    await call.write(inference_pb2.GenerateSessionRequest(start=start))
            await served.submitted()
            emitting = asyncio.create_task(keep_ending(served))
            await until(lambda: served.server.stalls._streams)
            await until(lambda: not served.server.stalls._streams)
            emitting.cancel()
            await until(lambda: not served.service.in_flight)
            assert served.engine.live == {}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest_of(call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(test, stream_stall_timeout=0.5)


async def keep_ending(served):
    while True:
        for key in list(served.engine.live):
            served.engine.push([FakeOutput(key, 0, list(b"x" * 4000), finish=finish("length"), final=True)])
        await asyncio.sleep(0.005)
