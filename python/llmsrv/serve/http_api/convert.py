"""From the declared bodies to the service's requests, and from its names of fields back to the client's.

No state, no I/O.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmsrv.errors import ServiceError, Violation
from llmsrv.params import ChatPrompt, GenerationRequest, Prompt, SamplingParams, TextPrompt, TokenPrompt
from llmsrv.serve.http_api.fields import (
    ChatFields,
    ChatMessage,
    CompletionFields,
    GenerationFields,
    TokenizeFields,
)

COMPLETION_MAX_TOKENS = 16  # what OpenAI's API takes where max_tokens is not set
PROMPTS_MAX = 1024
TEMPLATE_DEPTH_MAX = 32
# Where the client's name of a service's field is not its last part.
CLIENT_NAMES = {
    "stop_strings": "stop",
    "include_stop": "include_stop_str_in_output",
    "template_kwargs": "chat_template_kwargs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asks for: one request per prompt, and what of their results the answer has."""

    model: str
    requests: Sequence[GenerationRequest]
    choices_each: int
    stream: bool
    include_usage: bool
    token_ids: bool
    logprobs: int | None  # alternatives per token; None for no log-probabilities at all
    prompt_logprobs: int | None
    echo: Sequence[str | Sequence[int]] = ()  # the prompts, to be repeated in front of the text
    field_names: Mapping[str, str]  # beyond CLIENT_NAMES


def chat_request(fields: ChatFields, violations: list[Violation]) -> Asked:
    """The service's request for a chat completion. Adds what contradicts itself or is not implemented."""
    violations += [*_stream_violations(fields), *_chat_violations(fields)]
    limit, limit_name = fields.max_tokens, "max_tokens"
    if fields.max_completion_tokens is not None:
        if limit is not None:
            violations.append(Violation("max_completion_tokens", "contradicts max_tokens: set one of them"))
        limit, limit_name = fields.max_completion_tokens, "max_completion_tokens"
    if fields.top_logprobs is not None and not fields.logprobs:
        violations.append(Violation("top_logprobs", "needs logprobs"))
    alternatives = (fields.top_logprobs or 0) if fields.logprobs else None
    params = _params(fields, limit, alternatives, violations)
    return Asked(
        model=fields.model,
        requests=[_request(fields, _chat_prompt(fields), params)],
        choices_each=fields.n,
        stream=fields.stream,
        include_usage=_include_usage(fields),
        token_ids=fields.return_token_ids,
        logprobs=alternatives,
        prompt_logprobs=fields.prompt_logprobs,
        field_names={"max_tokens": limit_name, **_alternatives_name(fields, alternatives, "top_logprobs")},
    )


def completion_request(fields: CompletionFields, violations: list[Violation]) -> Asked:
    """The service's requests for a completion, one per prompt. Adds as above."""
    violations += _stream_violations(fields)
    if fields.echo and fields.truncate_prompt_tokens is not None:
        violations.append(Violation("truncate_prompt_tokens", "cannot be combined with echo"))
    prompts = list(_prompts(fields.prompt, violations))
    limit = COMPLETION_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    params = _params(fields, limit, fields.logprobs, violations)
    if fields.echo and fields.logprobs is not None:
        params = replace(params, prompt_logprobs=True)
    return Asked(
        model=fields.model,
        requests=[_request(fields, each, params) for each in prompts],
        choices_each=fields.n,
        stream=fields.stream,
        include_usage=_include_usage(fields),
        token_ids=fields.return_token_ids,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        echo=[each.text if isinstance(each, TextPrompt) else each.token_ids for each in prompts] if fields.echo else (),
        field_names=_alternatives_name(fields, fields.logprobs, "logprobs"),
    )


def tokenize_prompt(fields: TokenizeFields, violations: list[Violation]) -> TextPrompt | ChatPrompt:
    """What to tokenize. Adds as above."""
    if (fields.prompt is None) == (fields.messages is None):
        violations.append(Violation("prompt", "one of prompt and messages must be set"))
    if fields.prompt is not None:
        violations += [Violation(name, "is for a conversation") for name in _chat_only(fields)]
        return TextPrompt(fields.prompt)
    violations += _message_violations(fields)
    if fields.add_special_tokens is not None:
        violations.append(Violation("add_special_tokens", "is for text: a conversation has the template's only"))
    return _chat_prompt(fields)


def _chat_only(fields: TokenizeFields) -> Iterator[str]:
    """Which fields are set that mean nothing for text."""
    if fields.add_generation_prompt is not None:
        yield "add_generation_prompt"
    if fields.continue_final_message:
        yield "continue_final_message"
    if fields.chat_template_kwargs:
        yield "chat_template_kwargs"


def in_client_words(error: ServiceError, names: Mapping[str, str], prompt: str) -> ServiceError:
    """The error with the fields as the client has written them. `prompt`: what it calls the prompt of this request."""
    if not error.violations:
        return error
    violations = [replace(each, field=_client_field(each.field, names, prompt)) for each in error.violations]
    message = "; ".join(f"{each.field}: {each.description}" for each in violations)
    return ServiceError(
        error.code,
        message,
        violations=violations,
        reason=error.reason,
        metadata=error.metadata,
        resource=error.resource,
        retry_delay_s=error.retry_delay_s,
    )


def _client_field(field: str, names: Mapping[str, str], prompt: str) -> str:
    if field in ("text", "token_ids.ids") or field.startswith("token_ids.ids["):
        return prompt + field.removeprefix("text").removeprefix("token_ids.ids")
    bare = re.sub(r"^(sampling|stopping|output|chat)\.", "", field)
    head = re.split(r"\W", bare, maxsplit=1)[0]
    return {**CLIENT_NAMES, **names}.get(head, head) + bare[len(head) :]


def _request(fields: GenerationFields, prompt: Prompt, params: SamplingParams) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        params=params,
        model=fields.model,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        cache_salt=fields.cache_salt,
        bypass_prefix_cache=fields.bypass_prefix_cache,
        priority=fields.priority,
        queue_timeout_s=fields.queue_timeout,
    )


def _params(
    fields: GenerationFields, max_tokens: int | None, alternatives: int | None, violations: list[Violation]
) -> SamplingParams:
    """`alternatives`: for each generated token, None without log-probabilities."""
    if fields.prompt_logprobs is not None and fields.prompt_logprobs < 0:
        violations.append(Violation("prompt_logprobs", "must not be negative"))
    top_logprobs = alternatives or 0
    if top_logprobs >= 0:
        top_logprobs = max(top_logprobs, fields.prompt_logprobs or 0)
    return SamplingParams(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=0 if fields.top_k == -1 else fields.top_k,
        min_p=fields.min_p,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        repetition_penalty=fields.repetition_penalty,
        seed=fields.seed,
        n=fields.n,
        logit_bias=_logit_bias(fields.logit_bias, violations),
        allowed_token_ids=fields.allowed_token_ids,
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        stop=fields.stop if isinstance(fields.stop, str) else tuple(fields.stop),
        stop_token_ids=fields.stop_token_ids,
        ignore_eos=fields.ignore_eos,
        time_limit_s=fields.time_limit,
        include_stop=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=alternatives is not None,
        top_logprobs=top_logprobs,
        prompt_logprobs=fields.prompt_logprobs is not None,
    )


def _alternatives_name(fields: GenerationFields, alternatives: int | None, name: str) -> dict[str, str]:
    """What the client calls the larger one of the two counts of which the core knows the maximum."""
    return {"top_logprobs": "prompt_logprobs" if (fields.prompt_logprobs or 0) > (alternatives or 0) else name}


def _logit_bias(given: Mapping[str, float], violations: list[Violation]) -> dict[int, float]:
    biases = {}
    for key, bias in given.items():
        if re.fullmatch(r"-?(0|[1-9][0-9]{0,19})", key, re.ASCII):
            biases[int(key)] = bias
        else:
            violations.append(Violation(f"logit_bias[{key[:100]}]", "the key is not a token id"))
    return biases


def _stream_violations(fields: GenerationFields) -> Iterator[Violation]:
    if fields.stream_options is not None and not fields.stream:
        yield Violation("stream_options", "needs stream")
    if fields.prompt_logprobs is not None and fields.stream:
        yield Violation("prompt_logprobs", "cannot be combined with stream")


def _include_usage(fields: GenerationFields) -> bool:
    return fields.stream_options is not None and fields.stream_options.include_usage


def _prompts(
    given: str | Sequence[int | str | Sequence[int]], violations: list[Violation]
) -> Iterator[TextPrompt | TokenPrompt]:
    if isinstance(given, str):
        yield TextPrompt(given)
        return
    ids = [each for each in given if isinstance(each, int)]
    if len(ids) == len(given):
        yield TokenPrompt(ids)
    elif ids:
        violations.append(Violation("prompt", "mixes token ids with prompts"))
    elif len(given) > PROMPTS_MAX:
        violations.append(Violation("prompt", f"holds {len(given)} prompts; at most {PROMPTS_MAX} are allowed"))
    else:
        for each in given:
            if not isinstance(each, int):
                yield TextPrompt(each) if isinstance(each, str) else TokenPrompt(each)


def _chat_violations(fields: ChatFields) -> Iterator[Violation]:
    yield from _message_violations(fields)
    if fields.response_format is not None and fields.response_format.type != "text":
        yield Violation("response_format.type", 'only "text" is implemented in this version')


def _message_violations(fields: ChatFields | TokenizeFields) -> Iterator[Violation]:
    for i, message in enumerate(fields.messages or ()):
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type != "text":
                yield Violation(f"messages[{i}].content[{j}].type", 'only "text" is implemented in this version')
    if _depth(fields.chat_template_kwargs) > TEMPLATE_DEPTH_MAX:
        yield Violation("chat_template_kwargs", f"is nested more than {TEMPLATE_DEPTH_MAX} deep")


def _depth(value: object) -> int:
    """How deep lists and objects are nested."""
    depth, level = 0, [value]
    while level:
        inner = [
            list(each.values()) if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
        ]
        level = [each for part in inner for each in part]
        depth += bool(inner)
    return depth


def _chat_prompt(fields: ChatFields | TokenizeFields) -> ChatPrompt:
    return ChatPrompt(
        messages=[_chat_message(each) for each in fields.messages or ()],
        template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )


def _chat_message(message: ChatMessage) -> dict[str, object]:
    """In the form that chat templates expect: a key that has nothing to say is absent. Parts are joined by newlines."""
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    made: dict[str, object] = {"role": message.role, "content": text}
    if message.name:
        made["name"] = message.name
    if message.reasoning_content:
        made["reasoning_content"] = message.reasoning_content
    return made
