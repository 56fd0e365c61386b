"""A daemon with keys, limits and certificates, as an operator starts it: OpenAI's client, gRPC, SIGHUP."""

import signal
import ssl
import subprocess
import sys

import grpc
import openai
import pytest
import trustme
from daemons import Daemon, details, request
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmsrv.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

ALICE, BOB, ADMIN = "alice-key-0123456789", "bob-key-0123456789", "admin-token-0123456789"
ALICE_ENTRY = f'[[key]]\nname = "alice"\nkey = "{ALICE}"\nweight = 2\n'
BOB_ENTRY = f'[[key]]\nname = "bob"\nkey = "{BOB}"\nrequests_per_minute = 2\n'


class Files:
    def __init__(self, path):
        self.keys, self.token, self.cert, self.key = (path / name for name in ("keys", "token", "cert", "key"))
        self.keys.write_text(ALICE_ENTRY + BOB_ENTRY)
        self.token.write_text(ADMIN + "\n")
        self.renew()

    def renew(self):
        self.authority = trustme.CA()
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    @property
    def flags(self):
        return (
            *("--api-key-file", str(self.keys), "--admin-token-file", str(self.token)),
            *("--tls-cert", str(self.cert), "--tls-key", str(self.key)),
        )


@pytest.fixture(scope="module")
def secured(smollm2_path, tmp_path_factory):
    files = Files(tmp_path_factory.mktemp("secured"))
    daemon = Daemon(
        *("--model", str(smollm2_path), "--served-model-name", "smol", "--max-model-len", "512"),
        *("--kv-cache-memory", "32MiB", "--scheduling-policy", "fair", "--http-port", "0", *files.flags),
    )
    daemon.files = files
    yield daemon.wait_until_serving()
    daemon.stop()
    log = "\n".join(daemon.lines)
    assert "OPEN TO THE NETWORK" not in log
    assert "refused calls: 1 INVALID_API_KEY" in log
    assert not [secret for secret in (ALICE, BOB, ADMIN) if secret in log]


def client(daemon, key):
    trusted = ssl.create_default_context(cadata=daemon.files.authority.cert_pem.bytes().decode())
    base = f"https://localhost:{daemon.http_port}/v1"
    return openai.OpenAI(
        base_url=base, api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(verify=trusted)
    )


def channel(daemon):
    credentials = grpc.ssl_channel_credentials(daemon.files.authority.cert_pem.bytes())
    return grpc.secure_channel(f"localhost:{daemon.port}", credentials, [("grpc.use_local_subchannel_pool", 1)])


def bearer(key):
    return [("authorization", f"Bearer {key}")]


def test_openais_client_with_a_key(secured):
    with client(secured, ALICE) as alice:
        assert [each.id for each in alice.models.list()] == ["smol"]
        made = alice.completions.create(model="smol", prompt="Once", max_tokens=4)
        assert made.usage.completion_tokens == 4
    with client(secured, "wrong-key-0123456789") as nobody, pytest.raises(openai.AuthenticationError) as caught:
        nobody.models.list()
    assert caught.value.code == "invalid_api_key"


def test_openais_client_at_its_limit(secured):
    with client(secured, BOB) as bob:
        for _ in range(2):
            bob.completions.create(model="smol", prompt="Once", max_tokens=2)
        with pytest.raises(openai.RateLimitError) as caught:
            bob.completions.create(model="smol", prompt="Once", max_tokens=2)
    assert caught.value.code == "request_rate_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    with channel(secured) as made, pytest.raises(grpc.RpcError) as caught:
        inference_pb2_grpc.InferenceServiceStub(made).Generate(request(), metadata=bearer(BOB))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details(caught.value)["ErrorInfo"].reason == "REQUEST_RATE_EXCEEDED"
    assert details(caught.value)["RetryInfo"].retry_delay.ToMilliseconds() > 0


def test_the_admin_token(secured):
    with channel(secured) as made:
        admin = admin_pb2_grpc.AdminServiceStub(made)
        assert admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), metadata=bearer(ADMIN)).kv_blocks > 0
        with pytest.raises(grpc.RpcError) as caught:
            admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), metadata=bearer(ALICE))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        health_pb2_grpc.HealthStub(made).Check(health_pb2.HealthCheckRequest())  # without any


def test_nobody_sees_what_others_have_cached(secured):
    def cached(key):
        with client(secured, key) as made:
            usage = made.completions.create(model="smol", prompt=list(range(1000, 1100)), max_tokens=1).usage
            return usage.prompt_tokens_details.cached_tokens

    assert cached(ALICE) == 0
    assert cached(ALICE) > 90
    assert cached(ADMIN) == 0


def test_sighup_brings_new_keys_and_certificates_and_ends_no_connection(secured):
    files = secured.files
    with channel(secured) as before:
        stub = inference_pb2_grpc.InferenceServiceStub(before)
        message = inference_pb2.GenerateStreamRequest(request=request(max_tokens=300))
        running = stub.GenerateStream(message, metadata=bearer(ALICE))
        next(running)

        files.cert.write_text("nonsense")
        files.keys.write_text("nonsense")
        secured.signal(signal.SIGHUP)
        secured.wait_for("the keys stay as they were: api_key_file: cannot read")
        secured.wait_for("the certificates stay as they were: tls_cert, tls_key: ")
        with channel(secured) as still:
            inference_pb2_grpc.InferenceServiceStub(still).Generate(request(), metadata=bearer(ALICE))

        files.keys.write_text(BOB_ENTRY.replace(BOB, BOB[::-1]).replace("= 2", "= 1000"))
        files.renew()
        secured.signal(signal.SIGHUP)
        secured.wait_for("the keys were read again")
        secured.wait_for("the certificates were read again")
        assert list(running)[-1].HasField("end")
        # The old connection lives on, since a new one would not be trusted; the old key does not.
        stub.Generate(request(), metadata=bearer(BOB[::-1]))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(request(), metadata=bearer(ALICE))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with client(secured, BOB[::-1]) as bob:
        bob.completions.create(model="smol", prompt="Once", max_tokens=2)
    with channel(secured) as after:
        inference_pb2_grpc.InferenceServiceStub(after).Generate(request(), metadata=bearer(BOB[::-1]))
    assert secured.process.poll() is None


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-token-file", "--tls-cert", "--tls-key"])
def test_a_file_that_is_missing_ends_the_start_with_one_sentence(smollm2_path, tmp_path, flag):
    flags = list(Files(tmp_path).flags)
    flags[flags.index(flag) + 1] = str(tmp_path / "none")
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--model", str(smollm2_path), *flags]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    option = flag.removeprefix("--").replace("-", "_")
    assert line == f"error: {option}: cannot read {tmp_path}/none: No such file or directory"
