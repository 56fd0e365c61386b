"""The daemon's life: start, health, drain, errors at start, what it says about itself."""

import signal
import socket
import subprocess
import sys
import time

import grpc
import pytest
from daemons import Daemon, details, merged, request, stream
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from llmsrv.config import DEFAULT_DTYPE
from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ("", "llmsrv.v1.InferenceService", "llmsrv.v1.ModelService", "llmsrv.v1.AdminService")


def small(model, *flags):
    return Daemon("--model", str(model), "--max-model-len", "2048", "--kv-cache-memory", "64MiB", *flags)


@pytest.fixture
def own_daemon(smollm2_path):
    daemons = []

    def start(*flags):
        daemons.append(small(smollm2_path, *flags))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


def test_from_loading_to_drained(own_daemon):
    """Health and refusals in every state; what runs at SIGTERM is finished; exit 0."""
    daemon = own_daemon("--drain-timeout", "200")
    watch = daemon.health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == NOT_SERVING  # it listens before it loads
    with pytest.raises(grpc.RpcError) as caught:
        daemon.inference.Generate(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details(caught.value)["ErrorInfo"].reason == "STARTING"
    assert details(caught.value)["RetryInfo"].retry_delay.seconds == 1
    assert next(watch).status == SERVING
    assert [daemon.health_of(name) for name in SERVICES] == [SERVING] * 4

    running = [stream(daemon, request(f"Story {i}:", max_tokens=400)) for i in range(4)]
    firsts = [next(call) for call in running]
    daemon.signal()
    assert next(watch).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        daemon.inference.Generate(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details(caught.value)["ErrorInfo"].reason == "DRAINING"
    answers = [merged([first, *call]) for first, call in zip(firsts, running, strict=True)]
    assert [answer.usage.completion_tokens for answer in answers] == [400] * 4
    began = time.monotonic()
    assert daemon.wait() == 0
    assert time.monotonic() - began < 20  # the open health watch does not hold it up
    assert "Traceback" not in "\n".join(daemon.lines)


def test_what_is_not_done_by_the_drain_timeout_is_aborted(own_daemon):
    daemon = own_daemon("--drain-timeout", "0.3").wait_until_serving()
    call = stream(daemon, request(max_tokens=2000))
    first = next(call)
    daemon.signal(signal.SIGINT)
    answer = merged([first, *call])
    assert answer.usage.completion_tokens < 2000
    assert daemon.wait() == 0


def test_a_second_signal_ends_at_once(own_daemon):
    daemon = own_daemon().wait_until_serving()
    call = stream(daemon, request(max_tokens=2000))
    next(call)
    daemon.signal()
    daemon.wait_for("draining: 1 requests")
    daemon.signal()
    assert daemon.wait(5) == 128 + signal.SIGTERM
    with pytest.raises(grpc.RpcError):
        list(call)


def test_a_signal_while_loading_ends_it(own_daemon):
    daemon = own_daemon()
    daemon.signal()
    assert daemon.wait(5) == 0


def failing(*flags):
    command = [sys.executable, "-m", "llmsrv.serve.daemon", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_second_daemon_on_the_same_port_does_not_start(daemon, smollm2_path):
    result = failing("--model", str(smollm2_path), "--port", str(daemon.port))
    assert result.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{daemon.port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_taken_by_another_program(smollm2_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = failing("--model", str(smollm2_path), "--port", str(taken.getsockname()[1]))
    assert result.returncode == 1
    assert "cannot listen" in result.stderr


def test_a_model_that_is_not_there():
    result = failing("--model", "/nowhere/model.gguf", "--port", "0")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "/nowhere/model.gguf" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    result = failing("--model", str(path), "--port", "0")
    assert result.returncode == 1
    assert "broken.gguf" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_too_little_memory_says_what_would_fit(smollm2_path):
    result = failing("--model", str(smollm2_path), "--port", "0", "--kv-cache-memory", "1MiB", "--max-model-len", "512")
    assert result.returncode == 1
    assert "the largest max_model_len that fits is 32" in result.stderr


def test_an_unknown_flag_is_an_error(smollm2_path):
    result = failing("--model", str(smollm2_path), "--gpu-layers", "3")
    assert result.returncode == 2
    assert "--gpu-layers" in result.stderr


def test_health_of_unknown_services(daemon):
    with pytest.raises(grpc.RpcError) as caught:
        daemon.health_of("no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = daemon.health.Watch(health_pb2.HealthCheckRequest(service="no.such.Service"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_reflection_tells_what_is_served(daemon):
    database = ProtoReflectionDescriptorDatabase(daemon.channel)
    assert set(database.get_services()) == {
        "llmsrv.v1.InferenceService",
        "llmsrv.v1.ModelService",
        "llmsrv.v1.AdminService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    file = database.FindFileContainingSymbol("llmsrv.v1.InferenceService")
    assert file.SerializeToString() == inference_pb2.DESCRIPTOR.serialized_pb


def test_models_and_server_info(daemon):
    (model,) = daemon.models.ListModels(model_pb2.ListModelsRequest()).models
    assert model == daemon.models.GetModel(model_pb2.GetModelRequest(name="smol")).model
    assert (model.name, model.architecture, model.quantization) == ("smol", "LlamaForCausalLM", "Q4_1")
    assert model.weight_dtype == {"auto": "q4_1, q8_0", "bfloat16": "bfloat16"}[DEFAULT_DTYPE]
    assert (model.max_context_tokens, model.vocab_size, model.has_chat_template) == (1024, 49152, True)
    assert model.default_sampling.temperature == 1.0
    assert len(model.tokenizer_sha256) == 64
    info = daemon.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
    assert info.state == admin_pb2.SERVER_STATE_SERVING
    assert (info.max_running, info.kv_block_tokens, info.backend) == (16, 16, "cpu")
    assert info.kv_blocks == daemon.stats().kv_blocks_total > 0


def test_memory_is_the_printed_plan(daemon):
    daemon.inference.Generate(request("word " * 900, max_tokens=20))
    planned = float(daemon.wait_for(r"^\s+total\s+([\d.]+) MiB")[1])

    def held():
        with open(f"/proc/{daemon.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    end = time.monotonic() + 60
    while held() < 0.9 * planned:  # the KV memory comes in the background
        assert time.monotonic() < end, f"planned {planned} MiB, held {held():.1f} MiB"
        time.sleep(0.05)
    assert held() <= 1.1 * planned, f"planned {planned} MiB, held {held():.1f} MiB"


def test_importing_the_package_is_quick():
    code = "import time; t = time.perf_counter(); import llmsrv; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    ]
    assert min(times) <= 0.3
