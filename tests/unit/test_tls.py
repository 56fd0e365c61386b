"""TLS and mTLS on both ports with real certificates, and their replacement while connections stand."""

import asyncio
import http.client
import ssl
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
import trustme
from fakes import FakeEngine, fake_model, finish
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmsrv.config import ServeConfig
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.serve.security import Security
from llmsrv.serve.tls import Tls
from llmsrv.service import GenerationService
from llmsrv.v1 import inference_pb2, inference_pb2_grpc


class Files:
    """A server's certificate, its key and the authority of its clients, as files that a test overwrites."""

    def __init__(self, path, mutual):
        self.cert, self.key, self.client_ca = (path / name for name in ("cert.pem", "key.pem", "ca.pem"))
        self.mutual = mutual
        self.renew()

    def renew(self):
        """New authorities, new certificate."""
        self.authority, self.client_authority = trustme.CA(), trustme.CA()
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.client_ca.write_bytes(self.client_authority.cert_pem.bytes())

    @property
    def options(self):
        client_ca = str(self.client_ca) if self.mutual else None
        return {"tls_cert": str(self.cert), "tls_key": str(self.key), "tls_client_ca": client_ca}

    def client(self, identified=True):
        """What a client knows: whom it trusts, and with mTLS who it is."""
        own = self.client_authority.issue_cert("client@example.com") if self.mutual and identified else None
        return SimpleNamespace(
            trusted=self.authority.cert_pem.bytes(),
            key=own.private_key_pem.bytes() if own else None,
            chain=b"".join(each.bytes() for each in own.cert_chain_pems) if own else None,
            own=own,
        )


class Served:
    """Both servers behind TLS, over a scripted engine."""

    def __init__(self, files):
        config = ServeConfig(model="fake", port=0, http_port=0, **files.options)
        self.engine = FakeEngine()
        self.security = Security(config, {})
        self.grpc, self.http = GrpcServer(config, self.security), HttpServer(config, self.security)

    async def __aenter__(self):
        self.grpc_port, self.http_port = await self.grpc.start(), await self.http.start()
        self.service = GenerationService(fake_model(self.engine))
        await self.grpc.serve(self.service)
        await self.http.serve(self.service)
        return self

    async def __aexit__(self, *error):
        await self.http.stop()
        await self.grpc.stop(0)
        await self.service.close()

    def channel(self, client, host="localhost"):
        credentials = grpc.ssl_channel_credentials(client.trusted, client.key, client.chain)
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        return grpc.aio.secure_channel(f"{host}:{self.grpc_port}", credentials, options)

    async def grpc_works(self, client, host="localhost"):
        async with self.channel(client, host) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
            code = await check.code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
            return code is grpc.StatusCode.OK

    async def http_works(self, client, host="localhost"):
        return await asyncio.to_thread(self._get, client, host)

    def _get(self, client, host):
        connection = https(self.http_port, client, host)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (ssl.SSLError, ConnectionError):  # TLS 1.3 tells a client late that it is refused
            return False
        finally:
            connection.close()

    async def both_work(self, client, host="localhost"):
        return await self.grpc_works(client, host), await self.http_works(client, host)


def https(port, client, host="localhost"):
    context = ssl.create_default_context(cadata=client.trusted.decode())
    if client.own is not None:
        client.own.configure_cert(context)
    return http.client.HTTPSConnection(host, port, timeout=30, context=context)


def run(path, test, mutual=False):
    async def body():
        files = Files(path, mutual)
        async with Served(files) as served:
            await asyncio.wait_for(test(served, files), 60)

    asyncio.run(body())


@pytest.mark.parametrize("mutual", [False, True])
def test_both_ports_speak_tls_and_nothing_else(tmp_path, mutual):
    async def test(served, files):
        client = files.client()
        for host in ("localhost", "127.0.0.1"):  # with a name of the server, and without one
            assert await served.both_work(client, host) == (True, True)
        async with grpc.aio.insecure_channel(f"localhost:{served.grpc_port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()

    run(tmp_path, test, mutual)


def test_mutual_tls_admits_only_clients_of_its_authority(tmp_path):
    async def test(served, files):
        assert await served.both_work(files.client()) == (True, True)
        assert await served.both_work(files.client(identified=False)) == (False, False)
        stranger = files.client()
        stranger.own = trustme.CA().issue_cert("client@example.com")
        stranger.key = stranger.own.private_key_pem.bytes()
        stranger.chain = b"".join(each.bytes() for each in stranger.own.cert_chain_pems)
        assert await served.both_work(stranger) == (False, False)

    run(tmp_path, test, mutual=True)


@pytest.mark.parametrize("mutual", [False, True])
def test_a_reload_changes_the_certificate_and_cuts_off_nobody(tmp_path, mutual):
    async def test(served, files):
        before = files.client()
        async with served.channel(before) as channel:
            request = inference_pb2.GenerateStreamRequest(request=inference_pb2.GenerateRequest(text="hi"))
            stream = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(request)
            kept = https(served.http_port, before)
            await asyncio.to_thread(kept.connect)
            while not served.engine.submitted:
                await asyncio.sleep(0.005)
            served.engine.emit(1, b"a")
            assert (await stream.read()).deltas[0].text == "a"

            files.renew()
            assert await served.both_work(before) == (True, True)  # nothing was read yet
            assert served.security.reload() == ["the certificates were read again"]
            assert await served.both_work(files.client()) == (True, True)
            assert await served.both_work(before) == (False, False)

            served.engine.emit(1, b"b", finish=finish("length"), final=True)
            text = ""
            while (message := await stream.read()) is not grpc.aio.EOF:
                text += "".join(delta.text for delta in message.deltas)
            assert text == "b"
            await asyncio.to_thread(kept.request, "GET", "/health")
            assert (await asyncio.to_thread(kept.getresponse)).status == 200
            kept.close()

    run(tmp_path, test, mutual)


def test_a_new_authority_shuts_out_the_clients_of_the_old_one(tmp_path):
    """With the server's certificate as it was: only the authority decides."""

    async def test(served, files):
        before = files.client()
        files.client_authority = trustme.CA()
        files.client_ca.write_bytes(files.client_authority.cert_pem.bytes())
        served.security.reload()
        assert await served.both_work(files.client()) == (True, True)
        assert await served.both_work(before) == (False, False)

    run(tmp_path, test, mutual=True)


def test_what_cannot_be_read_changes_nothing_and_is_said(tmp_path):
    async def test(served, files):
        client = files.client()
        key, cert, authority = files.key.read_bytes(), files.cert.read_bytes(), files.client_ca.read_bytes()
        foreign = trustme.CA().issue_cert("localhost").private_key_pem.bytes()
        for file, content, says in (
            (files.cert, b"", "tls_cert, tls_key: .* cannot be used: "),
            (files.cert, b"nonsense", "tls_cert, tls_key: .* cannot be used: "),
            (files.key, foreign, "key values mismatch"),
            (files.key, None, "tls_key: cannot read .*: No such file"),
            (files.client_ca, b"nonsense", "tls_client_ca: .* cannot be used: "),
        ):
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
            (line,) = served.security.reload()
            assert line.startswith("the certificates stay as they were: ")
            with pytest.raises(ValueError, match=says):
                Tls(ServeConfig(model="fake", **files.options))
            assert await served.both_work(client) == (True, True)
            files.key.write_bytes(key)
            files.cert.write_bytes(cert)
            files.client_ca.write_bytes(authority)
        assert served.security.reload() == ["the certificates were read again"]

    run(tmp_path, test, mutual=True)


def test_an_encrypted_key_is_refused_without_a_question(tmp_path):
    files = Files(tmp_path, mutual=False)
    files.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ValueError, match=r"tls_cert, tls_key: .* cannot be used"):
        Tls(ServeConfig(model="fake", **files.options))


@pytest.mark.parametrize(
    "options",
    [
        {"tls_cert": "a"},
        {"tls_key": "a"},
        {"tls_client_ca": "a"},
        {"cors_origins": "a.example"},
        {"cors_origins": "https://a.example/"},
        {"cors_origins": "https://a.example,,"},
    ],
)
def test_options_that_make_no_sense(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ServeConfig(model="fake", **options)


@pytest.mark.parametrize(
    ("host", "options", "environment", "says"),
    [
        ("127.0.0.1", {}, {}, []),
        ("127.8.8.8", {}, {}, []),
        ("localhost", {}, {}, []),
        ("[::1]", {}, {}, []),
        ("0.0.0.0", {}, {}, ["encryption", "authentication"]),
        ("[::]", {}, {}, ["encryption", "authentication"]),
        ("192.168.1.2", {}, {"LLMSRV_API_KEY": "alice-key-0123456789"}, ["encryption"]),
        ("example.com", {"tls": True}, {}, ["authentication"]),
        ("0.0.0.0", {"tls": True}, {"LLMSRV_API_KEY": "alice-key-0123456789"}, []),
        ("0.0.0.0", {"mutual": True}, {}, []),
        ("0.0.0.0", {"insecure_bind": True}, {}, []),
    ],
)
def test_what_is_said_of_an_address_that_others_reach(tmp_path, caplog, host, options, environment, says):
    options = dict(options)
    if options.pop("tls", False) or "mutual" in options:
        options.update(Files(tmp_path, mutual=options.pop("mutual", False)).options)
    Security(ServeConfig(model="fake", host=host, **options), environment).warn_of_exposure(host, 1234)
    warned = " ".join(record.getMessage() for record in caplog.records)
    assert bool(warned) == bool(says)
    for word in ("encryption", "authentication"):
        assert (word in warned) == (word in says)
    assert not says or f"{host}:1234" in warned
