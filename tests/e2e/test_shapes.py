"""Every kind of answer has the shape that OpenAI publishes, strictly, and the one that /openapi.json says."""

import itertools
import sys
from pathlib import Path

import msgspec
import pytest
from http_client import call, get, post

from llmsrv.serve.http_api import answer_fields

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "conformance"))
from openai_shapes import WrongShape, check_answer, check_stream

CHAT = {"messages": [{"role": "user", "content": "Say something about Zürich. 🦙"}]}
TEXTS = {"prompt": ["Once upon", [1, 2, 3]]}
PLAIN = {"max_tokens": 6, "seed": 7}
RICH = {**PLAIN, "n": 2, "return_token_ids": True, "temperature": 1.7}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("path", "body", "logprobs"),
    [
        ("/v1/chat/completions", CHAT, {"logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", TEXTS, {"logprobs": 2, "echo": True}),
    ],
)
def test_answers_and_chunks(daemon, path, body, logprobs):
    for params, extra, stream in itertools.product((PLAIN, RICH), ({}, logprobs), ({}, {"stream": True}, STREAM)):
        answer = post(daemon.http_port, path, {**body, **params, **extra, **stream})
        assert answer.status == 200, answer.body
        if not stream:
            check_answer(answer.body)
            continue
        *chunks, last = check_stream(answer.body)
        assert bool(last["choices"]) == ("stream_options" not in stream)
        assert all(len(each["choices"]) == 1 for each in chunks)
    check_answer(post(daemon.http_port, path, {**body, **RICH, "prompt_logprobs": 1}).body)


def test_models(daemon):
    assert check_answer(get(daemon.http_port, "/v1/models").body)["data"]
    assert check_answer(get(daemon.http_port, "/v1/models/smol").body)["id"] == "smol"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"prompt": "x", "top_p": 3}),
        ("POST", "/v1/completions", {"prompt": "x", "model": "other"}),
        ("POST", "/v1/completions", b"{"),
        ("PUT", "/v1/completions", {}),
        ("GET", "/nowhere", None),
        ("GET", "/v1/models/other", None),
    ],
)
def test_errors(daemon, method, path, body):
    answer = call(daemon.http_port, method, path, body)
    assert 400 <= answer.status < 500
    assert answer.headers["content-type"] == "application/json"
    msgspec.json.decode(answer.body, type=answer_fields.ErrorAnswer)


def test_a_wrong_shape_is_noticed():
    good = b'{"id": "a", "object": "model", "created": 1, "owned_by": "b", "max_model_len": 3}'
    check_answer(good)
    for bad in (
        good.replace(b"1,", b'"1",'),
        good.replace(b'"owned_by": "b", ', b""),
        good.replace(b"}", b', "x": 1}'),
        good.replace(b'"model"', b'"thing"'),
        b"[]",
        b"",
    ):
        with pytest.raises(WrongShape):
            check_answer(bad)
    for stream in (b"", b"data: " + good + b"\n\n", b"data: {}\n\ndata: [DONE]\n\n", b"data: [DONE]\n"):
        with pytest.raises(WrongShape):
            check_stream(stream)
