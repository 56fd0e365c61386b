"""Every field of every body is honoured or refused by name: none is ignored."""

from dataclasses import asdict

import msgspec
import pytest

from llmsrv.params import ChatPrompt
from llmsrv.serve.http_api import convert
from llmsrv.serve.http_api.fields import (
    NOT_IMPLEMENTED,
    VIOLATIONS_MAX,
    ChatFields,
    ChatMessage,
    CompletionFields,
    ContentPart,
    DetokenizeFields,
    TokenizeFields,
    read_fields,
)

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}
# A value of each field that changes what is asked for, and what else it needs.
CHANGES = {
    "model": "other",
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "n": 3,
    "stop": ["x"],
    "seed": 0,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"3": 1.5},
    "stream": True,
    "stream_options": {"include_usage": True},
    "top_k": 5,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "min_tokens": 3,
    "ignore_eos": True,
    "stop_token_ids": [3],
    "allowed_token_ids": [3],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "truncate_prompt_tokens": 1,
    "time_limit": 0.5,
    "queue_timeout": 0.5,
    "bypass_prefix_cache": True,
    "priority": 3,
    "cache_salt": "x",
    "return_token_ids": True,
    "prompt_logprobs": 2,
    "messages": [{"role": "user", "content": "other"}],
    "max_completion_tokens": 5,
    "top_logprobs": 2,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"a": {"b": 1}},
    "prompt": "other",
    "echo": True,
}
NEEDS = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
# Fields whose only other value is refused, or that are accepted and documented to do nothing.
WITHOUT_EFFECT = {"user", "response_format"}


def asked(kind, body):
    made, violations = read_fields(kind, body)
    found = (convert.chat_request if kind is ChatFields else convert.completion_request)(made, violations)
    assert not violations
    return found


def refused(kind, body):
    made, violations = read_fields(kind, body)
    if made is not None:
        (convert.chat_request if kind is ChatFields else convert.completion_request)(made, violations)
    return [each.field for each in violations]


ALL_FIELDS = [
    pytest.param(kind, body, each.name, id=f"{kind.__name__}.{each.name}")
    for kind, body in ((ChatFields, CHAT), (CompletionFields, COMPLETION))
    for each in msgspec.structs.fields(kind)
]


@pytest.mark.parametrize(("kind", "body", "name"), ALL_FIELDS)
def test_every_field_changes_what_is_asked_for(kind, body, name):
    if name in WITHOUT_EFFECT:
        return
    change = (2 if kind is CompletionFields else True) if name == "logprobs" else CHANGES[name]
    base = {**body, **NEEDS.get(name, {})}
    assert asdict(asked(kind, {**base, name: change})) != asdict(asked(kind, base))


@pytest.mark.parametrize(("kind", "body", "name"), ALL_FIELDS)
def test_null_means_not_set(kind, body, name):
    if name in body:
        assert refused(kind, {**body, name: None}) == [name]
    else:
        assert asked(kind, {**body, name: None}) == asked(kind, body)


@pytest.mark.parametrize(("kind", "body", "name"), ALL_FIELDS)
def test_a_wrong_type_is_named_with_all_others(kind, body, name):
    wrong = 7.5 if name in ("logit_bias", "stream_options", "response_format", "chat_template_kwargs") else {"a": 1}
    assert {name, "other"} <= set(refused(kind, {**body, name: wrong, "other": 1}))


def test_what_openai_has_and_we_do_not_is_refused_by_name_unless_null():
    for name in NOT_IMPLEMENTED[ChatFields]:
        assert refused(ChatFields, {**CHAT, name: False}) == [name]
        assert refused(ChatFields, {**CHAT, name: None}) == []
    for name in NOT_IMPLEMENTED[CompletionFields]:
        assert refused(CompletionFields, {**COMPLETION, name: "x"}) == [name]
    for name in NOT_IMPLEMENTED[ChatMessage]:
        message = {"role": "assistant", "content": "x", name: [1]}
        assert refused(ChatFields, {"messages": [message]}) == [f"messages[0].{name}"]
    for name in NOT_IMPLEMENTED[ContentPart]:
        part = {"type": name, name: {}}
        found = refused(ChatFields, {"messages": [{"role": "user", "content": [part]}]})
        assert found == [f"messages[0].content[0].{name}", "messages[0].content[0].type"]


def test_places_are_named():
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 3}, {}]},
            {"content": "x", "nonsense": 1},
            "text",
        ],
        "stop": ["a", 3],
        "logit_bias": {"a": 1, "01": 1, "-": 1},
        "response_format": {"type": "json_object"},
        "stream": True,
        "stream_options": {"include_usage": 1},
        "top_logprobs": 1,
        "max_tokens": 1,
        "max_completion_tokens": 1,
    }
    assert sorted(refused(ChatFields, body)) == [
        "logit_bias[-]",
        "logit_bias[01]",
        "logit_bias[a]",
        "max_completion_tokens",
        "messages[0].content[1].text",
        "messages[0].content[2].type",
        "messages[1].nonsense",
        "messages[1].role",
        "messages[2]",
        "response_format.type",
        "stop[1]",
        "stream_options.include_usage",
        "top_logprobs",
    ]
    assert refused(ChatFields, {**CHAT, "stream_options": {}}) == ["stream_options"]
    assert refused(ChatFields, {**CHAT, "prompt_logprobs": -1}) == ["prompt_logprobs"]
    assert refused(CompletionFields, {**COMPLETION, "stream": True, "prompt_logprobs": 1}) == ["prompt_logprobs"]


def test_the_list_of_violations_is_bounded():
    assert len(refused(ChatFields, {**CHAT, **{f"f{i}": 1 for i in range(1000)}})) == VIOLATIONS_MAX


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ([], [[]]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_prompts(prompt, expected):
    found = asked(CompletionFields, {"prompt": prompt, "echo": True})
    assert list(found.echo) == expected
    assert len(found.requests) == len(expected)


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", 1], [[1], 2], ["a"] * 1025, [[1.5]], [[[1]]], [True], {"a": 1}, 3])
def test_prompts_that_are_none(prompt):
    (field,) = {each.partition("[")[0] for each in refused(CompletionFields, {"prompt": prompt})}
    assert field == "prompt"


def test_a_conversation_reaches_the_template_as_it_expects_it():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": None, "reasoning_content": "r"},
    ]
    (request,) = asked(ChatFields, {"messages": messages, "chat_template_kwargs": {"k": [1.5]}}).requests
    assert request.prompt == ChatPrompt(
        messages=[
            {"role": "user", "content": "a\nb", "name": "n"},
            {"role": "assistant", "content": "", "reasoning_content": "r"},
        ],
        template_kwargs={"k": [1.5]},
    )


def test_variables_of_the_template_are_not_nested_without_end():
    deep = 1
    for _ in range(convert.TEMPLATE_DEPTH_MAX + 1):
        deep = [deep]
    assert refused(ChatFields, {**CHAT, "chat_template_kwargs": {"k": deep}}) == ["chat_template_kwargs"]
    assert refused(ChatFields, {**CHAT, "chat_template_kwargs": {"k": deep[0][0]}}) == []


def test_defaults_are_those_that_clients_expect():
    (request,) = asked(CompletionFields, COMPLETION).requests
    assert (request.params.max_tokens, request.params.temperature, request.params.seed) == (16, None, None)
    (request,) = asked(ChatFields, CHAT).requests
    assert request.params.max_tokens is None
    (request,) = asked(ChatFields, {**CHAT, "top_k": -1}).requests
    assert request.params.top_k == 0


def test_alternatives_are_asked_for_once_for_both_places():
    (request,) = asked(ChatFields, {**CHAT, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 5}).requests
    assert (request.params.logprobs, request.params.prompt_logprobs, request.params.top_logprobs) == (True, True, 5)
    (request,) = asked(CompletionFields, {**COMPLETION, "logprobs": 0, "echo": True}).requests
    assert (request.params.logprobs, request.params.prompt_logprobs, request.params.top_logprobs) == (True, True, 0)


@pytest.mark.parametrize("kind", [TokenizeFields, DetokenizeFields])
def test_bodies_without_a_generation_refuse_what_they_do_not_know(kind):
    _, violations = read_fields(kind, {"tokens": [1], "prompt": "x", "nonsense": 1})
    assert "nonsense" in [each.field for each in violations]
