"""Calls that were answered with an error: counted once each, as their clients were told, over both protocols."""

import asyncio
import contextlib
from collections import Counter

import grpc
import grpc.aio
import metrics_text
from fakes import FakeEngine, core_error, fake_model, finish
from fakes import FakeOutput as Output
from http_client import JSON, call

from llmsrv.config import ServeConfig
from llmsrv.errors import Code
from llmsrv.serve.call_errors import KINDS_MAX, CallErrors
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.serve.security import Security
from llmsrv.service import GenerationService
from llmsrv.v1 import inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc

KEY = "alice-key-0123456789"
FILE = f"""
[[key]]
name = "alice"
key = "{KEY}"
max_concurrent_streams = 2
"""
TEXT = {"prompt": "x"}
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]  # little waits on the way


class Served:
    """Both servers in this loop, over a scripted engine, with one key."""

    def __init__(self, path, **options):
        keys = path / "keys.toml"
        keys.write_text(FILE)
        self.engine = FakeEngine()
        config = ServeConfig(model="fake", port=0, http_port=0, api_key_file=str(keys), open_metrics=True, **options)
        self.security = Security(config, {})
        self.grpc, self.http = GrpcServer(config, self.security), HttpServer(config, self.security)

    async def __aenter__(self):
        port, self.port = await self.grpc.start(), await self.http.start()
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.aio.insecure_channel(self.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        return self

    async def load(self):
        self.service = GenerationService(fake_model(self.engine))
        await self.grpc.serve(self.service)
        await self.http.serve(self.service)

    async def __aexit__(self, *error):
        await self.channel.close()
        await self.http.stop()
        await self.grpc.stop(0)
        await self.service.close()

    async def ask(self, path, body=None, *, key=KEY, method="POST", headers=JSON):
        authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
        return await asyncio.to_thread(call, self.port, method, path, body, {**headers, **authorization})

    async def told(self):
        """What /metrics says, by protocol, code and reason."""
        text = (await self.ask("/metrics", key=None, method="GET")).body.decode()
        samples = metrics_text.read(text)["llmsrv:call_errors_total"][1]
        named = ((dict(labels), value) for (_, labels), value in samples.items())
        return Counter({(each["protocol"], each["code"], each["reason"]): value for each, value in named})


def run(path, test, load=True, **options):
    async def body():
        async with Served(path, **options) as served:
            if load:
                await served.load()
            await asyncio.wait_for(test(served), 60)

    asyncio.run(body())


def metadata(key=KEY):
    return [("authorization", f"Bearer {key}")]


async def fails(made):
    """Reads an RPC to its end, which is an error."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        if hasattr(made, "read"):
            while await made.read() is not grpc.aio.EOF:
                pass
        await made
    assert await made.code() is not grpc.StatusCode.OK


def generate(**fields):
    return inference_pb2.GenerateRequest(**fields)


def test_the_guards_refusals(tmp_path):
    async def test(served):
        for key in (None, "wrong-key-0123456789", "wrong-key-0123456789"):
            assert (await served.ask("/v1/models", key=key, method="GET")).status == 401
            await fails(
                served.models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata(key) if key else None)
            )
        assert (await served.ask("/stats", method="GET")).status == 403
        await fails(served.channel.unary_unary("/llmsrv.v1.AdminService/GetStats")(b"", metadata=metadata()))
        each = {("UNAUTHENTICATED", "MISSING_API_KEY"): 1, ("UNAUTHENTICATED", "INVALID_API_KEY"): 2}
        each[("PERMISSION_DENIED", "ADMIN_REQUIRED")] = 1
        assert await served.told() == {(by, *kind): count for by in ("grpc", "http") for kind, count in each.items()}

    run(tmp_path, test)


def test_what_is_wrong_with_a_request(tmp_path):
    async def test(served):
        for _ in range(3):
            assert (await served.ask("/v1/completions", {**TEXT, "temperature": -1, "nonsense": 1})).status == 400
            await fails(served.inference.Generate(generate(), metadata=metadata()))
        assert (await served.ask("/v1/completions", {**TEXT, "model": "other"})).status == 404
        await fails(served.models.GetModel(model_pb2.GetModelRequest(name="other"), metadata=metadata()))
        await fails(served.inference.Embed(inference_pb2.EmbedRequest(), metadata=metadata()))
        await fails(served.channel.unary_unary("/llmsrv.v1.Nothing/Nothing")(b"", metadata=metadata()))
        assert (await served.ask("/v1/completions", b"{")).status == 400
        assert (await served.ask("/nothing/at/all", TEXT)).status == 404
        assert (await served.ask("/v1/completions", method="GET")).status == 405
        assert (await served.ask("/v1/completions", TEXT, headers={"Content-Type": "text/plain"})).status == 415
        assert (await served.ask("/v1/models", method="GET")).status == 200
        assert await served.told() == {
            ("http", "INVALID_ARGUMENT", "INVALID_FIELD"): 3,
            ("grpc", "INVALID_ARGUMENT", "INVALID_FIELD"): 3,
            ("http", "NOT_FOUND", "MODEL_NOT_FOUND"): 1,
            ("grpc", "NOT_FOUND", "MODEL_NOT_FOUND"): 1,
            ("grpc", "UNIMPLEMENTED", "RPC_NOT_IMPLEMENTED"): 1,
            ("grpc", "UNIMPLEMENTED", "NO_SUCH_RPC"): 1,
            ("http", "INVALID_ARGUMENT", "INVALID_JSON"): 1,
            ("http", "NOT_FOUND", "NOT_FOUND"): 1,
            ("http", "UNIMPLEMENTED", "METHOD_NOT_ALLOWED"): 1,
            ("http", "INVALID_ARGUMENT", "UNSUPPORTED_CONTENT_TYPE"): 1,
        }

    run(tmp_path, test)


def test_what_a_busy_server_refuses(tmp_path):
    async def test(served):
        assert (await served.ask("/v1/completions", TEXT)).status == 503  # it is loading
        await fails(served.inference.Generate(generate(text="x"), metadata=metadata()))
        await served.load()
        streams = [served.inference.GenerateStream(stream_of("x"), metadata=metadata()) for _ in range(2)]
        while len(served.engine.submitted) < 2:
            await asyncio.sleep(0.005)
        assert (await served.ask("/v1/completions", TEXT)).status == 429
        await fails(served.inference.Generate(generate(text="x"), metadata=metadata()))
        for key in (1, 2):
            served.engine.emit(key, b"x", finish=finish("length"), final=True)
        for each in streams:
            while await each.read() is not grpc.aio.EOF:
                pass
        while served.service.in_flight:
            await asyncio.sleep(0.005)
        served.engine.queued = 5000
        assert (await served.ask("/v1/completions", TEXT)).status == 429
        await fails(served.inference.Generate(generate(text="x"), metadata=metadata()))
        each = {
            ("UNAVAILABLE", "STARTING"): 1,
            ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS"): 1,
            ("RESOURCE_EXHAUSTED", "QUEUE_FULL"): 1,
        }
        assert await served.told() == {(by, *kind): count for by in ("grpc", "http") for kind, count in each.items()}

    run(tmp_path, test, load=False)


def stream_of(text):
    return inference_pb2.GenerateStreamRequest(request=generate(text=text))


def test_failures_on_the_way_and_in_items(tmp_path):
    async def test(served):
        async def fail_next():
            while not served.engine.live:
                await asyncio.sleep(0.005)
            (key,) = served.engine.live
            served.engine.emit(key, b"a")
            served.engine.push([Output(key, error=core_error(Code.INTERNAL), final=True)])

        await asyncio.gather(served.ask("/v1/completions", {**TEXT, "stream": True}), fail_next())
        await asyncio.gather(fails(served.inference.GenerateStream(stream_of("x"), metadata=metadata())), fail_next())
        requests = [generate(), generate(text="x", model="other")]
        batch = inference_pb2.BatchGenerateRequest(requests=requests)
        answers = [each async for each in served.inference.BatchGenerate(batch, metadata=metadata())]
        assert [each.HasField("error") for each in answers] == [True, True]
        session = served.inference.GenerateSession(metadata=metadata())
        await session.write(inference_pb2.GenerateSessionRequest(cancel_request_id="not there"))
        start = inference_pb2.GenerateStreamRequest(request=generate(text="x", request_id="a"))
        await session.write(inference_pb2.GenerateSessionRequest(start=start))
        await session.write(inference_pb2.GenerateSessionRequest(cancel_request_id="a"))  # no error: it was wished
        assert (await session.read()).items[0].error.code == grpc.StatusCode.CANCELLED.value[0]
        await session.write(inference_pb2.GenerateSessionRequest())
        assert (await session.read()).items[0].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        await session.done_writing()
        assert await session.read() is grpc.aio.EOF
        assert await served.told() == {
            ("http", "INTERNAL", "INTERNAL"): 1,
            ("grpc", "INTERNAL", "INTERNAL"): 1,
            ("grpc", "INVALID_ARGUMENT", "INVALID_FIELD"): 2,
            ("grpc", "NOT_FOUND", "MODEL_NOT_FOUND"): 1,
        }

    run(tmp_path, test)


def test_a_stream_that_nobody_reads(tmp_path):
    async def test(served):
        async with grpc.aio.insecure_channel(served.address, NARROW) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            call = stub.GenerateStream(stream_of("x"), metadata=metadata())
            while not served.engine.live:
                await asyncio.sleep(0.005)
            while served.engine.live:
                served.engine.push([Output(1, 0, list(b"x" * 2000))])
                await asyncio.sleep(0.005)
            call.cancel()
        assert await served.told() == {("grpc", "RESOURCE_EXHAUSTED", "STREAM_STALLED"): 1}

    run(tmp_path, test, stream_stall_timeout=0.5)


def test_kinds_are_bounded():
    errors = CallErrors()
    for number in range(2 * KINDS_MAX):
        errors.note("http", Code.NOT_FOUND, f"reason {number}")
    assert len(errors.counts) == KINDS_MAX + 1
    assert errors.counts["http", "NOT_FOUND", "OTHER"] == KINDS_MAX
    errors.note("http", Code.NOT_FOUND, "Reason 3")
    assert errors.counts["http", "NOT_FOUND", "REASON 3"] == 2
