"""Messages and values. That no field is ignored is in test_every_field.py."""

import pytest
from fakes import ByteTokenizer

from llmsrv.errors import ServiceError
from llmsrv.params import (
    ChatPrompt,
    Completion,
    Delta,
    Finish,
    FinishReason,
    PromptInfo,
    RequestOutput,
    TextPrompt,
    Timing,
    TokenLogprob,
    TokenPrompt,
    Update,
    Usage,
)
from llmsrv.serve import convert
from llmsrv.v1 import inference_pb2, types_pb2


def test_refused_fields_are_named_together_with_their_places():
    message = inference_pb2.GenerateRequest(
        chat=types_pb2.ChatInput(
            messages=[types_pb2.ChatMessage(role="user"), types_pb2.ChatMessage(role="tool", tool_call_id="1")]
        ),
        structured_output=types_pb2.StructuredOutput(regex="x"),
        sampling=types_pb2.SamplingParams(bad_words=["x"]),
    )
    with pytest.raises(ServiceError) as refusal:
        convert.generation_request(message)
    assert {each.field for each in refusal.value.violations} == {
        "chat.messages[1].tool_call_id",
        "structured_output",
        "sampling.bad_words",
    }


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b"\xf8\x06\x01", "111"),  # field 111 of GenerateRequest
        (b"\x32\x03\xf8\x06\x01", "sampling.111"),  # field 111 of SamplingParams
    ],
)
def test_a_field_of_a_newer_client_is_refused(payload, field):
    message = inference_pb2.GenerateRequest(text="hello")
    message.MergeFromString(payload)
    with pytest.raises(ServiceError) as refusal:
        convert.generation_request(message)
    assert [each.field for each in refusal.value.violations] == [field]


def test_unset_and_zero_differ():
    unset = convert.generation_request(inference_pb2.GenerateRequest(text="a")).params
    assert (unset.temperature, unset.seed, unset.max_tokens, unset.n, unset.text) == (None, None, None, 1, True)
    zero = convert.generation_request(
        inference_pb2.GenerateRequest(
            text="a",
            sampling=types_pb2.SamplingParams(temperature=0, seed=0, n=0),
            stopping=types_pb2.StoppingParams(max_tokens=0),
            output=types_pb2.OutputOptions(text=False),
        )
    ).params
    assert (zero.temperature, zero.seed, zero.max_tokens, zero.n, zero.text) == (0.0, 0, 0, 0, False)


def test_times_are_seconds_and_unset_is_none():
    message = inference_pb2.GenerateRequest(text="a", priority=-(1 << 31))
    request = convert.generation_request(message)
    assert (request.priority, request.queue_timeout_s, request.params.time_limit_s) == (-(1 << 31), None, None)
    message.queue_timeout.FromMilliseconds(2500)
    message.stopping.time_limit.FromMilliseconds(-1500)  # the core's gate refuses it, with everything else
    request = convert.generation_request(message)
    assert (request.queue_timeout_s, request.params.time_limit_s) == (2.5, -1.5)
    message.queue_timeout.FromMilliseconds(0)
    assert convert.generation_request(message).queue_timeout_s == 0.0


def test_every_finish_reason_has_its_number():
    for reason in FinishReason:
        delta = Delta(0, finish=Finish(reason))
        (message,) = convert.stream_response(
            Update(None, [delta]), "r", "m", types_pb2.OutputOptions(), TOKEN_BYTES
        ).deltas
        assert types_pb2.FinishReason.Name(message.finish.reason) == f"FINISH_REASON_{reason.name}"


def test_prompts():
    request = inference_pb2.GenerateRequest
    assert convert.generation_request(request(text="")).prompt == TextPrompt("")
    token_prompt = convert.generation_request(request(token_ids=types_pb2.TokenIds(ids=[1, 2]))).prompt
    assert isinstance(token_prompt, TokenPrompt)
    assert list(token_prompt.token_ids) == [1, 2]
    chat = types_pb2.ChatInput(
        messages=[types_pb2.ChatMessage(role="user", content="hi", name="n", reasoning="r")],
        continue_final_message=True,
    )
    chat.template_kwargs.update({"budget": 512, "share": 0.5, "deep": {"list": [1, True, "x"]}})
    prompt = convert.generation_request(request(chat=chat)).prompt
    assert prompt == ChatPrompt(
        [{"role": "user", "content": "hi", "name": "n", "reasoning_content": "r"}],
        {"budget": 512, "share": 0.5, "deep": {"list": [1, True, "x"]}},
        None,
        True,
    )
    assert "512.0" not in str(prompt.template_kwargs)


def test_no_prompt_is_an_error():
    with pytest.raises(ServiceError) as refusal:
        convert.generation_request(inference_pb2.GenerateRequest())
    assert [each.field for each in refusal.value.violations] == ["input"]


LOGPROB = TokenLogprob(0x41, -0.5, 2, ((0x42, -0.25), (0x41, -0.5)))
TOKEN_BYTES = ByteTokenizer().token_bytes


def test_an_answer_has_what_was_asked_for_and_no_more():
    result = RequestOutput(
        request_id="r",
        model="m",
        prompt=PromptInfo([1, 2, 3], [TokenLogprob(1, None, 0), LOGPROB, LOGPROB], 2),
        completions=[Completion(0, "A", [0x41], [LOGPROB], Finish(FinishReason.STOP, stop_string="x"))],
        usage=Usage(3, 1, 2),
        timing=Timing(0.5, 1.25, 2.0, 1),
    )
    plain = convert.generate_response(result, types_pb2.OutputOptions(), TOKEN_BYTES)
    assert (plain.prompt.token_count, plain.prompt.cached_token_count, list(plain.prompt.token_ids)) == (3, 2, [])
    assert list(plain.completions[0].token_ids) == []
    assert plain.completions[0].finish.stop_string == "x"
    assert plain.timing.prefill.ToMilliseconds() == 1250
    asked = types_pb2.OutputOptions(token_ids=True, prompt_token_ids=True)
    full = convert.generate_response(result, asked, TOKEN_BYTES)
    assert list(full.completions[0].token_ids) == [0x41]
    assert list(full.prompt.token_ids) == [1, 2, 3]
    assert not full.prompt.logprobs[0].HasField("logprob")
    (entry,) = full.completions[0].logprobs
    assert (entry.logprob, entry.rank, entry.token_bytes) == (-0.5, 2, b"A")
    assert [(each.token_id, each.rank, each.token_bytes) for each in entry.top] == [(0x42, 1, b"B"), (0x41, 2, b"A")]


def test_parts_of_a_stream_ride_together():
    update = Update(
        PromptInfo([1]),
        [Delta(0, "x", [1], [], 1, Finish(FinishReason.LENGTH))],
        Usage(1, 1),
        Timing(0, 0, 0, 0),
    )
    message = convert.stream_response(update, "r", "m", types_pb2.OutputOptions(), TOKEN_BYTES)
    assert message.start.request_id == "r"
    assert message.deltas[0].finish.reason == types_pb2.FINISH_REASON_LENGTH
    assert message.end.usage.completion_tokens == 1
    middle = convert.stream_response(Update(None, update.deltas), "r", "m", types_pb2.OutputOptions(), TOKEN_BYTES)
    assert not middle.HasField("start")
    assert not middle.HasField("end")
