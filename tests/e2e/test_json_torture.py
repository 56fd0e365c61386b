"""Bodies that no client should send: each is refused with a 4xx, the connection goes on, and so do the streams beside
them, bit for bit as they are alone."""

import http.client
import json

import pytest
from http_client import JSON, Answer, get
from json_torture import EITHER, LARGE, NO_OBJECTS, NO_VALUES, VALUES

from llmsrv.serve.http_api.body import MAX_BODY_BYTES

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
AROUND = (b'{"nonsense": %s}', b'{"prompt": "x", "nonsense": %s}', b'{"nonsense": [1, %s]}', b'{"nonsense": {"b": %s}}')
LARGE_JSON = {"a string", "escapes", "numbers", "fractions", "empty objects", "spaces"}


@pytest.fixture
def connection(daemon):
    made = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
    yield made
    made.close()


def refusal(connection, number, body):
    """The code of the refusal; the paths take turns."""
    connection.request("POST", PATHS[number % len(PATHS)], body, JSON)
    answer = Answer(connection.getresponse())
    assert answer.status == 400, (body[:200], answer.body[:500])
    assert b"Traceback" not in answer.body
    return answer.error["code"]


def test_the_cases_are_many_enough():
    assert len(NO_VALUES) + len(NO_OBJECTS) + len(VALUES) + len(EITHER) > 318


def test_what_is_no_json_is_refused_as_such(connection, canary):
    for i, value in enumerate(NO_VALUES):
        around = AROUND[i % 2]  # inside a list, an empty place can be right
        assert refusal(connection, i // 2, around.replace(b"%s", value)) == "invalid_json", value
    for i, body in enumerate(NO_OBJECTS):
        assert refusal(connection, i, body) == "invalid_json", body[:200]


def test_what_is_json_is_refused_for_its_field_only(connection, canary):
    for i, value in enumerate(VALUES):
        for around in AROUND:
            body = around.replace(b"%s", value)
            json.loads(body)
            assert refusal(connection, i, body) == "invalid_field", value[:200]


def test_what_the_standard_leaves_open_is_refused_either_way(connection, canary):
    for i, value in enumerate(EITHER):
        for around in AROUND:
            assert refusal(connection, i, around.replace(b"%s", value)) in ("invalid_json", "invalid_field"), value[
                :200
            ]


def test_bodies_at_the_limit_are_read_and_refused(connection, canary):
    for i, (name, made) in enumerate(LARGE.items()):
        expected = (
            "invalid_field"
            if name in ("a string", "escapes", "numbers", "fractions", "empty objects", "spaces")
            else "invalid_json"
        )
        assert refusal(connection, i, made(MAX_BODY_BYTES)) == expected, name


def test_bodies_of_fifty_megabytes_are_not_even_kept(daemon, canary):
    for i, made in enumerate(LARGE.values()):
        body, chunked = made(50_000_000), i % 2 == 1
        sent = iter([body[j : j + (1 << 20)] for j in range(0, len(body), 1 << 20)]) if chunked else body
        connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
        connection.request("POST", PATHS[i % len(PATHS)], sent, JSON, encode_chunked=chunked)
        answer = Answer(connection.getresponse())
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        connection.close()
    assert get(daemon.http_port, "/health").status == 200
