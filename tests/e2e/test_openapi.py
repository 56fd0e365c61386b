"""/openapi.json: it is valid, it has every route, and the daemon does what it says, as Schemathesis tries it."""

import jsonschema
import pytest
import schemathesis
from http_client import get, post
from hypothesis import HealthCheck, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import positive_data_acceptance

from llmsrv.serve.http_api.fields import NOT_IMPLEMENTED, ChatFields, ChatMessage, CompletionFields
from llmsrv.serve.http_api.openapi import OPERATIONS, RULES, document
from llmsrv.serve.http_api.routes import api
from llmsrv.serve.listener import Listener

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "x"}
ENDS = {"max_tokens": 3}
PROMPT = {"prompt": "x"}


@pytest.fixture(scope="session")
def described(daemon):
    return get(daemon.http_port, "/openapi.json").json


def test_the_document_is_valid_and_has_every_route(described):
    OpenAPIV31SpecValidator(described).validate()
    routes = {each.path.replace(":path}", "}"): each for each in api(Listener()).routes if each.include_in_schema}
    assert set(described["paths"]) == set(routes) == set(OPERATIONS)
    for path, item in described["paths"].items():
        assert set(item) - {"parameters"} == {each.lower() for each in routes[path].methods - {"HEAD"}}


def test_every_declared_field_is_in_it():
    schemas = document(api(Listener()).routes)["components"]["schemas"]
    for kind in (ChatFields, CompletionFields, ChatMessage):
        shown = schemas[kind.__name__]
        assert set(shown["properties"]) == set(kind.__struct_fields__) | NOT_IMPLEMENTED[kind]
        assert shown["additionalProperties"] is False


# --- Schemathesis ---


def small(body):
    """A body that the schema allows, made one that this daemon can take, mostly: what is left is in its vocabulary,
    does not contradict itself and ends soon."""
    kept = {name: value for name, value in body.items() if name not in ("model", "priority", "max_completion_tokens")}
    kept = {name: value for name, value in kept.items() if value is not None}
    if "prompt" in kept or "messages" in kept:
        kept["max_tokens"] = kept["n"] = 2
        kept["min_tokens"] = kept.get("min_tokens", 0) % 3
    if not kept.get("stream"):
        kept.pop("stream_options", None)
    if kept.get("stream") or kept.get("prompt_logprobs", 0) > 5:
        kept.pop("prompt_logprobs", None)
    if not kept.get("logprobs") or kept.get("top_logprobs", 0) > 5:
        kept.pop("top_logprobs", None)
    for ids in ("stop_token_ids", "allowed_token_ids", "tokens"):
        if isinstance(kept.get(ids), list):
            kept[ids] = [each % 1000 for each in kept[ids]]
    if "logit_bias" in kept:
        kept["logit_bias"] = {str(int(key) % 1000): value for key, value in kept["logit_bias"].items()}
    return kept


SCHEMA = schemathesis.openapi.from_dict(document(api(Listener()).routes))


# What the schema allows may still be refused: it knows neither the vocabulary nor which fields contradict each other.
@SCHEMA.parametrize()
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_the_daemon_does_what_the_document_says(daemon, case):
    if case.meta.generation.mode.is_positive and isinstance(case.body, dict) and case.path != "/tokenize":
        case.body = small(case.body)
    url = f"http://127.0.0.1:{daemon.http_port}"
    case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance])


# --- rules ---


def numbers(path, name, body=None, integer=False):
    """Bodies on both sides of a number's bounds."""
    rule, base = RULES[name], {**ENDS, **(body or {})}
    step = 1 if integer else 0.5
    at = [rule[each] for each in ("minimum", "maximum") if each in rule]
    beyond = [rule["minimum"] - step] if "minimum" in rule else []
    beyond += [rule["maximum"] + step] if "maximum" in rule else []
    if "exclusiveMinimum" in rule:
        at, beyond = [*at, rule["exclusiveMinimum"] + step], [*beyond, rule["exclusiveMinimum"]]
    return [(path, name, {**base, name: value}) for value in (*at, *beyond)]


def messages(**fields):
    return {"messages": [{**USER, **fields}]}


CASES = [
    *numbers(TEXT, "max_tokens", {"prompt": "x"}, True),
    *numbers(CHAT, "max_completion_tokens", {"max_tokens": None, **messages()}, True),
    *(case for name in ("temperature", "top_p", "min_p") for case in numbers(TEXT, name, {"prompt": "x"})),
    *(case for name in ("frequency_penalty", "presence_penalty") for case in numbers(TEXT, name, {"prompt": "x"})),
    *(case for name in ("repetition_penalty", "time_limit", "queue_timeout") for case in numbers(TEXT, name, PROMPT)),
    *numbers(TEXT, "truncate_prompt_tokens", PROMPT, True),
    *(case for name in ("n", "seed", "top_k", "min_tokens") for case in numbers(TEXT, name, {"prompt": "x"}, True)),
    *(case for name in ("logprobs", "prompt_logprobs") for case in numbers(TEXT, name, {"prompt": "x"}, True)),
    *numbers(CHAT, "top_logprobs", {"logprobs": True, **messages()}, True),
    *((CHAT, "role", {**ENDS, **messages(role=role)}) for role in (*RULES["role"]["enum"], "robot", "")),
    *((CHAT, "type", {**ENDS, **messages(content=[{"type": kind}])}) for kind in ("text", "image_url")),
    *((CHAT, "type", {**ENDS, **messages(), "response_format": {"type": kind}}) for kind in ("text", "json_object")),
    *(
        (CHAT, "chat_template_kwargs", {**ENDS, **messages(), "chat_template_kwargs": {key: []}})
        for key in (*RULES["chat_template_kwargs"]["propertyNames"]["not"]["enum"], "other")
    ),
    *((TEXT, "logit_bias", {**ENDS, "prompt": "x", "logit_bias": {"5": bias}}) for bias in (-100, 100, -101, 101)),
    *((TEXT, "logit_bias", {**ENDS, "prompt": "x", "logit_bias": {key: 1}}) for key in ("0", "10", "01", "-1", "a")),
    *((TEXT, "stop", {**ENDS, "prompt": "x", "stop": stop}) for stop in ("", "a", ["a"] * 64, ["a"] * 65)),
    *((TEXT, "stop_token_ids", {**ENDS, "prompt": "x", "stop_token_ids": [0] * count}) for count in (1024, 1025)),
    *((TEXT, "suffix", {**ENDS, "prompt": "x", "suffix": value}) for value in (None, "x")),
    *((TEXT, "unknown", {**ENDS, "prompt": "x", **more}) for more in ({}, {"unknown": None})),
    *(
        (TEXT, "prompt", {**ENDS, "prompt": prompt})
        for prompt in ("x", [1], ["x"], [[1], "x"], [[[1]]], [1.5], None, {})
    ),
]


def test_the_document_and_the_daemon_refuse_the_same(daemon, described):
    found = {}
    for path, name, body in CASES:
        reference = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator({**reference, "components": described["components"]})
        answer = post(daemon.http_port, path, body)
        allowed = validator.is_valid(body)
        assert (answer.status == 200) == allowed, (body, answer.body)
        found.setdefault(name, set()).add(allowed)
    assert set(RULES) <= set(found)
    assert [name for name, sides in found.items() if len(sides) == 1] == []
