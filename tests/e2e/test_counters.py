"""What /metrics counts is what happened, whatever the protocol, in a form that a strict parser takes."""

import json
import re
import socket
from collections import Counter

import grpc
import metrics_text
import pytest
from daemons import Daemon, request, stream
from http_client import get, post
from prometheus_client.parser import text_string_to_metric_families

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
EACH = 5


@pytest.fixture(scope="module")
def vllm_daemon(smollm2_path):
    """One that also tells vLLM's names, and runs two requests at a time."""
    flags = ("--max-model-len", "1024", "--kv-cache-memory", "64MiB", "--max-num-seqs", "2")
    daemon = Daemon("--model", str(smollm2_path), *flags, "--http-port", "0", "--metrics-vllm-names")
    yield daemon.wait_until_serving()
    daemon.stop()


def exposed(daemon):
    return get(daemon.http_port, "/metrics").body.decode()


def both(count):
    """HTTP, gRPC, HTTP ..."""
    return [i % 2 == 0 for i in range(count)]


def stops(daemon, stop):
    for over_http in both(EACH):
        if over_http:
            answer = post(daemon.http_port, "/v1/completions", {**LONG, "stop": stop})
            assert answer.json["choices"][0]["finish_reason"] == "stop"
        else:
            answer = daemon.inference.Generate(request(max_tokens=150, stopping={"stop_strings": [stop]}))
            assert answer.completions[0].finish.stop_string == stop


def lengths(daemon):
    for over_http in both(EACH):
        if over_http:
            assert post(daemon.http_port, "/v1/completions", {**LONG, "max_tokens": 8}).status == 200
        else:
            daemon.inference.Generate(request(max_tokens=8))


def aborts(daemon):
    for over_http in both(EACH):
        if over_http:
            with socket.create_connection(("127.0.0.1", daemon.http_port)) as client:
                body = json.dumps({**LONG, "max_tokens": 900, "stream": True}).encode()
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        else:
            call = stream(daemon, request(max_tokens=900), timeout=60)
            next(call)
            call.cancel()


def rejects(daemon):
    for over_http in both(EACH):
        if over_http:
            assert post(daemon.http_port, "/v1/completions", {**LONG, "temperature": -1}).status == 400
        else:
            with pytest.raises(grpc.RpcError):
                daemon.inference.Generate(request(sampling={"temperature": -1.0}))


def deadline_misses(daemon):
    """Calls have deadlines over gRPC only: while they run, and while they wait for those that run."""
    for message, timeout in ((request(max_tokens=900), 0.4), (request("word " * 300, max_tokens=700), 0.2)):
        with pytest.raises(grpc.RpcError) as caught:
            daemon.inference.Generate(message, timeout=timeout)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    calls = [stream(daemon, request(f"Story {i}:", max_tokens=900), timeout=0.3) for i in range(EACH - 2)]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def first_tokens(text):
    values = metrics_text.read(text)["llmsrv:time_to_first_token_seconds"][1]
    return sum(value for (name, _), value in values.items() if name.endswith("_count"))


def invalid_calls(text):
    """Calls that were told INVALID_ARGUMENT, by protocol."""
    samples = metrics_text.read(text)["llmsrv:call_errors_total"][1]
    named = [(dict(labels), value) for (_, labels), value in samples.items()]
    assert all(each["reason"] == "INVALID_FIELD" for each, _ in named if each["code"] == "INVALID_ARGUMENT")
    return Counter({each["protocol"]: int(value) for each, value in named if each["code"] == "INVALID_ARGUMENT"})


def test_the_counters_of_both_protocols_are_the_truth(vllm_daemon):
    daemon = vllm_daemon
    stop = daemon.inference.Generate(request(max_tokens=8)).completions[0].text[-3:]
    before = exposed(daemon)
    stops(daemon, stop)
    lengths(daemon)
    aborts(daemon)
    rejects(daemon)
    daemon.wait_until_idle(10.0)
    between = exposed(daemon)
    deadline_misses(daemon)
    daemon.wait_until_idle(10.0)
    after = exposed(daemon)
    outcomes = Counter({"length": EACH, "stop": EACH, "INVALID_ARGUMENT": EACH, "CANCELLED": EACH})
    outcomes["DEADLINE_EXCEEDED"] = EACH
    counts = [metrics_text.counted(each, "llmsrv:requests_total", "outcome") for each in (before, after)]
    assert counts[1] - counts[0] == outcomes
    told = [invalid_calls(each) for each in (before, after)]
    assert told[1] - told[0] == {"http": EACH - EACH // 2, "grpc": EACH // 2}
    ended = Counter({"stop": EACH, "length": EACH, "abort": EACH})
    for prefix in ("llmsrv", "vllm"):
        family = f"{prefix}:request_success_total"
        counts = [metrics_text.counted(each, family, "finished_reason") for each in (before, after)]
        assert counts[1] - counts[0] == ended
    assert first_tokens(between) - first_tokens(before) == 3 * EACH
    (late,) = (metrics_text.counted(after, "llmsrv:deadline_drops_total", "model_name")).values()
    assert late == EACH
    stats = daemon.stats()
    assert stats.deadline_drops == EACH
    assert {name: stats.requests[name] for name in outcomes} == {**outcomes, "length": EACH + 1}


def test_a_strict_parser_and_prometheus_own_take_it(vllm_daemon):
    text = exposed(vllm_daemon)
    families = metrics_text.read(text)
    assert {each.name.removesuffix("_total") for each in text_string_to_metric_families(text)} == {
        name.removesuffix("_total") for name in families
    }
    for name, (kind, _) in families.items():
        assert name.startswith(("llmsrv:", "vllm:"))
        if kind == "histogram" and name.endswith("_seconds"):
            bounds = metrics_text.bounds_of(text, name)
            assert bounds[0] <= 0.001
            assert sum(bound <= 0.1 for bound in bounds) >= 6
            assert bounds[-1] >= 300


# As vLLM 0.32 registers them: what its published dashboards and the gateways made for it look for.
VLLM = """
    num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total generation_tokens_total
    request_success_total prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
    time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
    e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_inference_time_seconds request_prompt_tokens request_generation_tokens request_params_n
    request_params_max_tokens prompt_tokens_cached_total
"""


def test_vllms_names_are_told_where_that_is_wanted(vllm_daemon, daemon):
    assert "vllm:" not in exposed(daemon)
    families = metrics_text.read(exposed(vllm_daemon))
    theirs = {name for name in families if name.startswith("vllm:")}
    assert theirs == {f"vllm:{name}" for name in re.findall(r"\S+", VLLM)}
    for name in theirs:
        kind, samples = families[name]
        ours_kind, ours = families[name.replace("vllm:", "llmsrv:")]
        assert kind == ours_kind
        assert all(dict(labels)["engine"] == "0" and dict(labels)["model_name"] for _, labels in samples)
        assert len(samples) == len(ours)


@pytest.mark.parametrize(
    "text",
    [
        "# HELP a b\n# TYPE a gauge\na 1",
        "a 1\n",
        "# HELP a b\n# TYPE a gauge\nb 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a b\n# TYPE a gauge\na{x=1} 1\n",
        "# HELP a b\n# TYPE a gauge\na one\n",
        "# HELP a b\n# TYPE a counter\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\n# HELP a b\n# TYPE a gauge\n",
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_strict_parser_is_strict(text):
    with pytest.raises(AssertionError):
        metrics_text.read(text)
