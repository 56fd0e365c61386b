"""One request over both protocols: same tokens, same text, same log-probabilities, same end."""

from google.protobuf.json_format import ParseDict
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
}
BIAS = st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 5.0, 50.0]), max_size=3)
PROMPTS = st.one_of(
    st.sampled_from(["Once upon a time", "1 2 3", "def f(x):", "Tschüß, ä"]),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    st.lists(st.sampled_from(["Hello.", "Name a colour.", "Why?"]), min_size=1, max_size=3).map(tuple),  # a chat
)


@st.composite
def generations(draw):
    """(prompt, seed, sampling, stopping, logit_bias, alternatives or None)"""
    return (
        draw(PROMPTS),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.fixed_dictionaries({}, optional=SAMPLING)),
        draw(st.fixed_dictionaries({"max_tokens": st.integers(6, 10)}, optional=STOPPING)),
        draw(BIAS),
        draw(st.none() | st.integers(0, 3)),
    )


def messages_of(prompt):
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(prompt)]


def grpc_call(daemon, prompt, seed, sampling, stopping, bias, alternatives):
    message = {"sampling": {**sampling, "seed": str(seed), "logit_bias": bias}, "stopping": stopping}
    message["output"] = {"token_ids": True, "logprobs": alternatives is not None, "top_logprobs": alternatives or 0}
    if isinstance(prompt, str):
        message["text"] = prompt
    elif isinstance(prompt, tuple):
        message["chat"] = {"messages": messages_of(prompt)}
    else:
        message["token_ids"] = {"ids": prompt}
    return daemon.inference.Generate.future(ParseDict(message, inference_pb2.GenerateRequest()))


def choices_of(answer):
    choices = []
    for each in answer.completions:
        entries = [
            (entry.token_bytes, entry.logprob, [(top.token_bytes, top.logprob) for top in entry.top])
            for entry in each.logprobs
        ]
        choices.append((each.text, list(each.token_ids), REASONS[each.finish.reason], entries))
    return choices, (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def body_of(prompt, seed, sampling, stopping, bias, alternatives):
    """The same for HTTP: its path and its body."""
    stopping = dict(stopping)
    body = {**sampling, "stop": stopping.pop("stop_strings", None), **stopping, "seed": seed, "return_token_ids": True}
    body["logit_bias"] = {str(token_id): value for token_id, value in bias.items()}
    if isinstance(prompt, tuple):
        logprobs = {} if alternatives is None else {"logprobs": True, "top_logprobs": alternatives}
        return "/v1/chat/completions", {**body, "messages": messages_of(prompt), **logprobs}
    return "/v1/completions", {**body, "prompt": prompt, "logprobs": alternatives}


def over_http(daemon, path, body, stream):
    if not stream:
        answer = post(daemon.http_port, path, body)
        assert answer.status == 200, answer.body
        return [[each] for each in answer.json["choices"]], answer.json["usage"]
    *chunks, usage, done = events_of(
        post(daemon.http_port, path, {**body, "stream": True, "stream_options": {"include_usage": True}}).body
    )
    assert done == "[DONE]"
    pieces = [[] for _ in range(body.get("n", 1))]
    for chunk in chunks:
        pieces[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    return pieces, usage["usage"]


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
            assert (token, tops) == (raw, wanted_tops)
        elif alternatives:
            assert sorted(set(tops.values()), reverse=True)[0] == max(each for _, each in wanted_tops)
            assert len(tops) <= alternatives + 1


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(generation=generations(), stream=st.booleans())
def test_both_protocols_give_the_same(daemon, generation, stream):
    call = grpc_call(daemon, *generation)  # both at once: neither depends on what runs beside it
    path, body = body_of(*generation)
    pieces, usage = over_http(daemon, path, body, stream)
    expected, (prompt_tokens, completion_tokens) = choices_of(call.result())
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, completion_tokens)
    assert len(pieces) == len(expected)
    for mine, (text, ids, reason, entries) in zip(map(joined, pieces), expected, strict=True):
        assert mine[:3] == (text, ids, reason)
        assert_same_logprobs(mine[3], entries, generation[-1])
