"""What the gRPC listener is told by flags, and an administrator's drain: daemons of their own."""

import socket
import stat
import subprocess
import sys
import time

import grpc
import pytest
from daemons import Daemon, details, merged, request, stream
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from llmsrv.v1 import admin_pb2, inference_pb2, inference_pb2_grpc, types_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def own_daemon(smollm2_path):
    daemons = []

    def start(*flags):
        flags = ("--model", str(smollm2_path), "--max-model-len", "1024", "--kv-cache-memory", "64MiB", *flags)
        daemons.append(Daemon(*flags).wait_until_serving())
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


def failing(*flags):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_drain_and_resume_with_a_watcher_then_sigterm(own_daemon):
    daemon = own_daemon()
    watch = daemon.health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == SERVING
    running = stream(daemon, request(max_tokens=900))
    first = next(running)
    draining = daemon.admin.Drain(admin_pb2.DrainRequest())
    progress = next(draining)
    assert (progress.state, progress.in_flight) == (admin_pb2.SERVER_STATE_DRAINING, 1)
    assert next(watch).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        daemon.inference.Generate(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details(caught.value)["RetryInfo"].retry_delay.seconds == 1
    assert merged([first, *running]).usage.completion_tokens == 900
    assert [(each.state, each.in_flight) for each in draining][-1] == (admin_pb2.SERVER_STATE_DRAINED, 0)
    assert daemon.admin.Resume(admin_pb2.ResumeRequest()).state == admin_pb2.SERVER_STATE_SERVING
    assert next(watch).status == SERVING
    assert daemon.inference.Generate(request()).usage.completion_tokens == 8

    list(daemon.admin.Drain(admin_pb2.DrainRequest()))  # and once more, for the end
    assert next(watch).status == NOT_SERVING
    began = time.monotonic()
    daemon.signal()
    assert daemon.wait() == 0
    assert time.monotonic() - began < 20  # the watch does not hold it up
    assert "Traceback" not in "\n".join(daemon.lines)


def test_a_drain_with_a_limit_aborts(own_daemon):
    daemon = own_daemon()
    running = stream(daemon, request(max_tokens=900))
    first = next(running)
    limited = admin_pb2.DrainRequest()
    limited.timeout.FromMilliseconds(100)
    assert list(daemon.admin.Drain(limited))[-1].state == admin_pb2.SERVER_STATE_DRAINED
    answer = merged([first, *running])
    assert answer.completions[0].finish.reason == types_pb2.FINISH_REASON_ABORTED


def test_a_unix_socket(own_daemon, tmp_path):
    path = tmp_path / "llmsrv.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()  # as a daemon that was killed leaves it
    daemon = own_daemon("--host", f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert stub.Generate(request()).usage.completion_tokens == 8
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == SERVING
    second = failing("--model", "nowhere.gguf", "--host", f"unix:{path}")
    assert second.returncode == 1
    assert "another process listens" in second.stderr
    with grpc.insecure_channel(f"unix:{path}") as channel:  # which took nothing away
        assert inference_pb2_grpc.InferenceServiceStub(channel).Generate(request()).usage.completion_tokens == 8
    daemon.signal()
    assert daemon.wait() == 0
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "precious"
    path.write_text("text")
    failed = failing("--model", "nowhere.gguf", "--host", f"unix:{path}")
    assert failed.returncode == 1
    assert "is no socket" in failed.stderr
    assert path.read_text() == "text"


def test_channelz_is_there_when_it_is_asked_for(own_daemon, daemon):
    asked = own_daemon("--channelz")
    servers = channelz_pb2_grpc.ChannelzStub(asked.channel).GetServers(channelz_pb2.GetServersRequest()).server
    assert sum(each.data.calls_started for each in servers) > 0
    assert "grpc.channelz.v1.Channelz" in ProtoReflectionDescriptorDatabase(asked.channel).get_services()
    with pytest.raises(grpc.RpcError) as caught:
        channelz_pb2_grpc.ChannelzStub(daemon.channel).GetServers(channelz_pb2.GetServersRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_may_have_64_mib_and_no_more(own_daemon):
    """A prompt of that size is refused for its length, by us; a larger message by gRPC, unread."""
    daemon = own_daemon()
    for size, code, words in (
        (60 << 20, grpc.StatusCode.INVALID_ARGUMENT, "max_model_len"),
        (65 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    ):
        large = "x" * size
        with pytest.raises(grpc.RpcError) as caught:
            daemon.inference.Generate(inference_pb2.GenerateRequest(text=large))
        assert caught.value.code() is code
        assert words in caught.value.details()
    assert daemon.inference.Generate(request()).usage.completion_tokens == 8


def test_a_reader_that_reads_nothing_is_ended(own_daemon):
    """Its blocks are free and the others go on. The narrow windows are those of clients in other languages."""
    daemon = own_daemon("--stream-stall-timeout", "1s")
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]
    asked = request(max_tokens=900, output={"logprobs": True, "top_logprobs": 20, "token_ids": True})
    with grpc.insecure_channel(daemon.address, options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stalled = stub.GenerateStream(inference_pb2.GenerateStreamRequest(request=asked))
        daemon.wait_for("reader took nothing")
        daemon.wait_until_idle()
        with pytest.raises(grpc.RpcError) as caught:
            list(stalled)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details(caught.value)["ErrorInfo"].reason == "STREAM_STALLED"
    assert daemon.inference.Generate(request()).usage.completion_tokens == 8
