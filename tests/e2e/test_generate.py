"""What a client gets: text, ids, logprobs, stops, usage, errors. Against a real daemon with a real model."""

import grpc
import pytest
from daemons import details, merged, request, stream, violated_fields, without_what_differs

from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2, types_pb2

MODEL_LEN = 1024


def chat(*contents, **fields):
    messages = [
        types_pb2.ChatMessage(role="assistant" if i % 2 else "user", content=content)
        for i, content in enumerate(contents)
    ]
    return types_pb2.ChatInput(messages=messages, **fields)


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


CASES = {
    "greedy": {},
    "seeded": {"greedy": False, "sampling": {"seed": 7, "temperature": 1.0}},
    "two": {"greedy": False, "sampling": {"seed": 7, "n": 2}, "output": {"token_ids": True}},
    "everything": {
        "greedy": False,
        "sampling": {"seed": 9, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1, "n": 2},
        "output": {
            "token_ids": True,
            "logprobs": True,
            "top_logprobs": 3,
            "prompt_token_ids": True,
            "prompt_logprobs": True,
        },
    },
    "ids only": {"output": {"text": False, "token_ids": True}},
    "chat": {"text": None, "chat": chat("What is the capital of Japan?")},
    "stop": {"max_tokens": 40, "stopping": {"stop_strings": ["\n", "."]}},
}


@pytest.mark.parametrize("name", CASES)
def test_stream_and_unary_are_equal(daemon, name):
    fields = CASES[name]
    unary = daemon.inference.Generate(request(**fields))
    streamed = merged(stream(daemon, request(**fields)))
    assert without_what_differs(streamed) == without_what_differs(unary)
    assert len(unary.completions) == fields.get("sampling", {}).get("n", 1)


def test_chat_answers_the_question(daemon):
    answer = daemon.inference.Generate(
        request(None, chat=chat("What is the capital of Japan?"), max_tokens=30, stopping={"ignore_eos": False})
    )
    assert "Tokyo" in answer.completions[0].text
    assert answer.completions[0].finish.reason == types_pb2.FINISH_REASON_STOP
    assert answer.completions[0].finish.WhichOneof("stop") == "eos_token_id"
    assert "<|im_end|>" not in answer.completions[0].text


def test_text_chat_and_ids_are_one_prompt(daemon):
    question = chat("Name a colour.")
    tokenized = daemon.inference.Tokenize(inference_pb2.TokenizeRequest(chat=question))
    as_chat = daemon.inference.Generate(request(None, chat=question))
    as_ids = daemon.inference.Generate(request(None, token_ids=types_pb2.TokenIds(ids=tokenized.token_ids)))
    as_text = daemon.inference.Generate(request(tokenized.rendered_text))
    assert as_chat.completions == as_ids.completions == as_text.completions
    assert as_chat.usage.prompt_tokens == len(tokenized.token_ids)


def test_usage_counts_what_was_generated(daemon):
    for n in (1, 3):
        answer = daemon.inference.Generate(
            request(sampling={"n": n, "seed": 1}, greedy=False, output={"token_ids": True})
        )
        assert answer.usage.completion_tokens == sum(len(each.token_ids) for each in answer.completions) == 8 * n
        assert answer.usage.prompt_tokens == answer.prompt.token_count == 4
        assert all(each.finish.reason == types_pb2.FINISH_REASON_LENGTH for each in answer.completions)
        assert answer.timing.prefill.ToNanoseconds() > 0


def test_logprobs(daemon):
    options = {
        "token_ids": True,
        "logprobs": True,
        "top_logprobs": 4,
        "prompt_logprobs": True,
        "prompt_token_ids": True,
    }
    answer = daemon.inference.Generate(request(output=options))
    (completion,) = answer.completions
    assert [each.token_id for each in completion.logprobs] == list(completion.token_ids)
    assert "".join(each.token_bytes.decode() for each in completion.logprobs) == completion.text
    for entry in completion.logprobs:
        assert entry.rank == 1  # greedy
        assert [each.rank for each in entry.top] == [1, 2, 3, 4]
        assert entry.top[0].token_id == entry.token_id
        assert [each.logprob for each in entry.top] == sorted((each.logprob for each in entry.top), reverse=True)
    assert [each.token_id for each in answer.prompt.logprobs] == list(answer.prompt.token_ids)
    assert [each.HasField("logprob") for each in answer.prompt.logprobs] == [False, True, True, True]


def test_stop_strings(daemon):
    whole = daemon.inference.Generate(request(max_tokens=24)).completions[0].text
    stop = whole[20:26]
    cut = whole.index(stop)
    plain = daemon.inference.Generate(request(max_tokens=24, stopping={"stop_strings": ["never", stop]}))
    kept = daemon.inference.Generate(request(max_tokens=24, stopping={"stop_strings": [stop], "include_stop": True}))
    assert plain.completions[0].text == whole[:cut]
    assert kept.completions[0].text == whole[: cut + len(stop)]
    for answer in (plain, kept):
        assert answer.completions[0].finish.stop_string == stop
        assert answer.usage.completion_tokens < 24
    shown = ""
    for message in stream(daemon, request(max_tokens=24, stopping={"stop_strings": [stop]})):
        shown += "".join(delta.text for delta in message.deltas)
        assert whole[:cut].startswith(shown)


def test_stop_tokens(daemon):
    ids = daemon.inference.Generate(request(output={"token_ids": True})).completions[0].token_ids
    at = next(i for i in range(2, 8) if ids[i] not in ids[:i])
    for include in (False, True):
        stopping = {"stop_token_ids": [ids[at]], "include_stop": include}
        answer = daemon.inference.Generate(request(output={"token_ids": True}, stopping=stopping))
        assert list(answer.completions[0].token_ids) == list(ids[: at + include])
        assert answer.completions[0].finish.stop_token_id == ids[at]
        assert answer.usage.completion_tokens == at + 1
    late = daemon.inference.Generate(request(stopping={"stop_token_ids": [ids[at]], "min_tokens": at + 2}))
    assert late.usage.completion_tokens > at + 1


def test_choices_differ_and_seeds_repeat(daemon):
    drawn = request(greedy=False, sampling={"n": 2, "seed": 11})
    first, again = daemon.inference.Generate(drawn), daemon.inference.Generate(drawn)
    assert first.completions == again.completions
    assert first.completions[0].text != first.completions[1].text
    unseeded = request(greedy=False, max_tokens=16)
    assert daemon.inference.Generate(unseeded).completions != daemon.inference.Generate(unseeded).completions


def test_truncation(daemon):
    text = "one two three four five six"
    ids = daemon.inference.Tokenize(inference_pb2.TokenizeRequest(text=text)).token_ids
    answer = daemon.inference.Generate(request(text, truncate_prompt_tokens=3, output={"prompt_token_ids": True}))
    assert list(answer.prompt.token_ids) == list(ids[-3:])
    assert daemon.inference.Generate(request(text, truncate_prompt_tokens=99)).prompt.token_count == len(ids)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("sampling.temperature", {"sampling": {"temperature": -0.1}}),
        ("sampling.temperature", {"sampling": {"temperature": float("nan")}}),
        ("sampling.temperature", {"sampling": {"temperature": float("inf")}}),
        ("sampling.top_p", {"sampling": {"top_p": 0.0}}),
        ("sampling.top_p", {"sampling": {"top_p": 1.1}}),
        ("sampling.top_k", {"sampling": {"top_k": 4294967295}}),
        ("sampling.min_p", {"sampling": {"min_p": -0.5}}),
        ("sampling.frequency_penalty", {"sampling": {"frequency_penalty": 2.5}}),
        ("sampling.presence_penalty", {"sampling": {"presence_penalty": -2.5}}),
        ("sampling.repetition_penalty", {"sampling": {"repetition_penalty": 0.0}}),
        ("sampling.n", {"sampling": {"n": 0}}),
        ("sampling.n", {"sampling": {"n": 129}}),
        ("sampling.n", {"sampling": {"n": 4294967295}}),
        ("sampling.logit_bias[49152]", {"sampling": {"logit_bias": {49152: 1.0}}}),
        ("sampling.logit_bias[4294967295]", {"sampling": {"logit_bias": {4294967295: 1.0}}}),
        ("sampling.logit_bias[1]", {"sampling": {"logit_bias": {1: 1e9}}}),
        ("sampling.allowed_token_ids[1]", {"sampling": {"allowed_token_ids": [5, 99999]}}),
        ("stopping.max_tokens", {"stopping": {"max_tokens": 0}}),
        ("stopping.max_tokens", {"stopping": {"max_tokens": MODEL_LEN}}),
        ("stopping.max_tokens", {"stopping": {"max_tokens": 4294967295}}),
        ("stopping.min_tokens", {"stopping": {"min_tokens": 9}}),
        ("stopping.stop_strings[1]", {"stopping": {"stop_strings": ["a", ""]}}),
        ("stopping.stop_strings", {"stopping": {"stop_strings": ["a"]}, "output": {"text": False}}),
        ("stopping.stop_token_ids[0]", {"stopping": {"stop_token_ids": [77777]}}),
        ("output.top_logprobs", {"output": {"top_logprobs": 21, "logprobs": True}}),
        ("output.top_logprobs", {"output": {"top_logprobs": 1}}),
        ("text", {"text": ""}),
        ("text", {"text": "word " * 2000}),
        ("token_ids.ids", {"text": None, "token_ids": types_pb2.TokenIds()}),
        ("token_ids.ids[1]", {"text": None, "token_ids": types_pb2.TokenIds(ids=[1, 49152])}),
        ("token_ids.ids[0]", {"text": None, "token_ids": types_pb2.TokenIds(ids=[4294967295])}),
        ("chat.messages", {"text": None, "chat": types_pb2.ChatInput()}),
        ("chat.messages[1].role", {"text": None, "chat": types_pb2.ChatInput(
            messages=[types_pb2.ChatMessage(role="user"), types_pb2.ChatMessage(role="bard")])}),
        ("chat.continue_final_message", {"text": None, "chat": chat("a", continue_final_message=True)}),
        ("input", {"text": None}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        ("request_id", {"request_id": "x" * 300}),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(daemon, field, fields):
    for call in (lambda m: daemon.inference.Generate(m), lambda m: list(stream(daemon, m))):
        error = refused(lambda call=call: call(request(**fields)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violated_fields(error) == [field]


def test_all_bad_fields_are_named_at_once(daemon):
    error = refused(
        lambda: daemon.inference.Generate(
            request("", sampling={"temperature": -1, "top_p": 5}, truncate_prompt_tokens=0, stopping={"min_tokens": 99})
        )
    )
    assert sorted(violated_fields(error)) == [
        "sampling.temperature",
        "sampling.top_p",
        "stopping.min_tokens",
        "truncate_prompt_tokens",
    ]


def test_a_hostile_number_of_bad_ids_is_answered(daemon):
    error = refused(
        lambda: daemon.inference.Generate(request(None, token_ids=types_pb2.TokenIds(ids=[4294967295] * 100_000)))
    )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "more" in details(error)["BadRequest"].field_violations[-1].description


def test_what_is_not_implemented_says_so(daemon):
    error = refused(lambda: daemon.inference.Generate(request(sampling={"bad_words": ["x"]})))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert violated_fields(error) == ["sampling.bad_words"]
    error = refused(lambda: daemon.inference.Embed(inference_pb2.EmbedRequest()))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert details(error)["ErrorInfo"].reason == "RPC_NOT_IMPLEMENTED"


def test_a_prompt_that_was_seen_starts_after_its_cached_tokens(daemon):
    text = "Once upon a time there was a fox who wanted to learn to read. " * 4
    asked = request(text=text, cache_salt="seen", max_tokens=8)
    daemon.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    cold = daemon.inference.Generate(asked)
    warm = daemon.inference.Generate(asked)
    assert (cold.prompt.cached_token_count, cold.usage.cached_prompt_tokens) == (0, 0)
    # The prompt ends inside a block that the answer has filled: its head is copied, but for the last token.
    assert (warm.prompt.token_count + 7) // 16 * 16 >= warm.prompt.token_count
    expected = warm.prompt.token_count - 1
    assert (warm.prompt.cached_token_count, warm.usage.cached_prompt_tokens) == (expected, expected)
    assert warm.completions[0].text == cold.completions[0].text
    stats = daemon.admin.GetStats(admin_pb2.GetStatsRequest()).stats
    assert stats.prefix_cache_hits >= expected
    assert stats.kv_blocks_cached >= expected // 16
    assert daemon.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest()).blocks_freed >= expected // 16
    assert daemon.inference.Generate(asked).usage.cached_prompt_tokens == 0


def test_an_unknown_model_is_not_found(daemon):
    for call in (
        lambda: daemon.inference.Generate(request(model="gpt-9")),
        lambda: daemon.inference.Tokenize(inference_pb2.TokenizeRequest(model="gpt-9", text="x")),
        lambda: daemon.inference.Detokenize(inference_pb2.DetokenizeRequest(model="gpt-9")),
        lambda: daemon.models.GetModel(model_pb2.GetModelRequest(name="gpt-9")),
    ):
        error = refused(call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert details(error)["ResourceInfo"].resource_name == "gpt-9"


def test_a_request_id_is_used_once_at_a_time(daemon):
    running = stream(daemon, request(request_id="mine", max_tokens=900))
    assert next(running).start.request_id == "mine"
    error = refused(lambda: daemon.inference.Generate(request(request_id="mine")))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert details(error)["ErrorInfo"].reason == "REQUEST_ID_IN_USE"
    running.cancel()
    daemon.wait_until_idle()
    assert daemon.inference.Generate(request(request_id="mine")).request_id == "mine"


def test_tokenize_and_detokenize(daemon):
    text = "Grüße, 世界! 🦙"
    answer = daemon.inference.Tokenize(inference_pb2.TokenizeRequest(text=text, pieces=True))
    raw = text.encode()
    assert b"".join(piece.token_bytes for piece in answer.pieces) == raw
    assert all(piece.token_bytes in raw[piece.begin : piece.end] for piece in answer.pieces)
    back = daemon.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=answer.token_ids))
    assert back.text == text
    error = refused(lambda: daemon.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[1, 49152])))
    assert violated_fields(error) == ["token_ids[1]"]
    special = daemon.inference.Tokenize(inference_pb2.TokenizeRequest(text="<|im_end|>")).token_ids
    for skip, expected in ((True, ""), (False, "<|im_end|>")):
        message = inference_pb2.DetokenizeRequest(token_ids=special, skip_special_tokens=skip)
        assert daemon.inference.Detokenize(message).text == expected


def test_a_long_prompt_in_one_message(daemon):
    """A message over gRPC's usual 4 MiB is taken, and refused by our own rule."""
    error = refused(lambda: daemon.inference.Generate(request("a" * (6 << 20))))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_fields(error) == ["text"]
