"""/openapi.json: made of the routes and of the same declarations that validate the bodies, so that it cannot say
anything else.

No state, no I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

import llmsrv
from llmsrv.serve.auth import OPEN_PATHS
from llmsrv.serve.http_api import answer_fields as answers
from llmsrv.serve.http_api.fields import (
    NOT_IMPLEMENTED,
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    Fields,
    TokenizeFields,
)
from llmsrv.service import ROLES, TEMPLATE_OWN

SCHEMAS = "#/components/schemas/"
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"

REFUSED = {
    400: "The body is not JSON, or has fields that are unknown, ill-typed or out of range: all of them are named.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is not application/json.",
}
FULL = {429: "Too many requests wait, or the key's limits are used up; `retry-after` says when to come again."}
UNKNOWN = {401: "A key is needed, or the one that was sent is none.", 403: "The key does not allow it.", **FULL}
FAILED = {500: "A bug.", 503: "The model is loading, or the server is shutting down or has failed."}
LATE = {504: "The deadline has passed."}
TWICE = {409: "The x-request-id is that of a request in flight."}
DEAD = "The server cannot do that now."

# What is checked beyond the type, by the field's name; tests/e2e/test_openapi.py tries both sides of each. What depends
# on the model or on the daemon's flags is not here.
RULES: Mapping[str, Mapping[str, Any]] = {
    "role": {"enum": list(ROLES)},
    "type": {"const": "text"},
    "chat_template_kwargs": {"propertyNames": {"not": {"enum": sorted(TEMPLATE_OWN)}}},
    "logit_bias": {
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,19})$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "stop": {"minLength": 1, "maxItems": 64},
    "stop_token_ids": {"maxItems": 1024},
    "truncate_prompt_tokens": {"minimum": 1},
    "time_limit": {"exclusiveMinimum": 0},
    "queue_timeout": {"exclusiveMinimum": 0},
    "max_tokens": {"minimum": 1},
    "max_completion_tokens": {"minimum": 1},
    "temperature": {"minimum": 0},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "n": {"minimum": 1},
    "seed": {"minimum": 0, "maximum": 2**64 - 1},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "top_k": {"minimum": -1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"exclusiveMinimum": 0},
    "min_tokens": {"minimum": 0},
    "logprobs": {"minimum": 0},
    "top_logprobs": {"minimum": 0},
    "prompt_logprobs": {"minimum": 0},
}

Schema = dict[str, Any]

REQUEST_ID: Schema = {
    "name": "x-request-id",
    "in": "header",
    "description": "What the answer, the log and Abort call the request.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What a path takes and gives, beyond its methods."""

    summary: str
    body: type[Fields] | None = None
    answer: type[answers.AnswerFields] | None = None  # None: plain text
    event: type[answers.AnswerFields] | None = None  # of a stream
    failures: Mapping[int, str]
    failed: type[answers.AnswerFields] = answers.ErrorAnswer


OPERATIONS: Mapping[str, Operation] = {
    "/v1/models": Operation(summary="List the models.", answer=answers.ModelList, failures=FAILED),
    "/v1/models/{name}": Operation(
        summary="Tell of one model.", answer=answers.Model, failures={404: REFUSED[404], **FAILED}
    ),
    "/v1/chat/completions": Operation(
        summary="Continue a conversation.",
        body=ChatFields,
        answer=answers.ChatCompletion,
        event=answers.ChatCompletionChunk,
        failures={**REFUSED, **TWICE, **FAILED, **LATE},
    ),
    "/v1/completions": Operation(
        summary="Continue text or token ids.",
        body=CompletionFields,
        answer=answers.Completion,
        event=answers.CompletionChunk,
        failures={**REFUSED, **TWICE, **FAILED, **LATE},
    ),
    "/tokenize": Operation(
        summary="Text or a conversation to token ids.",
        body=TokenizeFields,
        answer=answers.Tokenized,
        failures={**REFUSED, **FAILED},
    ),
    "/detokenize": Operation(
        summary="Token ids to text.", body=DetokenizeFields, answer=answers.Detokenized, failures={**REFUSED, **FAILED}
    ),
    "/health": Operation(
        summary="Live: the engine steps, is idle, or is being loaded.",
        answer=answers.ServerState,
        failures={503: DEAD},
        failed=answers.ServerState,
    ),
    "/ready": Operation(
        summary="Takes requests.", answer=answers.ServerState, failures={503: DEAD}, failed=answers.ServerState
    ),
    "/version": Operation(summary="Which llmsrv this is.", answer=answers.Version, failures={}),
    "/metrics": Operation(summary="Counters, for Prometheus.", failures=FAILED),
}


def document(routes: Iterable[BaseRoute]) -> Schema:
    """The description of these routes, in OpenAPI 3.1. Those that are no part of the schema are left out."""
    shown = [each for each in routes if isinstance(each, Route) and each.include_in_schema]
    paths = {_path(each): _path_item(each) for each in shown}
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmsrv", "version": llmsrv.__version__, "description": "OpenAI's API, and probes."},
        "paths": paths,
        "components": {
            "schemas": _schemas(OPERATIONS[path] for path in paths),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _path(route: Route) -> str:
    return route.path.replace(":path}", "}")


def _path_item(route: Route) -> Schema:
    path = _path(route)
    operation = OPERATIONS[path]
    methods = sorted((route.methods or set()) - {"HEAD"})
    names = route.param_convertors
    made: Schema = {
        each.lower(): _operation(operation, f"{route.name}_{each.lower()}", path not in OPEN_PATHS) for each in methods
    }
    if names:
        made["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for each in names
        ]
    return made


def _operation(operation: Operation, name: str, guarded: bool) -> Schema:
    content: Schema = {TEXT: {"schema": {"type": "string"}}}
    if operation.answer is not None:
        content = {JSON: {"schema": _reference(operation.answer)}}
    if operation.event is not None:
        content[EVENTS] = {"x-event-schema": _reference(operation.event)}  # OpenAPI 3.1 has no word for it
    responses: Schema = {"200": {"description": "Done.", "content": content}}
    failures = {**operation.failures, **(UNKNOWN if guarded else {})}
    for status, text in sorted(failures.items()):
        responses[str(status)] = {
            "description": text,
            "content": {JSON: {"schema": _reference(operation.failed)}},
        }
    made: Schema = {"operationId": name, "summary": operation.summary, "responses": responses}
    if operation.event is not None:
        made["parameters"] = [REQUEST_ID]
    if guarded:
        made["security"] = [{}, {"key": []}]  # where the server has keys
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(operation.body)}}}
    return made


def _reference(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": SCHEMAS + kind.__name__}


def _schemas(operations: Iterable[Operation]) -> Schema:
    kinds = {
        kind for each in operations for kind in (each.body, each.answer, each.event, each.failed) if kind is not None
    }
    in_order = sorted(kinds, key=lambda kind: kind.__name__)
    _, made = msgspec.json.schema_components(in_order, ref_template=SCHEMAS + "{name}")
    for kind in _all_fields(Fields):
        if kind.__name__ in made:
            _as_it_is_read(kind, made[kind.__name__])
    return dict(made)


def _all_fields(kind: type[Fields]) -> set[type[Fields]]:
    return {kind}.union(*(_all_fields(each) for each in kind.__subclasses__()))


def _as_it_is_read(kind: type[Fields], schema: Schema) -> None:
    """A body's object as read_fields() reads it: null is not set, what is not declared is refused."""
    required = schema["required"]
    for name, field in schema["properties"].items():
        for option in field.get("anyOf", [field]):
            if option.get("type") not in ("null", "boolean"):
                option.update(RULES.get(name, {}))
        if name not in required and not _takes_null(field):
            default = {"default": field.pop("default")} if "default" in field else {}
            options = field.pop("anyOf", None) or [dict(field)]
            field.clear()
            field.update({"anyOf": [*options, {"type": "null"}], **default})
    for name in sorted(NOT_IMPLEMENTED.get(kind, ())):
        schema["properties"][name] = {"type": "null", "description": "Not implemented in this version."}
    schema["additionalProperties"] = False


def _takes_null(field: Schema) -> bool:
    return any(each.get("type") == "null" for each in field.get("anyOf", ()))
