"""One request over both protocols: same tokens, same text, same log-probabilities, same end."""

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status
from http_client import events_of, post
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmsrv.serve.http_api.logprobs import LOGPROB_MIN
from llmsrv.v1 import inference_pb2, types_pb2

REASONS = {types_pb2.FINISH_REASON_STOP: "stop", types_pb2.FINISH_REASON_LENGTH: "length"}
VOCAB = 49_152

SAMPLING = {
    "temperature": st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    "top_p": st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    "top_k": st.sampled_from([0, 1, 5, 50]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5]),
    "frequency_penalty": st.sampled_from([-2.0, -0.5, 0.0, 1.5]),
    "presence_penalty": st.sampled_from([-0.5, 0.0, 2.0]),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.25]),
    "n": st.integers(1, 3),
}
STOPPING = {
    "min_tokens": st.integers(0, 6),
    "stop_strings": st.lists(st.sampled_from([" the", "e", ".", "\n", "zzz"]), max_size=2),
    "stop_token_ids": st.lists(st.integers(0, 300), max_size=3),
    "ignore_eos": st.booleans(),
    "include_stop": st.booleans(),
}
BIAS = st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 5.0, 50.0]), max_size=3)
OUTPUT = {
    "prompt_logprobs": st.integers(0, 2),
    "cache_salt": st.sampled_from(["", "a", "\u00e4"]),
    "user": st.just("somebody"),
    "skip_special_tokens": st.booleans(),
    "truncate_prompt_tokens": st.integers(1, 4),
}
CHAT = {
    "chat_template_kwargs": st.just({"whatever": [1, {"a": None}]}),
    "add_generation_prompt": st.booleans(),
}
PROMPTS = st.one_of(
    st.sampled_from(["Once upon a time", "1 2 3", "def f(x):", "Tschüß, ä"]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    st.lists(st.sampled_from(["Hello.", "Name a colour.", "Why?"]), min_size=1, max_size=3).map(tuple),  # a chat
)


@st.composite
def generations(draw):
    """(prompt, seed, sampling, stopping, logit_bias, alternatives or None, output, chat)"""
    return (
        draw(PROMPTS),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.fixed_dictionaries({}, optional=SAMPLING)),
        draw(st.fixed_dictionaries({"max_tokens": st.integers(6, 10)}, optional=STOPPING)),
        draw(BIAS),
        draw(st.none() | st.integers(0, 3)),
        draw(st.fixed_dictionaries({}, optional=OUTPUT)),
        draw(st.fixed_dictionaries({}, optional=CHAT)),
    )


GRPC_NAMES = {"chat_template_kwargs": "template_kwargs"}
HTTP_NAMES = {"stop_strings": "stop", "include_stop": "include_stop_str_in_output"}


def messages_of(prompt):
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(prompt)]


def grpc_message(prompt, seed, sampling, stopping, bias, alternatives, output, chat):
    message = {"sampling": {**sampling, "seed": str(seed), "logit_bias": bias}, "stopping": stopping}
    of_the_prompt = output.get("prompt_logprobs")
    message["output"] = {
        "token_ids": True,
        "prompt_token_ids": True,
        "logprobs": alternatives is not None,
        "prompt_logprobs": of_the_prompt is not None,
        "top_logprobs": max(alternatives or 0, of_the_prompt or 0),
    }
    if "skip_special_tokens" in output:
        message["output"]["skip_special_tokens"] = output["skip_special_tokens"]
    message |= {name: output[name] for name in ("cache_salt", "truncate_prompt_tokens") if name in output}
    if isinstance(prompt, str):
        message["text"] = prompt
    elif isinstance(prompt, tuple):
        message["chat"] = {"messages": messages_of(prompt)}
        message["chat"] |= {GRPC_NAMES.get(name, name): value for name, value in chat.items()}
    else:
        message["token_ids"] = {"ids": prompt}
    return ParseDict(message, inference_pb2.GenerateRequest())


def choices_of(answer):
    choices = []
    for each in answer.completions:
        entries = [
            (entry.token_bytes, entry.logprob, [(top.token_bytes, top.logprob) for top in entry.top])
            for entry in each.logprobs
        ]
        choices.append((each.text, list(each.token_ids), REASONS[each.finish.reason], entries))
    return choices, (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def body_of(prompt, seed, sampling, stopping, bias, alternatives, output, chat):
    """The same for HTTP: its path and its body."""
    stopping = {HTTP_NAMES.get(name, name): value for name, value in stopping.items()}
    body = {**sampling, **stopping, "seed": seed, "return_token_ids": True}
    body |= output
    body["logit_bias"] = {str(token_id): value for token_id, value in bias.items()}
    if isinstance(prompt, tuple):
        logprobs = {} if alternatives is None else {"logprobs": True, "top_logprobs": alternatives}
        return "/v1/chat/completions", {**body, "messages": messages_of(prompt), **logprobs, **chat}
    return "/v1/completions", {**body, "prompt": prompt, "logprobs": alternatives}


def over_http(daemon, path, body, stream):
    """(per choice its pieces, usage, what is said of the prompt)"""
    if not stream:
        answer = post(daemon.http_port, path, body)
        assert answer.status == 200, answer.body
        return [[each] for each in answer.json["choices"]], answer.json["usage"], prompt_of([answer.json])
    *chunks, usage, done = events_of(
        post(daemon.http_port, path, {**body, "stream": True, "stream_options": {"include_usage": True}}).body
    )
    assert done == "[DONE]"
    pieces = [[] for _ in range(body.get("n", 1))]
    for chunk in chunks:
        pieces[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    return pieces, usage["usage"], prompt_of(chunks)


def prompt_of(parts):
    """(ids, log-probabilities or None), wherever they stand."""
    places = [place for part in parts for place in (part, *part["choices"])]
    found = next(each for each in places if "prompt_token_ids" in each)
    return found["prompt_token_ids"], found.get("prompt_logprobs")


def joined(pieces):
    """One choice of its pieces, or of the one piece that it has."""
    text, ids, entries = "", [], []
    for piece in pieces:
        content = piece.get("delta") or piece.get("message") or {}
        text += piece.get("text") or content.get("content") or ""
        ids += piece.get("token_ids", [])
        found = piece["logprobs"] or {}
        for entry in found.get("content", ()):
            tops = [(bytes(top["bytes"]), top["logprob"]) for top in entry["top_logprobs"]]
            entries.append((bytes(entry["bytes"]), entry["logprob"], tops))
        for i, logprob in enumerate(found.get("token_logprobs", ())):
            entries.append((found["tokens"][i], logprob, found["top_logprobs"] and found["top_logprobs"][i]))
    return text, ids, pieces[-1]["finish_reason"], entries


def assert_same_logprobs(shown, expected, alternatives):
    assert len(shown) == len(expected)
    for (token, logprob, tops), (raw, wanted, wanted_tops) in zip(shown, expected, strict=True):
        assert logprob == max(wanted, LOGPROB_MIN)
        if isinstance(token, bytes):
            assert (token, tops) == (raw, wanted_tops[:alternatives])
        elif alternatives:
            assert sorted(set(tops.values()), reverse=True)[0] == max(each for _, each in wanted_tops[:alternatives])
            assert len(tops) <= alternatives + 1


def assert_same_prompt(shown, expected, alternatives):
    ids, entries = shown
    assert ids == list(expected.token_ids)
    assert (entries is None) == (len(expected.logprobs) == 0)
    for found, wanted in zip(entries or (), expected.logprobs, strict=True):
        if not wanted.HasField("logprob"):
            assert found is None
            continue
        shown_ones = {int(token_id): max(each["logprob"], LOGPROB_MIN) for token_id, each in found.items()}
        wanted_ones = {top.token_id: top.logprob for top in wanted.top[:alternatives]} | {
            wanted.token_id: wanted.logprob
        }
        assert shown_ones == {token_id: max(logprob, LOGPROB_MIN) for token_id, logprob in wanted_ones.items()}
        assert found[str(wanted.token_id)]["rank"] == wanted.rank


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=200, suppress_health_check=QUIET)
@given(generation=generations(), stream=st.booleans())
def test_both_protocols_give_the_same(daemon, generation, stream):
    # Both at once: neither depends on what runs beside it.
    call = daemon.inference.Generate.future(grpc_message(*generation))
    path, body = body_of(*generation)
    pieces, usage, prompt = over_http(daemon, path, body, stream and "prompt_logprobs" not in body)
    answer = call.result()
    expected, (prompt_tokens, completion_tokens) = choices_of(answer)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, completion_tokens)
    assert len(pieces) == len(expected)
    for mine, (text, ids, reason, entries) in zip(map(joined, pieces), expected, strict=True):
        assert mine[:3] == (text, ids, reason)
        assert_same_logprobs(mine[3], entries, generation[5])
    assert_same_prompt(prompt, answer.prompt, body.get("prompt_logprobs", 0))


# By gRPC's name: values that no server takes, and HTTP's name.
BAD = {
    "sampling.temperature": (st.sampled_from([-0.5, -3.0]), "temperature"),
    "sampling.top_p": (st.sampled_from([0.0, 1.5, -1.0]), "top_p"),
    "sampling.min_p": (st.sampled_from([-0.25, 1.5]), "min_p"),
    "sampling.frequency_penalty": (st.sampled_from([-2.5, 3.0]), "frequency_penalty"),
    "sampling.presence_penalty": (st.sampled_from([-2.5, 3.0]), "presence_penalty"),
    "sampling.repetition_penalty": (st.sampled_from([0.0, -1.0]), "repetition_penalty"),
    "sampling.n": (st.sampled_from([1000, 100_000]), "n"),
    "stopping.max_tokens": (st.sampled_from([5000, 2_000_000_000]), "max_tokens"),
    "stopping.stop_strings": (st.sampled_from([[""], ["x" * 2000], ["a"] * 65]), "stop"),
    "stopping.stop_token_ids": (st.sampled_from([[VOCAB], [0] * 1025]), "stop_token_ids"),
    "sampling.allowed_token_ids": (st.sampled_from([[VOCAB], [0] * (VOCAB + 1)]), "allowed_token_ids"),
    "output.top_logprobs": (st.just(1000), "logprobs"),
    "priority": (st.sampled_from([-1, 5]), "priority"),
    "cache_salt": (st.just("x" * 2000), "cache_salt"),
}


def violations_of(caught):
    (bad,) = [each for each in rpc_status.from_call(caught).details if each.Is(BadRequest.DESCRIPTOR)]
    unpacked = BadRequest()
    bad.Unpack(unpacked)
    return {each.field: each.description for each in unpacked.field_violations}


@settings(max_examples=100, suppress_health_check=QUIET)
@given(bad=st.fixed_dictionaries({}, optional={name: values for name, (values, _) in BAD.items()}).filter(bool))
def test_both_protocols_refuse_the_same_for_the_same_reasons(daemon, bad):
    message, body = {"text": "x"}, {"prompt": "x"}
    for name, value in bad.items():
        *place, field = name.split(".")
        (message.setdefault(place[0], {}) if place else message)[field] = value
        body[BAD[name][1]] = value
    if "output" in message:
        message["output"]["logprobs"] = True
    with pytest.raises(grpc.RpcError) as caught:
        daemon.inference.Generate(ParseDict(message, inference_pb2.GenerateRequest()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    expected = violations_of(caught.value)
    answer = post(daemon.http_port, "/v1/completions", body)
    assert answer.status == 400
    wanted = []
    for field, description in expected.items():
        name = next(each for each in BAD if field.startswith(each))
        wanted.append(f"{BAD[name][1]}{field.removeprefix(name)}: {description}")
    assert sorted(answer.error["message"].split("; ")) == sorted(part for each in wanted for part in each.split("; "))
    assert answer.error["param"] in {each.partition(":")[0] for each in wanted}
    assert {next(name for name in BAD if field.startswith(name)) for field in expected} == set(bad)
