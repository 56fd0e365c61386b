"""Both servers with keys: each route and each RPC, found by walking them, for everybody who may come by."""

import asyncio
import contextlib
import http.client
import importlib
import pkgutil

import grpc
import grpc.aio
import pytest
from fakes import FakeEngine, fake_model, finish
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from http_client import JSON, call, post
from starlette.routing import Mount

import llmsrv.v1
from llmsrv.config import ServeConfig
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.serve.http_api.routes import api
from llmsrv.serve.http_api.server import HEADER_BYTES_MAX, HttpServer
from llmsrv.serve.listener import Listener
from llmsrv.serve.security import Security
from llmsrv.service import GenerationService
from llmsrv.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

KEYS = {
    "user": "alice-key-0123456789",
    "admin": "admin-token-0123456789",
    "wrong": "wrong-key-0123456789",
    "nobody": None,
}
FILE = f"""
[[key]]
name = "alice"
key = "{KEYS["user"]}"
weight = 3
"""
OPEN_ROUTES = {"/health", "/ready", "/"}
ADMIN_ROUTES = {"/stats"}
OPEN_SERVICES = {"grpc.health.v1.Health"}
ADMIN_SERVICES = {"llmsrv.v1.AdminService"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Served:
    """Both servers in this loop, over a scripted engine."""

    def __init__(self, path, keys=FILE, **options):
        file = path / "keys.toml"
        file.write_text(keys)
        self.engine = FakeEngine()
        config = ServeConfig(model="fake", port=0, http_port=0, api_key_file=str(file), **options)
        self.security = Security(config, {"LLMSRV_ADMIN_TOKEN": KEYS["admin"]})
        self.grpc, self.http = GrpcServer(config, self.security), HttpServer(config, self.security)

    async def __aenter__(self):
        self.grpc_port, self.port = await self.grpc.start(), await self.http.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.service = GenerationService(fake_model(self.engine))
        await self.grpc.serve(self.service)
        await self.http.serve(self.service)
        return self

    async def __aexit__(self, *error):
        await self.channel.close()
        await self.http.stop()
        await self.grpc.stop(0)
        await self.service.close()

    async def submitted(self, count=1):
        while len(self.engine.submitted) < count:
            await asyncio.sleep(0.005)
        return count

    async def call(self, method, path, body=None, who="user", headers=JSON):
        return await asyncio.to_thread(call, self.port, method, path, body, {**headers, **header(who)})

    def stream(self, who="user", text="hi"):
        request = inference_pb2.GenerateStreamRequest(request=inference_pb2.GenerateRequest(text=text))
        return self.inference.GenerateStream(request, metadata=metadata(who))


def run(path, test, **options):
    async def body():
        async with Served(path, **options) as served:
            await asyncio.wait_for(test(served), 60)

    asyncio.run(body())


def header(who):
    return {} if KEYS[who] is None else {"Authorization": f"Bearer {KEYS[who]}"}


def metadata(who):
    return [(name.lower(), value) for name, value in header(who).items()]


def routes_of(routes, prefix=""):
    for route in routes:
        if isinstance(route, Mount):
            yield from routes_of(route.routes, prefix + route.path)
        else:
            for method in sorted(route.methods or {"GET"}):
                yield method, prefix + route.path


ROUTES = sorted(routes_of(api(Listener()).routes))


def rpcs():
    """Every RPC of llmsrv.v1, health and reflection."""
    modules = [importlib.import_module(f"llmsrv.v1.{each.name}") for each in pkgutil.iter_modules(llmsrv.v1.__path__)]
    files = [each for each in modules if each.__name__.endswith("_pb2")] + [health_pb2, reflection_pb2]
    services = [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]
    return sorted((service.full_name, method.name) for service in services for method in service.methods)


RPCS = rpcs()


def status_of_call(port, method, path, who):
    """The status alone: a body may have no end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path.replace("{name:path}", "fake"), headers=header(who))
        return connection.getresponse().status
    finally:
        connection.close()


def call_empty(port, service, method, who):
    """An RPC with an empty request, at its first answer or its end. Not by grpc.aio's client: that one reports INTERNAL
    when a call ends before its request is on its way."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream(f"/{service}/{method}")(iter([b""]), metadata=metadata(who), timeout=30)
        with contextlib.suppress(grpc.RpcError, StopIteration):
            next(call)
            return grpc.StatusCode.OK, ""
        return call.code(), f"{call.details()} {call.trailing_metadata()}"


REFUSED = {"nobody": 401, "wrong": 401}


def test_the_walks_find_what_there_is():
    assert {("POST", "/v1/chat/completions"), ("GET", "/health"), ("GET", "/metrics")} <= set(ROUTES)
    assert {service for service, _ in RPCS} >= {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "llmsrv.v1.AdminService",
        "llmsrv.v1.InferenceService",
        "llmsrv.v1.ModelService",
    }


def test_every_route_for_everybody(tmp_path):
    async def test(served):
        others = [("GET", path) for path in ("/", "/stats", "/nothing", "/health/", "//health", "/stats/")]
        for method, path in [*ROUTES, *others]:
            for who in KEYS:
                status = await asyncio.to_thread(status_of_call, served.port, method, path, who)
                if path in OPEN_ROUTES:
                    assert status in (200, 404), (method, path, who)
                elif who in REFUSED:
                    assert status == 401, (method, path, who)
                elif who == "user" and path in ADMIN_ROUTES:
                    assert status == 403, (method, path)
                else:
                    assert status not in (401, 403, 500), (method, path, who)

    run(tmp_path, test)


def test_every_rpc_for_everybody(tmp_path):
    async def test(served):
        code = grpc.StatusCode
        for service, method in [*RPCS, ("llmsrv.v1.AdminService", "Nothing"), ("other.Service", "Nothing")]:
            for who in KEYS:
                found, _ = await asyncio.to_thread(call_empty, served.grpc_port, service, method, who)
                if service in OPEN_SERVICES:
                    assert found not in (code.UNAUTHENTICATED, code.PERMISSION_DENIED), (service, method, who)
                    assert found is code.OK, (service, method, who)
                elif who in REFUSED:
                    assert found is code.UNAUTHENTICATED, (service, method, who)
                elif who == "user" and service in ADMIN_SERVICES:
                    assert found is code.PERMISSION_DENIED, (service, method)
                else:
                    refusals = (code.UNAUTHENTICATED, code.PERMISSION_DENIED, code.UNKNOWN, code.INTERNAL)
                    assert found not in refusals, (service, method, who)

    run(tmp_path, test)


def test_how_http_refuses(tmp_path):
    async def test(served):
        missing = await served.call("POST", "/v1/chat/completions", CHAT, "nobody")
        wrong = await served.call("POST", "/v1/chat/completions", CHAT, "wrong")
        assert (missing.status, wrong.status) == (401, 401)
        assert missing.headers["www-authenticate"] == wrong.headers["www-authenticate"] == 'Bearer realm="llmsrv"'
        assert (missing.error["code"], wrong.error["code"]) == ("missing_api_key", "invalid_api_key")
        for answer in (missing, wrong):
            assert set(answer.error) == {"message", "type", "param", "code"}
            assert answer.error["type"] == "invalid_request_error"
            assert KEYS["wrong"].encode() not in answer.body
        # What an intruder sends is not read, and still he gets his answer.
        large = await served.call("POST", "/v1/completions", b"x" * (4 << 20), "nobody")
        assert large.status == 401
        assert served.engine.submitted == {}

    run(tmp_path, test)


def details(error):
    """google.rpc details of a failed call, by name."""

    class Call:
        code, details = error.code, error.details

        def trailing_metadata(self):
            return error.trailing_metadata()

    unpacked = {}
    for packed in rpc_status.from_call(Call()).details:
        message = getattr(error_details_pb2, packed.TypeName().rsplit(".", 1)[1])()
        packed.Unpack(message)
        unpacked[type(message).__name__] = message
    return unpacked


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read() if hasattr(call, "read") else await call
    return caught.value


def test_how_grpc_refuses(tmp_path):
    async def test(served):
        reasons = {"nobody": "MISSING_API_KEY", "wrong": "INVALID_API_KEY"}
        for who, reason in reasons.items():
            error = await failure(served.stream(who))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert details(error)["ErrorInfo"].reason == reason
        error = await failure(served.admin.GetStats(admin_pb2.GetStatsRequest(), metadata=metadata("user")))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        info = details(error)["ErrorInfo"]
        assert (info.reason, info.domain, info.metadata) == ("ADMIN_REQUIRED", "llmsrv", {"key": "alice"})
        await served.admin.GetStats(admin_pb2.GetStatsRequest(), metadata=metadata("admin"))
        assert served.engine.submitted == {}

    run(tmp_path, test)


def test_the_keys_name_is_the_tenant_over_both_protocols(tmp_path):
    async def test(served):
        assert served.security.guard.weights == {"alice": 3.0}
        request = inference_pb2.GenerateRequest(text="hi", cache_salt="salt")
        unary = served.inference.Generate(request, metadata=metadata("user"))
        await served.submitted(1)
        stream = served.stream()
        await served.submitted(2)
        web = asyncio.ensure_future(
            served.call("POST", "/v1/completions", {"prompt": ["a", "b"], "cache_salt": "salt"})
        )
        await served.submitted(4)
        assert {each.tenant for each in served.engine.submitted.values()} == {"alice"}
        salts = [each.cache_salt for each in served.engine.submitted.values()]
        assert salts == ["alice/salt", "alice/", "alice/salt", "alice/salt"]
        for key in list(served.engine.live):
            served.engine.emit(key, b"x", finish=finish("length"), final=True)
        await unary
        assert (await web).status == 200
        while await stream.read() is not grpc.aio.EOF:
            pass

    run(tmp_path, test)


def test_the_figures_name_the_key_and_never_a_salt(tmp_path):
    async def test(served):
        body = {"prompt": "hi", "cache_salt": "the salt of alice"}
        asked = asyncio.ensure_future(served.call("POST", "/v1/completions", body))
        served.engine.emit(await served.submitted(), b"hello", finish=finish("length"), final=True)
        assert (await asked).status == 200
        answer = await served.call("GET", "/stats", who="admin", headers={})
        (model,) = answer.json["models"]
        assert [each["name"] for each in model["tenants"]] == ["alice"]
        told = await served.admin.GetStats(admin_pb2.GetStatsRequest(), metadata=metadata("admin"))
        assert [each.tenant for each in told.stats.recent.tenants] == ["alice"]

    run(tmp_path, test)


@pytest.mark.parametrize("shared", [False, True])
def test_prefixes_are_a_keys_own_unless_all_share_them(tmp_path, shared):
    async def test(served):
        for who in ("user", "admin"):
            served.stream(who)
            await served.submitted(len(served.engine.submitted) + 1)
        salts = {each.cache_salt for each in served.engine.submitted.values()}
        assert salts == ({""} if shared else {"alice/", "admin/"})

    run(tmp_path, test, share_prefixes=shared)


def test_limits_hold_over_both_protocols_together(tmp_path):
    async def test(served):
        streams = [served.stream()]
        await served.submitted(1)
        web = asyncio.ensure_future(served.call("POST", "/v1/completions", {"prompt": "a"}))
        await served.submitted(2)
        error = await failure(served.stream())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = details(error)
        assert found["ErrorInfo"].reason == "TOO_MANY_STREAMS"
        assert found["ErrorInfo"].metadata == {"key": "alice", "limit": "2"}
        assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1000
        answer = await served.call("POST", "/v1/chat/completions", CHAT)
        assert (answer.status, answer.error["code"], answer.error["type"]) == (
            429,
            "too_many_streams",
            "rate_limit_error",
        )
        assert answer.headers["retry-after"] == "1"
        for each in streams:
            each.cancel()
        served.engine.emit(2, b"x", finish=finish("length"), final=True)
        assert (await web).status == 200
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        answer = await served.call("GET", "/v1/models")  # the fifth
        assert answer.status == 200
        answer = await served.call("GET", "/v1/models")
        assert (answer.status, answer.error["code"]) == (429, "request_rate_exceeded")
        assert int(answer.headers["retry-after"]) > 1
        error = await failure(served.stream())
        assert details(error)["ErrorInfo"].reason == "REQUEST_RATE_EXCEEDED"
        assert (await served.call("GET", "/v1/models", who="admin")).status == 200
        assert served.service.outcomes == {"CANCELLED": 1, "RESOURCE_EXHAUSTED": 2, "length": 1}

    run(tmp_path, test, keys=FILE + "requests_per_minute = 5\nmax_concurrent_streams = 2\n")


def test_limits_hold_in_batches_and_sessions(tmp_path):
    async def test(served):
        def request(name):
            return inference_pb2.GenerateRequest(text="hi", request_id=name)

        session = served.inference.GenerateSession(metadata=metadata("user"))
        for name in ("a", "b", "c"):
            start = inference_pb2.GenerateStreamRequest(request=request(name))
            await session.write(inference_pb2.GenerateSessionRequest(start=start))
        (item,) = (await session.read()).items
        assert (item.request_id, item.error.code) == ("c", grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert {each.tenant for each in served.engine.submitted.values()} == {"alice"}
        session.cancel()
        while served.service.in_flight:
            await asyncio.sleep(0.005)

        items = inference_pb2.BatchGenerateRequest(requests=[request(f"r{i}") for i in range(6)])
        batch = served.inference.BatchGenerate(items, metadata=metadata("user"))
        answers = []
        while len(answers) < 6:  # it keeps within what its key may
            await served.submitted(3 + len(answers))
            served.engine.emit(min(served.engine.live), b"x", finish=finish("length"), final=True)
            answers.append(await batch.read())
            assert len(served.engine.live) <= 2
        assert all(each.HasField("response") for each in answers)

    run(tmp_path, test, keys=FILE + "max_concurrent_streams = 2\n")


def test_tokens_count_prompts_and_answers(tmp_path):
    async def test(served):
        ask = asyncio.ensure_future(served.call("POST", "/v1/completions", {"prompt": "a" * 20}))
        key = await served.submitted(1)
        served.engine.emit(key, b"b" * 30, finish=finish("length"), final=True)
        assert (await ask).json["usage"]["total_tokens"] == 50
        answer = await served.call("POST", "/v1/completions", {"prompt": "a"})
        assert (answer.status, answer.error["code"]) == (429, "token_rate_exceeded")
        assert 0 < int(answer.headers["retry-after"]) <= 32  # 21 of 40 a minute are missing
        assert served.service.in_flight == 0

    run(tmp_path, test, keys=FILE + "tokens_per_minute = 40\n")


def test_each_prompt_of_a_list_is_a_request(tmp_path):
    async def test(served):
        answer = await served.call("POST", "/v1/completions", {"prompt": ["a", "b", "c"]})
        assert (answer.status, answer.error["code"]) == (429, "request_rate_exceeded")
        assert served.engine.live == {}
        while served.service.in_flight:
            await asyncio.sleep(0.01)
        assert served.security.guard.check(served.security.guard.path_access("/health"), []) is None

    run(tmp_path, test, keys=FILE + "requests_per_minute = 2\nmax_concurrent_streams = 9\n")


def test_metrics_may_be_open(tmp_path):
    async def test(served):
        assert (await served.call("GET", "/metrics", who="nobody")).status == 200
        assert (await served.call("GET", "/version", who="nobody")).status == 401

    run(tmp_path, test, open_metrics=True)


def test_cors(tmp_path):
    async def test(served):
        def headers(origin):
            return {**JSON, "Origin": origin}

        ask = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        asked = await served.call(
            "OPTIONS", "/v1/chat/completions", None, "nobody", {**ask, **headers("https://a.example")}
        )
        assert asked.status == 200
        assert asked.headers["access-control-allow-origin"] == "https://a.example"
        assert "authorization" in asked.headers["access-control-allow-headers"]
        other = await served.call(
            "OPTIONS", "/v1/chat/completions", None, "nobody", {**ask, **headers("https://b.example")}
        )
        assert other.status == 400
        for who, status in (("user", 200), ("nobody", 401)):
            answer = await served.call("GET", "/v1/models", None, who, headers("https://a.example"))
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            foreign = await served.call("GET", "/v1/models", None, who, headers("https://b.example"))
            assert foreign.headers["access-control-allow-origin"] is None

    run(tmp_path, test, cors_origins="https://a.example, http://localhost:3000")


def test_without_origins_no_page_may_ask(tmp_path):
    async def test(served):
        headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        asked = await served.call("OPTIONS", "/v1/chat/completions", None, "nobody", headers)
        assert asked.status == 401
        assert asked.headers["access-control-allow-origin"] is None

    run(tmp_path, test)


SECRET = "a secret of the innards"


def raising(*_, **__):
    raise KeyError(SECRET)


def test_no_route_shows_what_went_wrong_inside(tmp_path, monkeypatch):
    """Every route, with everything behind it broken."""

    async def test(served):
        monkeypatch.setattr(Listener, "service", property(raising))
        monkeypatch.setattr(Listener, "state", property(raising))
        failed = []
        for method, path in ROUTES:
            body = b"{}" if method == "POST" else None
            answer = await served.call(method, path.replace("{name:path}", "fake"), body)
            assert SECRET.encode() not in answer.body
            assert b"Traceback" not in answer.body
            if answer.status == 500 and method != "HEAD":
                assert answer.error["code"] == "internal"
                failed.append(path)
        assert {"/v1/chat/completions", "/v1/models", "/health", "/metrics"} <= set(failed)

    run(tmp_path, test)


def test_no_rpc_shows_what_went_wrong_inside(tmp_path, monkeypatch):
    async def test(served):
        monkeypatch.setattr(Listener, "service", property(raising))
        monkeypatch.setattr(Listener, "state", property(raising))
        failed = []
        for service, method in RPCS:
            if not service.startswith("llmsrv."):
                continue
            code, shown = await asyncio.to_thread(call_empty, served.grpc_port, service, method, "admin")
            for each in (SECRET, "Traceback", "KeyError"):
                assert each not in shown, (service, method)
            if code is grpc.StatusCode.INTERNAL:
                failed.append(method)
        assert {"Generate", "GenerateStream", "Tokenize", "ListModels", "GetStats", "WatchStats"} <= set(failed)

    run(tmp_path, test)


def test_a_bug_before_the_routes_shows_nothing(tmp_path, monkeypatch):
    async def test(served):
        monkeypatch.setattr(served.security.guard, "check", raising)
        answer = await served.call("GET", "/v1/models")
        assert (answer.status, answer.error["code"]) == (500, "internal")
        error = await failure(served.stream())
        assert (error.code(), details(error)["ErrorInfo"].reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert SECRET not in error.details()
        assert served.engine.submitted == {}

    run(tmp_path, test)


def test_a_body_that_is_too_large_and_a_header_that_is_too_large(tmp_path):
    async def test(served):
        answer = await asyncio.to_thread(
            post, served.port, "/v1/completions", b"{" * (9 << 20), {**JSON, **header("user")}
        )
        assert answer.status == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (HEADER_BYTES_MAX + 1000))  # and no end
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        error = await failure(served.stream(text="x" * (65 << 20)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert served.engine.submitted == {}

    run(tmp_path, test)
