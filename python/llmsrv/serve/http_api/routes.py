"""What each path does. A handler returns a response or raises ServiceError; nothing else leaves."""

import asyncio
import functools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import llmsrv
from llmsrv.commit import built_commit
from llmsrv.errors import ServiceError, Violation
from llmsrv.serve.http_api import convert
from llmsrv.serve.http_api.answers import Answer, ChatAnswer, ChatStream, TextAnswer
from llmsrv.serve.http_api.body import read_object
from llmsrv.serve.http_api.convert import Asked
from llmsrv.serve.http_api.dashboard import page
from llmsrv.serve.http_api.errors import Refusal, error_response, refusal_response
from llmsrv.serve.http_api.exposition import CONTENT_TYPE, exposition
from llmsrv.serve.http_api.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    GenerationFields,
    TokenizeFields,
    read_fields,
)
from llmsrv.serve.http_api.openapi import document
from llmsrv.serve.http_api.prompts import Prompts, prompt_name
from llmsrv.serve.http_api.stats import stats
from llmsrv.serve.http_api.stream import ClientGone, EventStream, unless_gone
from llmsrv.serve.listener import Listener
from llmsrv.serve.origins import HttpOrigin
from llmsrv.serve.status import internal_error
from llmsrv.service import GenerationService, State

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
CLIENT_CLOSED_REQUEST = 499  # nobody reads it
DEAD_STATES = (State.STALLED, State.FAILED)

F = TypeVar("F", bound=GenerationFields)
Handler = Callable[[Any, Request], Awaitable[Response]]


def api(listener: Listener, middleware: Sequence[Middleware] = (), *, vllm_names: bool = False) -> Starlette:
    """The application. `middleware`: what a request passes before it comes to its route, the outermost first.
    `vllm_names`: of /metrics."""
    handlers = _Handlers(listener, vllm_names)
    routes = [
        Route("/v1/models", handlers.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", handlers.get_model, methods=["GET"]),
        Route("/v1/chat/completions", handlers.chat, methods=["POST"]),
        Route("/v1/completions", handlers.complete, methods=["POST"]),
        Route("/tokenize", handlers.tokenize, methods=["POST"]),
        Route("/detokenize", handlers.detokenize, methods=["POST"]),
        Route("/health", handlers.health, methods=["GET"]),
        Route("/ready", handlers.ready, methods=["GET"]),
        Route("/version", handlers.version, methods=["GET"]),
        Route("/metrics", handlers.metrics, methods=["GET"]),
        Route("/openapi.json", handlers.openapi, methods=["GET"], include_in_schema=False),
        # For people; what the second says changes as the first one needs.
        Route("/", handlers.dashboard, methods=["GET"], include_in_schema=False),
        Route("/stats", handlers.stats, methods=["GET"], include_in_schema=False),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(HttpOrigin, listener.call_errors), *middleware],
        exception_handlers={HTTPException: _no_route, Exception: _bug},
    )
    app.router.redirect_slashes = False
    return app


def _handler(handler: Handler) -> Handler:
    """Turns a handler's failure into an answer, and a bug into 500 without a traceback."""

    @functools.wraps(handler)
    async def wrapped(self: Any, request: Request) -> Response:  # noqa: ANN401
        try:
            return await handler(self, request)
        except ServiceError as error:
            return error_response(error)
        except Refusal as refusal:
            return refusal_response(refusal)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception:
            logger.exception("%s failed", handler.__name__)
            return error_response(internal_error())

    return wrapped


async def _no_route(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    path = request.url.path[:200]
    if status == 405:
        refusal = Refusal(status, f"{path} does not take {request.method}", "method_not_allowed")
    else:
        refusal = Refusal(status, f"there is nothing at {path}", "not_found")
    return refusal_response(refusal, getattr(error, "headers", None))


async def _bug(request: Request, error: Exception) -> Response:
    """What no handler has caught. The server logs it."""
    return error_response(internal_error())


class _Handlers:
    def __init__(self, listener: Listener, vllm_names: bool) -> None:
        self._listener = listener
        self._vllm_names = vllm_names
        self._created = int(time.time())

    # --- generation ---

    @_handler
    async def chat(self, request: Request) -> Response:
        asked = await self._asked(request, ChatFields, convert.chat_request)
        kind = ChatStream if asked.stream else ChatAnswer
        answer = kind(self._answer_id(request, "chatcmpl", asked), *self._answering(asked))
        return await self._answered(request, answer)

    @_handler
    async def complete(self, request: Request) -> Response:
        asked = await self._asked(request, CompletionFields, convert.completion_request)
        answer = TextAnswer(self._answer_id(request, "cmpl", asked), *self._answering(asked))
        return await self._answered(request, answer)

    async def _asked(
        self, request: Request, kind: type[F], convert_fields: Callable[[F, list[Violation]], Asked]
    ) -> Asked:
        """What the body asks for. Raises with everything that is wrong with it, the service's reasons included."""
        service = self._listener.service
        fields: F | None = None
        try:
            fields, violations = read_fields(kind, await read_object(request))
            asked = None if fields is None else convert_fields(fields, violations)
            if violations or asked is None:
                raise await self._refused(asked, violations)
        except ServiceError as error:
            service.count_refusal(error, "" if fields is None else fields.model)
            raise
        return asked

    def _answering(self, asked: Asked) -> tuple[str, Asked, Callable[[int], bytes]]:
        """What an answer is made of: its model's name, what is asked for, and bytes of tokens."""
        model = self._listener.service.of(asked.model).model
        return model.name, asked, model.tokenizer.token_bytes

    def _answer_id(self, request: Request, kind: str, asked: Asked) -> str:
        """The client's own, or a new one: what it is called in logs and by Abort, too."""
        given = request.headers.get(REQUEST_ID)
        if given is None:
            return f"{kind}-{secrets.token_hex(12)}"
        if not re.fullmatch(r"[!-~]{1,200}", given):
            error = ServiceError.invalid([Violation(REQUEST_ID, "must be 1 to 200 visible ASCII characters")])
            self._listener.service.count_refusal(error, asked.model)
            raise error
        return given

    async def _refused(self, asked: Asked | None, violations: list[Violation]) -> ServiceError:
        """Everything that is wrong with a body: what stands in `violations`, and what the service finds elsewhere."""
        if asked is not None and asked.requests:
            found = ServiceError.invalid(await self._listener.service.violations(asked.requests[0]))
            named = [each.field for each in violations]
            words = convert.in_client_words(found, asked.field_names, prompt_name(asked, 0))
            violations += [each for each in words.violations if not _is_named(each.field, named)]
        return ServiceError.invalid(violations)

    async def _answered(self, request: Request, answer: Answer) -> Response:
        service = self._listener.service.of(answer.asked.model)
        if answer.asked.stream:
            return await unless_gone(request.receive, _stream(service, answer))
        body = await unless_gone(request.receive, _whole(service, answer))
        return Response(body, headers={REQUEST_ID: answer.id}, media_type="application/json")

    # --- models ---

    @_handler
    async def list_models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model(each) for each in self._listener.service.services]})

    @_handler
    async def get_model(self, request: Request) -> Response:
        return _json(self._model(self._listener.service.named(request.path_params["name"])))

    def _model(self, service: GenerationService) -> dict[str, object]:
        return {
            "id": service.model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "llmsrv",
            "max_model_len": service.model.max_model_len,
        }

    # --- text ---

    @_handler
    async def tokenize(self, request: Request) -> Response:
        service = self._listener.service
        fields, violations = read_fields(TokenizeFields, await read_object(request))
        prompt = None if fields is None else convert.tokenize_prompt(fields, violations)
        if fields is None or prompt is None or violations:
            raise ServiceError.invalid(violations)
        try:
            tokenized = await service.tokenize(prompt, model=fields.model, add_special_tokens=fields.add_special_tokens)
        except ServiceError as error:
            raise convert.in_client_words(error, {}, "prompt") from None
        answer: dict[str, object] = {
            "count": len(tokenized.token_ids),
            "max_model_len": service.of(fields.model).model.max_model_len,
            "tokens": list(tokenized.token_ids),
        }
        if fields.return_token_strs:
            token_bytes = service.of(fields.model).model.tokenizer.token_bytes
            answer["token_strs"] = [token_bytes(each).decode("utf-8", "replace") for each in tokenized.token_ids]
        return _json(answer)

    @_handler
    async def detokenize(self, request: Request) -> Response:
        fields, violations = read_fields(DetokenizeFields, await read_object(request))
        if fields is None or violations:
            raise ServiceError.invalid(violations)
        try:
            text = await self._listener.service.detokenize(fields.tokens, model=fields.model, skip_special_tokens=False)
        except ServiceError as error:
            raise convert.in_client_words(error, {"token_ids": "tokens"}, "tokens") from None
        return _json({"prompt": text})

    # --- state ---

    @_handler
    async def health(self, request: Request) -> Response:
        """Live: the engine steps, is idle, or is being loaded."""
        state = self._listener.state
        return _json({"state": state.value}, 503 if state in DEAD_STATES else 200)

    @_handler
    async def ready(self, request: Request) -> Response:
        """Takes requests."""
        state = self._listener.state
        return _json({"state": state.value}, 200 if state is State.SERVING else 503)

    @_handler
    async def version(self, request: Request) -> Response:
        return _json({"version": llmsrv.__version__, "commit": built_commit()})

    @_handler
    async def metrics(self, request: Request) -> Response:
        service, errors = self._listener.service, self._listener.call_errors
        text = exposition(service.services, errors.counts, vllm_names=self._vllm_names)
        return Response(text, media_type=CONTENT_TYPE)

    @_handler
    async def dashboard(self, request: Request) -> Response:
        return page()

    @_handler
    async def stats(self, request: Request) -> Response:
        return _json(stats(self._listener))

    @_handler
    async def openapi(self, request: Request) -> Response:
        return _json(document(request.app.routes))


async def _stream(service: GenerationService, answer: Answer) -> EventStream:
    """A stream whose first update is there: until then a failure has a status of its own."""
    prompts = Prompts(service, answer.asked, answer.id)
    try:
        await _begin(service, answer, prompts)
        updates = prompts.updates()
        return EventStream(answer, prompts, await updates.__anext__(), updates)
    except BaseException:
        prompts.close()
        raise


async def _whole(service: GenerationService, answer: Answer) -> bytes:
    prompts = Prompts(service, answer.asked, answer.id)
    try:
        await _begin(service, answer, prompts)
        outputs = await prompts.outputs()
    finally:
        prompts.close()
    asked = answer.asked
    if asked.logprobs is None and asked.prompt_logprobs is None:
        return answer.whole(outputs)
    return await asyncio.to_thread(answer.whole, outputs)  # maybe many thousand records: built beside the loop


async def _begin(service: GenerationService, answer: Answer, prompts: Prompts) -> None:
    await prompts.begin()
    answer.echoed = [await _text_of(service, each) for each in answer.asked.echo]


async def _text_of(service: GenerationService, prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else await service.detokenize(prompt, skip_special_tokens=False)


def _is_named(field: str, named: Sequence[str]) -> bool:
    """Whether the field, a part of it or the whole that it is a part of is among those named."""
    return any(field.startswith(each) or each.startswith(field) for each in named)


def _json(body: dict[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
