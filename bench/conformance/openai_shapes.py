"""Holds answers to OpenAI's published shapes: the types of its own Python package, strictly, and to what /openapi.json
says of them.

Strictly: no value is converted to the type that is wanted, and a field that OpenAI's types do not know must be one of
DOCUMENTED.
"""

import json
from functools import cache

import msgspec
import pydantic
from openai import types
from openai.types import chat, completion_choice

from llmsrv.serve.http_api import answer_fields

# By the name of the type: the extensions that the README of http_api lists.
DOCUMENTED = {
    "ChatCompletion": {"prompt_token_ids", "prompt_logprobs"},
    "Choice": {"token_ids"},
    "ChatCompletionChunk": {"prompt_token_ids"},
    "TextChoice": {"token_ids", "prompt_token_ids", "prompt_logprobs"},
    "TextChunkChoice": {"token_ids", "prompt_token_ids"},
    "Model": {"max_model_len"},
}


# Where OpenAI's own answers are wider than the package's types: the prompt's first token, which echo shows, has no
# log-probability, and a chunk before the last one has no finish reason.


class TextLogprobs(completion_choice.Logprobs):
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class TextChoice(types.CompletionChoice):
    logprobs: TextLogprobs | None


class TextChunkChoice(TextChoice):
    finish_reason: str | None


class Text(types.Completion):
    choices: list[TextChoice]


class TextChunk(types.Completion):
    choices: list[TextChunkChoice]


class ModelList(pydantic.BaseModel, extra="allow"):
    data: list[types.Model]
    object: str


KINDS = {
    "chat.completion": (chat.ChatCompletion, answer_fields.ChatCompletion),
    "chat.completion.chunk": (chat.ChatCompletionChunk, answer_fields.ChatCompletionChunk),
    "text_completion": (Text, answer_fields.Completion),
    "text_completion.chunk": (TextChunk, answer_fields.CompletionChunk),
    "model": (types.Model, answer_fields.Model),
    "list": (ModelList, answer_fields.ModelList),
}


class WrongShape(Exception):
    """What an answer has, or has not."""


def check_answer(body, *, in_stream=False):
    """The answer's object. Raises WrongShape."""
    try:
        data = json.loads(body)
        name = data["object"] if not in_stream or data["object"].endswith(".chunk") else f"{data['object']}.chunk"
        theirs, ours = KINDS[name]
        made = _adapter(theirs).validate_json(body, strict=True)
        msgspec.json.decode(body, type=ours, strict=True)
    except (ValueError, KeyError, TypeError, pydantic.ValidationError, msgspec.ValidationError) as error:
        raise WrongShape(f"{error!r} in {body[:500]!r}") from error
    _refuse_undocumented(made)
    return data


def check_stream(body):
    """The objects of a stream's events. Raises WrongShape."""
    *events, end = body.split(b"\n\n")
    if end or not events or not all(each.startswith(b"data: ") for each in events):
        raise WrongShape(f"no events, or something else between them: {body[:500]!r}")
    *chunks, done = [each.removeprefix(b"data: ") for each in events]
    if done != b"[DONE]":
        raise WrongShape(f"the last event is {done[:500]!r}")
    made = [check_answer(each, in_stream=True) for each in chunks]
    heads = {(each["id"], each["created"], each["model"]) for each in made}
    if len(heads) != 1:
        raise WrongShape(f"the events are not of one answer: {heads}")
    return made


def _refuse_undocumented(made):
    unknown = set(made.model_extra or ()) - DOCUMENTED.get(type(made).__name__, set())
    if unknown:
        raise WrongShape(f"{type(made).__name__} has {sorted(unknown)}")
    for value in vars(made).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, pydantic.BaseModel):
                _refuse_undocumented(each)


@cache
def _adapter(kind):
    return pydantic.TypeAdapter(kind)
