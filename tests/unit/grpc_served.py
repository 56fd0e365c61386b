"""A gRPC server over a scripted engine, in the test's own loop, and what its tests share."""

import asyncio
import gc

import grpc
import grpc.aio
from fakes import FakeEngine, fake_model
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from llmsrv.config import ServeConfig
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.service import GenerationService
from llmsrv.v1 import admin_pb2_grpc, inference_pb2, inference_pb2_grpc, model_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Served:
    """A server in this loop, and stubs that call it."""

    def __init__(self, **options):
        self.engine = FakeEngine()
        self.config = ServeConfig(**{"model": "fake", "port": 0, "max_model_len": 4096, **options})
        self.server = GrpcServer(self.config)

    async def __aenter__(self):
        await self.server.start()
        self.address = self.server.address
        self.channel = grpc.aio.insecure_channel(self.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.service = GenerationService(self.made_model())
        await self.server.serve(self.service)
        return self

    def made_model(self):
        return fake_model(self.engine, config=self.config)

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


def run(test, **options):
    """Runs test(served) in a loop of its own. `options` are the daemon's."""

    async def body():
        async with Served(**options) as served:
            await asyncio.wait_for(test(served), 60)

    asyncio.run(body())


def run_without_collector(test):
    """The same; what is not freed by its last reference stays."""
    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


def living(*kinds):
    """Objects of exactly these types. Their type is asked for, not isinstance(): modules of others warn of that."""
    return [each for each in gc.get_objects() if type(each) in kinds]


async def rest_of(call):
    """What a stream still has; `async for` cannot follow read()."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def reason(error):
    return details(error)["ErrorInfo"].reason


def details(error):
    """google.rpc details of a failed call, or of the status of an item, by name."""
    status = status_of(error) if isinstance(error, grpc.aio.AioRpcError) else error
    unpacked = {}
    for packed in status.details:
        message = getattr(error_details_pb2, packed.TypeName().rsplit(".", 1)[1])()
        packed.Unpack(message)
        unpacked[type(message).__name__] = message
    return unpacked


def status_of(error):
    """google.rpc.Status of a failed call."""
    return rpc_status.from_call(_Call(error))


class _Call:
    """from_call wants a synchronous call's face."""

    def __init__(self, error):
        self.code, self.details = error.code, error.details
        self.trailing_metadata = lambda: error.trailing_metadata()
