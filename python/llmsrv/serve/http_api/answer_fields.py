"""The answers of all routes, declared: what /openapi.json says of them. A field that is UNSET here stands in an answer
only where it was asked for.

The answers themselves are made in answers.py, where each chunk counts; the tests hold every kind of them to these.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length", "abort"]


class AnswerFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of an answer."""


class PromptTokensDetails(AnswerFields, frozen=True, kw_only=True):
    """What was spared of the prompt."""

    cached_tokens: int


class Usage(AnswerFields, frozen=True, kw_only=True):
    """What a request cost, all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TokenLogprob(AnswerFields, frozen=True, kw_only=True):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(AnswerFields, frozen=True, kw_only=True):
    """A token of the text, and what else was likely in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(AnswerFields, frozen=True, kw_only=True):
    """Those of a chat choice."""

    content: list[ChatTokenLogprob]
    refusal: None


class TextLogprobs(AnswerFields, frozen=True, kw_only=True):
    """Those of a completion's choice: one entry per token in each list. null at the first position of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(AnswerFields, frozen=True, kw_only=True):
    """One token of a prompt, or one that could have stood there."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # by token id; null at the first position


class AssistantMessage(AnswerFields, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(AnswerFields, frozen=True, kw_only=True):
    """One of the n."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(AnswerFields, frozen=True, kw_only=True):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class MessageDelta(AnswerFields, frozen=True, kw_only=True):
    """What a message gained: first its role, then text, at the end nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(AnswerFields, frozen=True, kw_only=True):
    """What one of the n gained."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(AnswerFields, frozen=True, kw_only=True):
    """An event of a chat completion's stream. The one with the usage has no choice, the others have one."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextChoice(AnswerFields, frozen=True, kw_only=True):
    """One of the n of one of the prompts."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(AnswerFields, frozen=True, kw_only=True):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class TextChunkChoice(AnswerFields, frozen=True, kw_only=True):
    """What one of the n of one of the prompts gained."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(AnswerFields, frozen=True, kw_only=True):
    """An event of a completion's stream. The one with the usage has no choice, the others have one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(AnswerFields, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(AnswerFields, frozen=True, kw_only=True):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(AnswerFields, frozen=True, kw_only=True):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(AnswerFields, frozen=True, kw_only=True):
    """The answer of POST /detokenize."""

    prompt: str


class ServerState(AnswerFields, frozen=True, kw_only=True):
    """What the server does."""

    state: str


class Version(AnswerFields, frozen=True, kw_only=True):
    """Which llmsrv this is."""

    version: str
    commit: str  # empty when the build did not know it


class Error(AnswerFields, frozen=True, kw_only=True):
    """Why a request failed."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(AnswerFields, frozen=True, kw_only=True):
    """Every answer whose status is not 200."""

    error: Error
