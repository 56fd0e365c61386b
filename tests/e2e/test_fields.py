"""Every field of every body, one by one: the answer shows it, or a refusal names it. None is ignored in silence."""

import json

import msgspec
import pytest
from http_client import events_of, post

from llmsrv.serve.http_api.fields import (
    NOT_IMPLEMENTED,
    ChatFields,
    ChatMessage,
    CompletionFields,
    ContentPart,
    DetokenizeFields,
    ResponseFormat,
    StreamOptions,
    TokenizeFields,
)

TEXT = "Once upon a time there was a small dragon who lived in a cave beside the sea and read books about the sea"
DRAWN = {"temperature": 1.3, "seed": 1, "max_tokens": 6}
LONG = {"temperature": 0, "max_tokens": 24}  # a token comes twice
USER, ASSISTANT = {"role": "user", "content": TEXT}, {"role": "assistant", "content": "It"}
ENDS_UNSTOPPED = {"logit_bias": {"2": 100}, "ignore_eos": True}
ENDS_AT_ONCE = {"logit_bias": {"2": 100}}  # the end of a turn

BODIES = {
    CompletionFields: ("/v1/completions", {**DRAWN, "prompt": TEXT}),
    ChatFields: ("/v1/chat/completions", {**DRAWN, "messages": [USER]}),
    TokenizeFields: ("/tokenize", {"prompt": TEXT}),
    DetokenizeFields: ("/detokenize", {"tokens": [10, 20, 30]}),
}
CONVERSATION = {"prompt": None, "messages": [USER]}
# Of each field: a value that must show, and what it needs beside it, in both bodies that are compared.
CHANGES = {
    "model": ("other", {}),
    "prompt": ("Hello", {}),
    "messages": ([{"role": "user", "content": "Hello"}], {}),
    "tokens": ([30, 20], {}),
    "max_tokens": (3, {}),
    "max_completion_tokens": (1, {"max_tokens": None, "stop": [",", "."]}),
    "temperature": (0, {}),
    "top_p": (0.01, {}),
    "top_k": (1, {}),
    "min_p": (1, {}),
    "n": (2, {}),
    "stop": ("e", {}),
    "stop_token_ids": (list(range(1000)), {}),
    "allowed_token_ids": ([260], {}),
    "include_stop_str_in_output": (True, {"stop": "e"}),
    "skip_special_tokens": (False, ENDS_UNSTOPPED),
    "truncate_prompt_tokens": (2, {}),
    "time_limit": (1e-9, {}),
    "queue_timeout": (0, {}),
    "bypass_prefix_cache": (True, {}),
    "seed": (2, {}),
    "frequency_penalty": (2, LONG),
    "presence_penalty": (2, LONG),
    "repetition_penalty": (1.9, {"temperature": 0}),
    "logit_bias": ({"260": 100}, {}),
    "stream": (True, {}),
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "min_tokens": (3, ENDS_AT_ONCE),
    "ignore_eos": (True, ENDS_AT_ONCE),
    "priority": (1, {}),
    "cache_salt": ("a tenant of its own", {}),
    "return_token_ids": (True, {}),
    "prompt_logprobs": (1, {}),
    "echo": (True, {}),
    "top_logprobs": (2, {"logprobs": True}),
    "response_format": ({"type": "json_object"}, {}),
    "add_generation_prompt": (False, {}),
    "continue_final_message": (True, {"messages": [USER, ASSISTANT]}),
    "return_token_strs": (True, {}),
    "add_special_tokens": (False, CONVERSATION),
    "chat_template_kwargs": ({"messages": 1}, {}),
}
LOGPROBS = {ChatFields: True, CompletionFields: 1}
# In /tokenize they need a conversation; beside text they are refused, which test_tokenize_refuses shows.
OF_A_CONVERSATION = {"messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
# What may show nothing: documented so, or up to the model's own template, to which tests/unit/test_http_fields.py
# sees them go.
SILENT = {(ChatFields, "user"), (CompletionFields, "user"), (ChatMessage, "name"), (ChatMessage, "reasoning_content")}

WALK = [(kind, each.name) for kind in BODIES for each in msgspec.structs.fields(kind)]


def answer_to(daemon, path, body):
    """What an answer says, without what differs between two of the same."""
    answer = post(daemon.http_port, path, body)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.status, [shown(each) for each in events_of(answer.body)]
    return answer.status, shown(answer.json)


def shown(data):
    if data == "[DONE]":
        return data
    return {key: value for key, value in data.items() if key not in ("id", "created")}


@pytest.fixture(scope="module")
def plain_answers(daemon):
    """The answers to bodies that change nothing, each asked for once."""
    found = {}

    def ask(path, body):
        key = (path, json.dumps(body))
        if key not in found:
            post(daemon.http_port, path, body)  # what it leaves in the prefix cache is there for all that follow
            status, found[key] = answer_to(daemon, path, body)
            assert status == 200, found[key]
        return found[key]

    return ask


def assert_shows(name, plain, status, found):
    """A changed field's answer is another than the plain one; a refusal names the field."""
    assert found != plain, name
    if status != 200:
        assert found["error"]["param"].startswith(name), found
        assert name in found["error"]["message"]


@pytest.mark.parametrize(("kind", "name"), WALK, ids=[f"{kind.__name__}.{name}" for kind, name in WALK])
def test_a_field_shows_or_is_refused(daemon, plain_answers, kind, name):
    path, body = BODIES[kind]
    if (kind, name) in SILENT:
        assert answer_to(daemon, path, {**body, name: "x"})[0] == 200
        return
    value, needs = (LOGPROBS[kind], {}) if name == "logprobs" else CHANGES[name]
    if kind is TokenizeFields and name in OF_A_CONVERSATION:
        needs = {**CONVERSATION, **needs}
    base = {each: given for each, given in {**body, **needs}.items() if given is not None}
    assert_shows(name, plain_answers(path, base), *answer_to(daemon, path, {**base, name: value}))


NESTED = [
    (ChatMessage, "role", {"messages": [USER]}, {"messages": [{**USER, "role": "system"}]}),
    (ChatMessage, "content", {"messages": [USER]}, {"messages": [{**USER, "content": "Hello"}]}),
    *(
        (ContentPart, name, {"messages": [{**USER, "content": [part]}]}, {"messages": [{**USER, "content": [other]}]})
        for part in [{"type": "text", "text": "a"}]
        for name, other in (("text", {"type": "text", "text": "b"}), ("type", {"type": "image_url", "text": "a"}))
    ),
    (StreamOptions, "include_usage", {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    (ResponseFormat, "type", {"response_format": {"type": "text"}}, {"response_format": {"type": "json_schema"}}),
]


def test_fields_inside_show_or_are_refused(daemon, plain_answers):
    path, body = BODIES[ChatFields]
    for _, name, base, changed in NESTED:
        status, found = answer_to(daemon, path, {**body, **changed})
        assert found != plain_answers(path, {**body, **base}), name
        assert status == 200 or name in found["error"]["param"]
    kinds = (ChatMessage, ContentPart, StreamOptions, ResponseFormat)
    every = {(kind, each.name) for kind in kinds for each in msgspec.structs.fields(kind)}
    assert {(kind, name) for kind, name, *_ in NESTED} | {each for each in SILENT if each[0] in kinds} == every


def test_what_is_not_implemented_is_refused_by_name(daemon):
    chat = BODIES[ChatFields][1]
    places = {
        ChatFields: ("", lambda found: {**chat, **found}),
        CompletionFields: ("", lambda found: {**BODIES[CompletionFields][1], **found}),
        ChatMessage: ("messages[0].", lambda found: {**chat, "messages": [{**USER, **found}]}),
        ContentPart: (
            "messages[0].content[0].",
            lambda found: {**chat, "messages": [{**USER, "content": [{"type": "text", "text": "a", **found}]}]},
        ),
        StreamOptions: ("stream_options.", lambda found: {**chat, "stream": True, "stream_options": found}),
    }
    assert set(places) == set(NOT_IMPLEMENTED)
    for kind, (prefix, body) in places.items():
        path = BODIES.get(kind, BODIES[ChatFields])[0]
        for name in NOT_IMPLEMENTED[kind]:
            for value in (True, "x", [], {}):
                answer = post(daemon.http_port, path, body({name: value}))
                assert (answer.status, answer.error["param"]) == (400, prefix + name), answer.body
        assert post(daemon.http_port, path, body(dict.fromkeys(NOT_IMPLEMENTED[kind]))).status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [("add_generation_prompt", False), ("continue_final_message", True), ("chat_template_kwargs", {"a": 1})],
)
def test_tokenize_refuses_a_conversations_fields_beside_text(daemon, name, value):
    answer = post(daemon.http_port, "/tokenize", {"prompt": "x", name: value})
    assert (answer.status, answer.error["param"]) == (400, name)
    assert json.loads(answer.body)["error"]["message"] == f"{name}: is for a conversation"
