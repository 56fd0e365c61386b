"""The gRPC server over a scripted engine: what a real one does too rarely to wait for it."""

import asyncio
import contextlib
import gc
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from fakes import FakeEngine, FakeOutput, fake_model, finish
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from llmsrv.config import ServeConfig
from llmsrv.errors import ServiceError
from llmsrv.generation import Generation
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.service import GenerationService
from llmsrv.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Served:
    """A server in this loop, and stubs that call it."""

    def __init__(self):
        self.engine = FakeEngine()
        self.server = GrpcServer(ServeConfig(model="fake", port=0))

    async def __aenter__(self):
        port = await self.server.start()
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.aio.insecure_channel(self.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.service = GenerationService(fake_model(self.engine))
        await self.server.serve(self.service)
        return self

    async def __aexit__(self, *error):
        await self.channel.close()
        await self.server.stop(0)
        await self.service.close()

    async def submitted(self, count=1):
        """Waits until the engine has so many requests; the key of the last."""
        while len(self.engine.submitted) < count:
            await asyncio.sleep(0.005)
        return count

    async def state(self):
        return (await self.health.Check(health_pb2.HealthCheckRequest())).status

    def stream(self, text="hi", **call):
        request = inference_pb2.GenerateStreamRequest(request=inference_pb2.GenerateRequest(text=text))
        return self.inference.GenerateStream(request, **call)


def run(test):
    async def body():
        async with Served() as served:
            await asyncio.wait_for(test(served), 20)

    asyncio.run(body())


def reason(error):
    info = error_details_pb2.ErrorInfo()
    rpc_status.from_call(_Call(error)).details[0].Unpack(info)
    return info.reason


class _Call:
    """from_call wants a synchronous call's face."""

    def __init__(self, error):
        self.code, self.details = error.code, error.details
        self.trailing_metadata = lambda: error.trailing_metadata()


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
            for _ in range(400):
                served.engine.emit(key, b"x" * 1000)
                await asyncio.sleep(0.001)
            served.engine.emit(key, b"", finish=finish("length"), final=True)
            await asyncio.sleep(0.2)
            messages = [message async for message in call]
        assert sum(len(delta.text) for message in messages for delta in message.deltas) == 400_000
        assert len(messages) < 200

    run(test)


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
                error = SimpleNamespace(code=13, message="bad numbers", violations=[])
                served.engine.push([FakeOutput(key, error=error, final=True)])
            elif how == "ok":
                served.engine.emit(key, b"b", finish=finish("length"), final=True)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                while await call.read() is not grpc.aio.EOF:
                    pass
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        kept = [each for each in gc.get_objects() if isinstance(each, Generation | ServiceError)]
        assert kept == []

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()
