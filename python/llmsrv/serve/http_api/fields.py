"""The bodies of all routes, declared: a field that is not here is refused. Values are checked for their type only;
ranges are the core's.

null means: not set. What OpenAI's API has and we cannot honour stands in NOT_IMPLEMENTED and is refused by name.
"""

import functools
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from llmsrv.errors import Violation

T = TypeVar("T", bound="Fields")
VIOLATIONS_MAX = 64  # a hostile request must not make a megabyte of messages


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a request."""


class StreamOptions(Fields, frozen=True, kw_only=True):
    """How a stream is sent."""

    include_usage: bool = False


class ResponseFormat(Fields, frozen=True, kw_only=True):
    """What the text must be. Only "text" works."""

    type: str


class ContentPart(Fields, frozen=True, kw_only=True):
    """A piece of a message. Only text works."""

    type: str
    text: str = ""


class ChatMessage(Fields, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart]
    name: str = ""
    reasoning_content: str = ""


class GenerationFields(Fields, frozen=True, kw_only=True):
    """What completions and chat completions have in common. The second half is not OpenAI's."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int = 1
    stop: str | list[str] = []
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] = {}
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str = ""  # has no effect: tenants are told apart by cache_salt

    top_k: int | None = None  # -1 and 0 keep all
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    allowed_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None  # keep so many of its last tokens
    time_limit: float | None = None  # seconds from arrival; what is done by then is the answer
    queue_timeout: float | None = None  # seconds that it may wait for a place among those that run
    priority: int = 0
    cache_salt: str = ""
    bypass_prefix_cache: bool = False
    return_token_ids: bool = False
    prompt_logprobs: int | None = None  # alternatives for each position of the prompt


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class CompletionFields(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/completions. A prompt is text or token ids; a list of them is several."""

    prompt: str | list[int | str | list[int]]
    echo: bool = False
    logprobs: int | None = None


class TokenizeFields(Fields, frozen=True, kw_only=True):
    """POST /tokenize: text, or a conversation."""

    model: str = ""
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeFields(Fields, frozen=True, kw_only=True):
    """POST /detokenize."""

    model: str = ""
    tokens: list[int]


NOT_IMPLEMENTED: Mapping[type[Fields], frozenset[str]] = {
    ChatMessage: frozenset({"tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations"}),
    ChatFields: frozenset(
        {
            *("audio", "function_call", "functions", "metadata", "modalities", "moderation", "parallel_tool_calls"),
            *("prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
            *("safety_identifier", "service_tier", "store", "tool_choice", "tools", "verbosity", "web_search_options"),
        }
    ),
    CompletionFields: frozenset({"best_of", "suffix"}),
    StreamOptions: frozenset({"include_obfuscation"}),
    ContentPart: frozenset({"image_url", "input_audio", "file", "refusal"}),
}


def read_fields(kind: type[T], body: Mapping[str, object]) -> tuple[T | None, list[Violation]]:
    """The declared object, and everything that is unknown, missing or of a wrong type.

    Where there are violations, the object has the default instead, for what else there is to find; it is None when
    a required field cannot be read.
    """
    reader = _Reader()
    return reader.read_object(kind, body, ""), reader.violations


class _Reader:
    """Collects what is wrong on the way."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def read_object(self, kind: type[T], given: Mapping[str, object], place: str) -> T | None:
        values = {}
        declared = _declared(kind)
        for each in declared:
            path = f"{place}{each.name}"
            value = given.get(each.name)
            if value is not None:
                found = self._read(each.type, value, path)
                if found is not None:
                    values[each.name] = found
            elif each.required:
                self._add(path, "is required")
        self._refuse_undeclared(kind, given, place)
        complete = all(each.name in values for each in declared if each.required)
        return kind(**values) if complete else None

    def _refuse_undeclared(self, kind: type[Fields], given: Mapping[str, object], place: str) -> None:
        planned = NOT_IMPLEMENTED.get(kind, frozenset())
        for name in sorted(given.keys() - {each.name for each in _declared(kind)}):
            if name not in planned:
                self._add(f"{place}{name[:100]}", "is not a known field")
            elif given[name] is not None:
                self._add(f"{place}{name}", "is not implemented in this version")

    def _read(self, kind: Any, value: object, path: str) -> Any:  # noqa: ANN401
        for option in get_args(kind) if isinstance(kind, UnionType) else (kind,):
            if _is_object(option) and isinstance(value, dict):
                return self.read_object(option, value, f"{path}.")
            if get_origin(option) is list and _is_object(get_args(option)[0]) and isinstance(value, list):
                items = [self._read(get_args(option)[0], each, f"{path}[{i}]") for i, each in enumerate(value)]
                return [each for each in items if each is not None]
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self._add_type_error(path, str(error))
        return None

    def _add_type_error(self, path: str, message: str) -> None:
        """`Expected X, got Y - at $[1]` becomes a violation of path[1]."""
        what, _, inner = message.replace("`", "").partition(" - at ")
        what = what.replace("array", "list").replace(" | null", "")
        self._add(path + "".join(re.findall(r"\[\d+\]", inner)), what[:1].lower() + what[1:])

    def _add(self, field: str, description: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(field, description))


@functools.cache  # it evaluates all annotations
def _declared(kind: type[Fields]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _is_object(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, Fields)
