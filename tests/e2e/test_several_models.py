"""One daemon with two real models: each request gets the model that it names, and each model what is its own."""

import re
import signal
import subprocess
import sys
import time

import grpc
import metrics_text
import openai
import pytest
from daemons import START_S, Daemon, merged, request, stream, without_what_differs
from grpc_health.v1 import health_pb2
from http_client import get, post

from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2

SMALL, GEMMA = "smol", "google/gemma"
FLAGS = (
    *("--max-model-len", "1024", "--kv-cache-memory", "64MiB", "--swap-space", "16MiB"),
    *("--max-num-seqs", "8", "--max-num-batched-tokens", "256"),
)


@pytest.fixture(scope="module")
def both(smollm2_path, gemma3_path):
    """In the strict mode, which has to allow both."""
    models = ("--model", f"{SMALL}={smollm2_path}", "--model", f"{GEMMA}={gemma3_path}")
    daemon = Daemon(*FLAGS, *models, "--permission-mode", "strict", "--http-port", "0")
    try:
        yield daemon.wait_until_serving()
    finally:
        daemon.stop()


def stats(daemon, model):
    return daemon.admin.GetStats(admin_pb2.GetStatsRequest(model=model)).stats


def test_the_log_has_one_plan_and_both_names(both):
    both.wait_for(rf"^{SMALL}: memory plan:$")
    both.wait_for(rf"^{GEMMA}: memory plan:$")
    both.wait_for(r"^memory plan of 2 models:$")
    sizes = [float(both.wait_for(rf"^  {name} +([\d.]+) MiB")[1]) for name in (SMALL, GEMMA, "process")]
    totals = [float(found[1]) for line in both.lines if (found := re.match(r"^  total +([\d.]+) MiB", line))]
    assert totals[-1] == pytest.approx(sum(sizes), abs=0.2)
    both.wait_for(rf"^serving {SMALL}, {GEMMA} on ")


def test_both_are_listed(both):
    listed = both.models.ListModels(model_pb2.ListModelsRequest()).models
    assert [(each.name, each.architecture) for each in listed] == [
        (SMALL, "LlamaForCausalLM"),
        (GEMMA, "Gemma3ForCausalLM"),
    ]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{both.http_port}/v1", api_key="none", max_retries=0) as client:
        assert [each.id for each in client.models.list().data] == [SMALL, GEMMA]
        assert client.models.retrieve(GEMMA).id == GEMMA
        answer = client.completions.create(model=GEMMA, prompt="The capital of France is", max_tokens=4, temperature=0)
        same = both.inference.Generate(request("The capital of France is", model=GEMMA, max_tokens=4))
        assert (answer.model, answer.choices[0].text) == (GEMMA, same.completions[0].text)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nobody", prompt="x")


def test_an_empty_name_is_the_first(both):
    assert both.inference.Generate(request()).model == SMALL
    assert post(both.http_port, "/v1/completions", {"prompt": "x", "max_tokens": 1}).json["model"] == SMALL


def test_an_unknown_name_is_refused(both):
    with pytest.raises(grpc.RpcError) as error:
        both.inference.Generate(request(model="nobody"))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert repr(SMALL) in error.value.details()
    assert repr(GEMMA) in error.value.details()
    assert post(both.http_port, "/v1/completions", {"model": "nobody", "prompt": "x"}).status == 404


def test_both_at_once_give_what_each_gives_alone(both, daemon):
    """Promise P3. The one with a daemon of its own is held against that one."""
    sampled = {
        "sampling": {"temperature": 1.0, "seed": 7},
        "greedy": False,
        "max_tokens": 24,
        "output": {"token_ids": True},
    }
    alone = daemon.inference.Generate(request(**sampled))
    gemma_alone = both.inference.Generate(request(**sampled, model=GEMMA))
    calls = [(name, stream(both, request(**sampled, model=name))) for name in (SMALL, GEMMA) * 3]
    for name, call in calls:
        found = without_what_differs(merged(call))
        assert found.model == name
        assert found.completions == (alone if name == SMALL else gemma_alone).completions
    assert alone.completions[0].token_ids != gemma_alone.completions[0].token_ids


def test_a_busy_one_leaves_turns_to_the_other(both):
    """An answer comes from the one while the other has far more to do than that."""
    busy = [stream(both, request(model=GEMMA, max_tokens=900)) for _ in range(8)]
    assert all(next(each).HasField("start") for each in busy)
    answer = both.inference.Generate(request(model=SMALL, max_tokens=4), timeout=START_S)
    assert answer.usage.completion_tokens == 4
    assert stats(both, GEMMA).running > 0
    for each in busy:
        each.cancel()
    end = time.monotonic() + START_S
    while stats(both, GEMMA).running > 0:  # the next test counts tokens
        assert time.monotonic() < end
        time.sleep(0.01)


def test_statistics_are_of_each_model(both):
    before = {name: stats(both, name) for name in (SMALL, GEMMA)}
    both.inference.Generate(request(model=GEMMA, max_tokens=5))
    after = {name: stats(both, name) for name in (SMALL, GEMMA)}
    assert after[GEMMA].generation_tokens - before[GEMMA].generation_tokens == 5
    assert after[GEMMA].requests["length"] == before[GEMMA].requests["length"] + 1
    assert after[SMALL].generation_tokens == before[SMALL].generation_tokens
    shown = {each["name"]: each for each in get(both.http_port, "/stats").json["models"]}
    assert shown[GEMMA]["tokens"]["generation"] == after[GEMMA].generation_tokens
    _, samples = metrics_text.read(get(both.http_port, "/metrics").body.decode())["llmsrv:generation_tokens_total"]
    assert {dict(labels)["model_name"]: count for (_, labels), count in samples.items()} == {
        name: each.generation_tokens for name, each in after.items()
    }


def test_the_log_names_the_model_of_each_request(both):
    both.inference.Generate(request(model=GEMMA, request_id="who-was-it", max_tokens=1))
    assert f"model={GEMMA}" in both.wait_for(r".*request_id=who-was-it.*")[0]


def test_top_shows_both(both):
    command = [sys.executable, "-m", "llmsrv.cli", "top", "--once", "--address", both.address, "--model", GEMMA]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=True).stdout
    assert "Models, last 10 s" in shown
    assert SMALL in shown
    assert GEMMA in shown


def test_tokens_are_those_of_the_model(both):
    ids = {
        name: list(both.inference.Tokenize(inference_pb2.TokenizeRequest(model=name, text="Hello")).token_ids)
        for name in (SMALL, GEMMA)
    }
    assert ids[SMALL] != ids[GEMMA]
    for name in (SMALL, GEMMA):
        body = {"model": name, "prompt": "Hello"}
        assert post(both.http_port, "/tokenize", body).json["tokens"] == ids[name]


def test_a_drain_and_its_end_are_of_both(both):
    running = [stream(both, request(model=name, max_tokens=900, sampling={"n": 4})) for name in (SMALL, GEMMA)]
    for each in running:
        next(each)
    drain = both.admin.Drain(admin_pb2.DrainRequest())
    assert next(drain).in_flight == 2
    assert both.health_of() == health_pb2.HealthCheckResponse.NOT_SERVING
    for name in (SMALL, GEMMA):
        with pytest.raises(grpc.RpcError) as error:
            both.inference.Generate(request(model=name))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    for each in running:
        each.cancel()
    assert [each.state for each in drain][-1] == admin_pb2.SERVER_STATE_DRAINED
    both.admin.Resume(admin_pb2.ResumeRequest())
    assert both.health_of() == health_pb2.HealthCheckResponse.SERVING
    for name in (SMALL, GEMMA):
        assert both.inference.Generate(request(model=name)).model == name


def test_it_ends_when_both_have_ended(both):
    running = {name: stream(both, request(model=name, max_tokens=30)) for name in (SMALL, GEMMA)}
    for each in running.values():
        next(each)
    both.signal(signal.SIGTERM)
    for each in running.values():
        assert list(each)[-1].end.usage.completion_tokens == 30
    assert both.wait() == 0


def test_a_model_that_cannot_be_loaded_is_named(smollm2_path, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing")
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--model", f"good={smollm2_path}"]
    ended = subprocess.run(
        [*command, "--model", f"bad={broken}"], capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode == 1
    assert re.search(r"error: model bad: .*broken\.gguf", ended.stderr)


def test_the_plan_of_both_before_any_is_loaded(smollm2_path, gemma3_path):
    command = [sys.executable, "-m", "llmsrv.cli", "plan", *FLAGS]
    models = ("--model", f"a={smollm2_path}", "--model", f"b={gemma3_path}")
    planned = subprocess.run([*command, *models], capture_output=True, text=True, timeout=START_S, check=True).stdout
    assert planned.count("sequences that fit at once") == 2
    assert "memory plan of 2 models:" in planned
    too_much = [*command[: -len(FLAGS)], *models, "--kv-cache-memory", "100TiB"]
    refused = subprocess.run(too_much, capture_output=True, text=True, timeout=START_S, check=False)
    assert refused.returncode == 1
    assert "not enough memory: the plans of 2 models need" in refused.stderr
