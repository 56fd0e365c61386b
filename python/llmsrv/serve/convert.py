"""Between the messages of llmsrv.v1 and the service's own values. No state, no I/O.

A field that this version cannot honour is refused with its path, also one that only a newer client knows. Which
fields those are stands in NOT_IMPLEMENTED; tests/unit/test_every_field.py walks all fields of all requests and finds
each honoured or refused. Paths start inside GenerateRequest, in a stream too, so that a client's handling of them does
not depend on the RPC.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from llmsrv.errors import ServiceError, Violation
from llmsrv.generation import Coalescing
from llmsrv.params import (
    ChatPrompt,
    Completion,
    Delta,
    Finish,
    FinishReason,
    GenerationRequest,
    PromptInfo,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    Timing,
    TokenLogprob,
    TokenPrompt,
    Update,
    Usage,
)
from llmsrv.v1 import admin_pb2, inference_pb2, types_pb2

NOT_IMPLEMENTED = (
    "sampling.bad_words",
    "structured_output",
    "chat.messages.tool_calls",
    "chat.messages.tool_call_id",
    "chat.tools",
    "chat.tool_choice",
)
NOT_IMPLEMENTED_TOKENIZE = tuple(path for path in NOT_IMPLEMENTED if path.startswith("chat."))

COALESCE_DELAY_MAX_S = 60.0

_REASONS = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.TIME_LIMIT: types_pb2.FINISH_REASON_TIME_LIMIT,
    FinishReason.ABORTED: types_pb2.FINISH_REASON_ABORTED,
}

TokenBytes = Callable[[int], bytes]


# --- requests ---


def generation_request(message: inference_pb2.GenerateRequest) -> GenerationRequest:
    """The service's request. Raises ServiceError for a field that cannot be honoured or a missing prompt."""
    refuse_unknown(message)
    _refuse_set(message, NOT_IMPLEMENTED)
    return GenerationRequest(
        prompt=TokenPrompt(message.token_ids.ids) if message.HasField("token_ids") else _text_or_chat(message),
        params=_params(message.sampling, message.stopping, message.output),
        model=message.model,
        request_id=message.request_id,
        truncate_prompt_tokens=_optional(message, "truncate_prompt_tokens"),
        cache_salt=message.cache_salt,
        bypass_prefix_cache=message.bypass_prefix_cache,
        priority=message.priority,
        queue_timeout_s=_seconds(message, "queue_timeout"),
    )


def stream_request(message: inference_pb2.GenerateStreamRequest) -> GenerationRequest:
    """The same for a stream."""
    refuse_unknown(message)
    return generation_request(message.request)


def coalescing(options: inference_pb2.StreamOptions) -> Coalescing | None:
    """How the stream is cut; None where each step is sent. Raises INVALID_ARGUMENT."""
    delay_s = _seconds(options, "max_coalesce_delay") or 0.0
    violations = []
    if not 0 <= delay_s <= COALESCE_DELAY_MAX_S:
        violations.append(Violation("stream.max_coalesce_delay", f"must be in 0..{COALESCE_DELAY_MAX_S:g} s"))
    if options.max_coalesce_tokens and delay_s == 0:
        violations.append(Violation("stream.max_coalesce_tokens", "needs max_coalesce_delay: nothing is held without"))
    if violations:
        raise ServiceError.invalid(violations)
    return Coalescing(delay_s, options.max_coalesce_tokens or None) if delay_s else None


def tokenize_prompt(message: inference_pb2.TokenizeRequest) -> TextPrompt | ChatPrompt:
    """What to tokenize. Raises ServiceError as above."""
    refuse_unknown(message)
    _refuse_set(message, NOT_IMPLEMENTED_TOKENIZE)
    prompt = _text_or_chat(message)
    if isinstance(prompt, ChatPrompt) and message.HasField("add_special_tokens"):
        raise ServiceError.invalid(
            [Violation("add_special_tokens", "is for text: a conversation has the template's special tokens only")]
        )
    return prompt


def drain_timeout(message: admin_pb2.DrainRequest) -> float | None:
    """Seconds, or None for no limit. Raises ServiceError as above."""
    refuse_unknown(message)
    timeout_s = _seconds(message, "timeout")
    if timeout_s is not None and timeout_s < 0:
        raise ServiceError.invalid([Violation("timeout", "must not be negative")])
    return timeout_s


def _text_or_chat(
    message: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest,
) -> TextPrompt | ChatPrompt:
    kind = message.WhichOneof("input")
    if kind is None:
        raise ServiceError.invalid([Violation("input", "one of its fields must be set")])
    return TextPrompt(message.text) if kind == "text" else _chat(message.chat)


def _chat(chat: types_pb2.ChatInput) -> ChatPrompt:
    return ChatPrompt(
        messages=[_chat_message(each) for each in chat.messages],
        template_kwargs=_template_kwargs(chat),
        add_generation_prompt=_optional(chat, "add_generation_prompt"),
        continue_final_message=chat.continue_final_message,
    )


def _chat_message(message: types_pb2.ChatMessage) -> dict[str, object]:
    """In the form that chat templates expect: a key that has nothing to say is absent."""
    fields: dict[str, object] = {"role": message.role, "content": message.content}
    if message.name:
        fields["name"] = message.name
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    return fields


def _template_kwargs(chat: types_pb2.ChatInput) -> dict[str, object]:
    if not chat.HasField("template_kwargs"):
        return {}
    kwargs = _whole_numbers(json_format.MessageToDict(chat.template_kwargs))
    return kwargs if isinstance(kwargs, dict) else {}


def _whole_numbers(value: object) -> object:
    """A Struct holds doubles only; a template that prints 512 must not print 512.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return value


def _params(
    sampling: types_pb2.SamplingParams, stopping: types_pb2.StoppingParams, output: types_pb2.OutputOptions
) -> SamplingParams:
    n, min_tokens = _optional(sampling, "n"), _optional(stopping, "min_tokens")
    text, skip_special = _optional(output, "text"), _optional(output, "skip_special_tokens")
    return SamplingParams(
        temperature=_optional(sampling, "temperature"),
        top_p=_optional(sampling, "top_p"),
        top_k=_optional(sampling, "top_k"),
        min_p=_optional(sampling, "min_p"),
        frequency_penalty=_optional(sampling, "frequency_penalty"),
        presence_penalty=_optional(sampling, "presence_penalty"),
        repetition_penalty=_optional(sampling, "repetition_penalty"),
        seed=_optional(sampling, "seed"),
        n=1 if n is None else n,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed_token_ids,
        max_tokens=_optional(stopping, "max_tokens"),
        min_tokens=0 if min_tokens is None else min_tokens,
        stop=tuple(stopping.stop_strings),
        stop_token_ids=stopping.stop_token_ids,
        ignore_eos=stopping.ignore_eos,
        include_stop=stopping.include_stop,
        time_limit_s=_seconds(stopping, "time_limit"),
        text=True if text is None else text,
        skip_special_tokens=True if skip_special is None else skip_special,
        logprobs=output.logprobs,
        top_logprobs=output.top_logprobs,
        prompt_logprobs=output.prompt_logprobs,
    )


def _optional(message: Message, field: str) -> Any:  # noqa: ANN401
    return getattr(message, field) if message.HasField(field) else None


def _seconds(message: Message, field: str) -> float | None:
    """A Duration in seconds, whatever its sign: the core's gate says which are too short."""
    length = _optional(message, field)
    return None if length is None else length.seconds + length.nanos * 1e-9


def _refuse_set(message: Message, paths: Sequence[str]) -> None:
    found = [place for path in paths for place in _places(message, path.split("."))]
    if found:
        raise ServiceError.not_implemented(found)


def _places(message: Message, path: list[str]) -> Iterator[str]:
    """Where `path` is set in `message`: none, one, or one per element of a list on the way."""
    name, rest = path[0], path[1:]
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if field.is_repeated:
        if not rest:
            yield from [name] if value else []
            return
        for i, each in enumerate(value):
            yield from (f"{name}[{i}].{place}" for place in _places(each, rest))
    elif rest:
        if message.HasField(name):
            yield from (f"{name}.{place}" for place in _places(value, rest))
    elif message.HasField(name) if field.has_presence else value:
        yield name


def refuse_unknown(message: Message) -> None:
    """Raises ServiceError when a newer client set a field that this version does not know."""
    found = list(_unknown_fields(message, ""))
    if found:
        raise ServiceError.not_implemented(found)


def refuse_unknown_here(message: Message) -> None:
    """The same for the message's own fields only: what is in it is checked item by item."""
    found = list(_unknown_own(message, ""))
    if found:
        raise ServiceError.not_implemented(found)


def _unknown_own(message: Message, prefix: str) -> Iterator[str]:
    unknown = UnknownFieldSet(message)
    yield from (f"{prefix}{unknown[i].field_number}" for i in range(len(unknown)))


def _unknown_fields(message: Message, prefix: str) -> Iterator[str]:
    yield from _unknown_own(message, prefix)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            for i, each in enumerate(value):
                yield from _unknown_fields(each, f"{prefix}{field.name}[{i}].")
        else:
            yield from _unknown_fields(value, f"{prefix}{field.name}.")


# --- answers ---


def generate_response(
    result: RequestOutput, asked: types_pb2.OutputOptions, token_bytes: TokenBytes
) -> inference_pb2.GenerateResponse:
    """The answer of the unary RPC."""
    return inference_pb2.GenerateResponse(
        request_id=result.request_id,
        model=result.model,
        prompt=_prompt_info(result.prompt, asked, token_bytes),
        completions=[_completion(each, asked, token_bytes) for each in result.completions],
        usage=_usage(result.usage),
        timing=_timing(result.timing),
    )


def stream_response(
    update: Update, request_id: str, model: str, asked: types_pb2.OutputOptions, token_bytes: TokenBytes
) -> inference_pb2.GenerateStreamResponse:
    """One message of a stream."""
    message = inference_pb2.GenerateStreamResponse(deltas=[_delta(each, asked, token_bytes) for each in update.deltas])
    if update.prompt is not None:
        message.start.request_id = request_id
        message.start.model = model
        message.start.prompt.CopyFrom(_prompt_info(update.prompt, asked, token_bytes))
    if update.usage is not None and update.timing is not None:
        message.end.usage.CopyFrom(_usage(update.usage))
        message.end.timing.CopyFrom(_timing(update.timing))
    return message


def sampling_params(params: SamplingParams) -> types_pb2.SamplingParams:
    """Default sampling parameters as a client would send them."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
        n=params.n,
    )


def duration(seconds: float) -> Duration:
    """Seconds as a Duration, rounded to nanoseconds."""
    whole, nanos = divmod(round(seconds * 1e9), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def _delta(delta: Delta, asked: types_pb2.OutputOptions, token_bytes: TokenBytes) -> inference_pb2.OutputDelta:
    message = inference_pb2.OutputDelta(index=delta.index, text=delta.text, token_count=delta.token_count)
    if asked.token_ids:
        message.token_ids.extend(delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(_logprob(each, token_bytes) for each in delta.logprobs)
    if delta.finish is not None:
        message.finish.CopyFrom(_finish(delta.finish))
    return message


def _completion(
    completion: Completion, asked: types_pb2.OutputOptions, token_bytes: TokenBytes
) -> inference_pb2.Completion:
    return inference_pb2.Completion(
        index=completion.index,
        text=completion.text,
        token_ids=completion.token_ids if asked.token_ids else (),
        logprobs=[_logprob(each, token_bytes) for each in completion.logprobs],
        finish=_finish(completion.finish),
    )


def _prompt_info(info: PromptInfo, asked: types_pb2.OutputOptions, token_bytes: TokenBytes) -> inference_pb2.PromptInfo:
    return inference_pb2.PromptInfo(
        token_count=len(info.token_ids),
        cached_token_count=info.cached_token_count,
        token_ids=info.token_ids if asked.prompt_token_ids else (),
        logprobs=[_logprob(each, token_bytes) for each in info.logprobs],
    )


def _logprob(entry: TokenLogprob, token_bytes: TokenBytes) -> types_pb2.TokenLogprob:
    return types_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        rank=entry.rank,
        token_bytes=token_bytes(entry.token_id),
        top=[
            types_pb2.TokenLogprob(token_id=token_id, logprob=logprob, rank=rank, token_bytes=token_bytes(token_id))
            for rank, (token_id, logprob) in enumerate(entry.top, 1)
        ],
    )


def _finish(finish: Finish) -> types_pb2.Finish:
    return types_pb2.Finish(
        reason=_REASONS[finish.reason],
        eos_token_id=finish.eos_token_id,
        stop_token_id=finish.stop_token_id,
        stop_string=finish.stop_string,
    )


def _usage(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
    )


def _timing(timing: Timing) -> types_pb2.Timing:
    return types_pb2.Timing(
        queue=duration(timing.queue_s),
        prefill=duration(timing.prefill_s),
        decode=duration(timing.decode_s),
        preemptions=timing.preemptions,
    )
