"""The administrators' listener beside the public one: which services are where, and that both are guarded alike."""

import asyncio

import grpc
import grpc.aio
import pytest
import trustme
from fakes import FakeEngine, fake_model
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from llmsrv.config import ServeConfig
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.serve.security import Security
from llmsrv.service import GenerationService
from llmsrv.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc

TOKEN = "admin-token-0123456789"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
OF_USERS = {"llmsrv.v1.InferenceService", "llmsrv.v1.ModelService", "grpc.health.v1.Health", REFLECTION}
OF_ADMINS = {"llmsrv.v1.AdminService", "llmsrv.v1.ModelService", "grpc.health.v1.Health", REFLECTION}
CODE = grpc.StatusCode


def run(test, environment=None, credentials=None, **options):
    """Runs test(public, admin): channels to both listeners of a server with a scripted engine."""

    async def body():
        config = ServeConfig(model="fake", port=0, **options)
        server = GrpcServer(config, Security(config, environment or {}))
        await server.start()
        service = GenerationService(fake_model(FakeEngine()))
        await server.serve(service)
        addresses = [server.address, server.admin_address or server.address]
        try:
            async with channel(addresses[0], credentials) as public, channel(addresses[1], credentials) as admin:
                await asyncio.wait_for(test(public, admin), 60)
        finally:
            await server.stop(0)
            await service.close()

    asyncio.run(body())


def channel(address, credentials):
    if credentials is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, credentials)


async def code_of(call):
    return await call.code()


def info(to, **call):
    return admin_pb2_grpc.AdminServiceStub(to).GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=30, **call)


def tokenize(to, **call):
    return inference_pb2_grpc.InferenceServiceStub(to).Tokenize(
        inference_pb2.TokenizeRequest(text="a"), timeout=30, **call
    )


def models(to):
    return model_pb2_grpc.ModelServiceStub(to).ListModels(model_pb2.ListModelsRequest(), timeout=30)


def health(to):
    return health_pb2_grpc.HealthStub(to).Check(health_pb2.HealthCheckRequest(), timeout=30)


def servers(to):
    return channelz_pb2_grpc.ChannelzStub(to).GetServers(channelz_pb2.GetServersRequest(), timeout=30)


async def reflected(to):
    """The services that a listener tells of."""
    asked = reflection_pb2_grpc.ServerReflectionStub(to).ServerReflectionInfo(timeout=30)
    await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await asked.done_writing()
    answer = await asked.read()
    return {each.name for each in answer.list_services_response.service}


def test_everything_is_on_one_port_unless_it_is_told():
    async def test(public, _):
        assert [await code_of(call(public)) for call in (info, tokenize, models, health, servers)] == [CODE.OK] * 5
        assert await reflected(public) == OF_USERS | OF_ADMINS | {"grpc.channelz.v1.Channelz"}

    run(test, channelz=True)


@pytest.mark.parametrize("local", [False, True])
def test_administrators_have_a_listener_of_their_own(local, tmp_path):
    async def test(public, admin):
        calls = (info, servers, tokenize, models, health)
        assert [await code_of(call(public)) for call in calls] == [CODE.UNIMPLEMENTED] * 2 + [CODE.OK] * 3
        assert [await code_of(call(admin)) for call in calls] == [CODE.OK] * 2 + [CODE.UNIMPLEMENTED] + [CODE.OK] * 2
        assert await reflected(public) == OF_USERS
        assert await reflected(admin) == OF_ADMINS | {"grpc.channelz.v1.Channelz"}

    run(test, channelz=True, **({"admin_host": f"unix:{tmp_path}/admin.sock"} if local else {"admin_port": 0}))


def test_the_public_port_need_not_tell_what_it_has():
    async def test(public, admin):
        assert await code_of(public.unary_unary(f"/{REFLECTION}/ServerReflectionInfo")(b"")) is CODE.UNIMPLEMENTED
        assert await code_of(tokenize(public)) is CODE.OK
        assert await reflected(admin) == OF_ADMINS

    run(test, admin_port=0, reflection=False)


def test_the_token_guards_both():
    async def test(public, admin):
        known = [("authorization", f"Bearer {TOKEN}")]
        assert await code_of(info(admin)) is CODE.UNAUTHENTICATED
        assert await code_of(info(admin, metadata=known)) is CODE.OK
        assert await code_of(servers(admin)) is CODE.UNAUTHENTICATED
        assert await code_of(info(public)) is CODE.UNAUTHENTICATED  # before anybody says that it is not here
        assert await code_of(info(public, metadata=known)) is CODE.UNIMPLEMENTED
        assert await code_of(health(admin)) is CODE.OK

    run(test, {"LLMSRV_ADMIN_TOKEN": TOKEN}, admin_port=0, channelz=True)


def test_both_are_encrypted(tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())

    async def test(public, admin):
        assert await code_of(info(admin)) is CODE.OK
        assert await code_of(tokenize(public)) is CODE.OK

    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    options = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    run(test, credentials=credentials, admin_port=0, **options)

    async def plain(_, admin):
        assert await code_of(info(admin)) is CODE.UNAVAILABLE

    run(plain, admin_port=0, **options)


def test_an_admin_listener_that_others_reach_is_warned_of(caplog):
    async def test(public, admin):
        assert await code_of(info(admin)) is CODE.OK

    run(test, admin_host="0.0.0.0", admin_port=0)
    (warning,) = [each.getMessage() for each in caplog.records if "OPEN TO THE NETWORK" in each.getMessage()]
    assert "encryption" in warning
    assert "--admin-token-file" in warning


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"admin_host": "0.0.0.0"}, "admin_host: needs admin_port"),
        ({"admin_port": 70000}, "admin_port: must be in"),
        ({"admin_host": "unix:/a", "admin_port": 1}, "admin_port: a Unix socket"),
        ({"http_host": "unix:/a", "http_port": 1}, "http_port: a Unix socket"),
        ({"http_host": "unix:"}, "http_host: unix: needs a path"),
        ({"host": "unix:/a", "admin_host": "unix:/a"}, "admin_host: another listener has the socket"),
    ],
)
def test_addresses_that_contradict_each_other(options, says):
    with pytest.raises(ValueError, match=says):
        ServeConfig(model="m", **options)
