"""The daemon as curl sees it: what a person types."""

import json
import shutil
import subprocess

from http_client import events_of

CHAT = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "temperature": 0, "max_tokens": 12}
TEXT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}


def command(daemon, path, *arguments, body=None):
    program = shutil.which("curl")
    assert program, "curl is not installed"
    sent = () if body is None else ("--json", json.dumps(body))
    return [program, "-sS", "-N", f"http://127.0.0.1:{daemon.http_port}{path}", *sent, *arguments]


def curl(daemon, path, *arguments, body=None):
    asked = command(daemon, path, *arguments, body=body)
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout


def answer(daemon, path, body):
    return json.loads(curl(daemon, path, body=body))


def test_models(daemon):
    assert json.loads(curl(daemon, "/v1/models"))["data"][0]["id"] == "smol"
    assert json.loads(curl(daemon, "/v1/models/smol"))["max_model_len"] == 1024


def test_chat_and_completion(daemon):
    chat = answer(daemon, "/v1/chat/completions", CHAT)
    assert "Tokyo" in chat["choices"][0]["message"]["content"]
    text = answer(daemon, "/v1/completions", TEXT)
    assert (text["choices"][0]["finish_reason"], text["usage"]["completion_tokens"]) == ("length", 12)
    cut = text["choices"][0]["text"][6:12]
    stopped = answer(daemon, "/v1/completions", {**TEXT, "stop": cut})["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (text["choices"][0]["text"].partition(cut)[0], "stop")


def test_two_choices_with_log_probabilities(daemon):
    two = answer(daemon, "/v1/completions", {**TEXT, "temperature": 1, "seed": 3, "n": 2, "logprobs": 1})
    assert [each["index"] for each in two["choices"]] == [0, 1]
    assert [len(each["logprobs"]["tokens"]) for each in two["choices"]] == [12, 12]
    two = answer(daemon, "/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2})
    for each in two["choices"]:
        assert "".join(token["token"] for token in each["logprobs"]["content"]) == each["message"]["content"]


def test_a_stream_with_usage(daemon):
    whole = answer(daemon, "/v1/chat/completions", CHAT)
    streamed = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events_of(curl(daemon, "/v1/chat/completions", body=streamed).encode())
    assert done == "[DONE]"
    said = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
    assert said == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_errors(daemon, tmp_path):
    status = ("-w", "\n%{http_code} %{content_type}")
    for path, body, expected in (
        ("/v1/completions", {**TEXT, "top_p": 7}, (400, "invalid_field", "top_p")),
        ("/v1/chat/completions", {**CHAT, "model": "other"}, (404, "model_not_found", "model")),
        ("/v1/nothing", {}, (404, "not_found", None)),
    ):
        *lines, last = curl(daemon, path, *status, body=body).splitlines()
        error = json.loads("".join(lines))["error"]
        assert (last, error["code"], error["param"]) == (f"{expected[0]} application/json", *expected[1:])
        assert error["type"] == "invalid_request_error"
    large = tmp_path / "body"
    large.write_bytes(b'{"prompt": "' + b"x" * 50_000_000 + b'"}')
    arguments = ("-H", "Content-Type: application/json", "--data-binary", f"@{large}")
    assert json.loads(curl(daemon, "/v1/completions", *arguments))["error"]["code"] == "body_too_large"


def test_a_curl_that_is_killed_frees_its_blocks(daemon):
    before = daemon.stats().requests.get("CANCELLED", 0)
    endless = {**TEXT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with subprocess.Popen(command(daemon, "/v1/completions", body=endless), stdout=subprocess.PIPE) as running:
        assert running.stdout.readline().startswith(b"data: ")
        running.kill()
    daemon.wait_until_idle(10.0)
    assert daemon.stats().requests["CANCELLED"] == before + 1
