"""The engine in this process: `LLM` for plain code, `AsyncLLM` for code with an event loop.

Both are GenerationService without a transport, so that the same request gives the same tokens here and over gRPC. `LLM`
runs the service on a loop of its own in a thread, and therefore works inside and outside a running loop.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from llmsrv.config import EngineOptions, from_values
from llmsrv.engine import LoadedModel, load_engine
from llmsrv.errors import Code, ServiceError
from llmsrv.params import (
    ChatPrompt,
    Delta,
    GenerationRequest,
    Prompt,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from llmsrv.service import GenerationService

if TYPE_CHECKING:
    from llmsrv.text.tokenizer import Tokenizer

T = TypeVar("T")
Message = Mapping[str, object]
PromptLike = str | Sequence[int]


class LLM:
    """A loaded model. Use it as a context manager, or call close().

    >>> with LLM("smollm2-135m") as llm:
    ...     print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
    """

    def __init__(self, model: str, *, quiet: bool = False, **options: Any) -> None:  # noqa: ANN401
        """Loads `model`; `options` are the fields of EngineOptions, written as for the flags where that is shorter.

        So `kv_cache_memory="4GiB"`, `idle_timeout="10m"`, and `swap_space=4` is GiB. Raises ValueError, OSError or
        TypeError.
        """
        self._begin(_load(model, quiet, options))

    @classmethod
    def from_options(cls, options: EngineOptions, *, quiet: bool = False) -> "LLM":
        """The same from options that are made already."""
        llm = cls.__new__(cls)
        llm._begin(load_engine(options, report=None if quiet else _report))
        return llm

    def _begin(self, model: LoadedModel) -> None:
        self._model = model
        self._thread = _LoopThread()
        self._service = self._thread.run(_start(self._model))
        self._finalizer = weakref.finalize(self, _shut_down, self._thread, self._service)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Completes texts or lists of token ids: one output per prompt, in their order.

        `params` and `priority`: one for all, or one per prompt. A lower priority runs earlier, with the option
        `scheduling_policy="priority"`. Raises ServiceError for the first prompt that fails.
        """
        return self._run_all([_prompt(each) for each in _as_list(prompts)], params, priority, progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answers conversations, rendered with the model's own template: one output each, in their order."""
        prompts = [
            ChatPrompt(messages, template_kwargs or {}, add_generation_prompt, continue_final_message)
            for messages in _conversations(conversations)
        ]
        return self._run_all(prompts, params, priority, progress)

    def stream(
        self, prompt: PromptLike | Sequence[Message], params: SamplingParams | None = None, *, priority: int = 0
    ) -> Iterator[Delta]:
        """Completes one prompt or answers one conversation, piece by piece. Leaving the loop early ends the request."""
        stream = _stream(self._service, _request(_any_prompt(prompt), params, priority))
        try:
            while True:
                delta = self._thread.run(_next(stream))
                if delta is None:
                    return
                yield delta
        finally:
            self._thread.run(stream.aclose())

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer."""
        return self._model.tokenizer

    @property
    def model(self) -> LoadedModel:
        """What is known of the model."""
        return self._model

    def close(self) -> None:
        """Ends what runs and frees the engine. Idempotent."""
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
        progress: bool,
    ) -> list[RequestOutput]:
        every_params = _one_each(len(prompts), SamplingParams() if params is None else params, "SamplingParams")
        priorities = _one_each(len(prompts), priority, "priorities")
        requests = [_request(*each) for each in zip(prompts, every_params, priorities, strict=True)]
        with _bar(len(requests)) if progress else nullcontext(_no_bar) as done:
            return self._thread.run(_run_all(self._service, requests, done))


class AsyncLLM:
    """The same for code that runs on an event loop: `async with await AsyncLLM.load(...) as llm`."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    @classmethod
    async def load(cls, model: str, *, quiet: bool = False, **options: Any) -> "AsyncLLM":  # noqa: ANN401
        """Loads `model` beside the running loop; `options` are the fields of EngineOptions."""
        loaded = await asyncio.to_thread(_load, model, quiet, options)
        return cls(GenerationService(loaded))

    async def generate(
        self, prompt: PromptLike, params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Completes one prompt. Cancelling the task ends the request."""
        return await self._service.generate(_request(_prompt(prompt), params, priority))

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Answers one conversation."""
        return await self._service.generate(_request(ChatPrompt(messages), params, priority))

    def stream(
        self, prompt: PromptLike | Sequence[Message], params: SamplingParams | None = None, *, priority: int = 0
    ) -> AsyncIterator[Delta]:
        """Completes one prompt, or answers one conversation, piece by piece."""
        return _stream(self._service, _request(_any_prompt(prompt), params, priority))

    async def close(self) -> None:
        """Ends what runs and frees the engine. Idempotent."""
        await self._service.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llmsrv-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """Ends the loop and joins the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _shut_down(thread: _LoopThread, service: GenerationService) -> None:
    service.stop_engine()  # here: while the interpreter ends, the loop can start no thread for it
    thread.run(service.close())
    thread.stop()


async def _start(model: LoadedModel) -> GenerationService:
    return GenerationService(model)


def _load(model: str, quiet: bool, options: Mapping[str, Any]) -> LoadedModel:
    given = from_values(EngineOptions, {"model": model, **options})
    return load_engine(given, report=None if quiet else _report)


def _report(line: str) -> None:
    import sys

    print(line, file=sys.stderr, flush=True)


async def _run_all(
    service: GenerationService, requests: Sequence[GenerationRequest], done: Callable[[], None]
) -> list[RequestOutput]:
    # As many in flight as keep the engine busy; the rest waits here, where it costs nothing.
    config = service.model.config
    places = asyncio.Semaphore(min(2 * config.max_num_seqs, config.max_queued_requests))

    async def run(request: GenerationRequest) -> RequestOutput:
        async with places:
            output = await _generate_patiently(service, request)
        done()
        return output

    # Places are given in the order of the tasks: what is urgent must not wait behind what is not.
    by_urgency = sorted(range(len(requests)), key=lambda i: requests[i].priority)
    tasks = {i: asyncio.ensure_future(run(requests[i])) for i in by_urgency}
    try:
        return list(await asyncio.gather(*(tasks[i] for i in range(len(requests)))))
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _generate_patiently(service: GenerationService, request: GenerationRequest) -> RequestOutput:
    """A full queue is no failure for a caller that brings its own list: it waits for a place."""
    while True:
        try:
            return await service.generate(request)
        except ServiceError as error:
            if error.code is not Code.RESOURCE_EXHAUSTED or error.retry_delay_s is None:
                raise
            await asyncio.sleep(error.retry_delay_s)


async def _stream(service: GenerationService, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
    generation = await service.submit(request)
    try:
        async for update in generation:
            for delta in update.deltas:
                yield delta
    finally:
        generation.close()


async def _next(stream: AsyncIterator[Delta]) -> Delta | None:
    async for delta in stream:
        return delta
    return None


def _request(prompt: Prompt, params: SamplingParams | None, priority: int) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, params=params or SamplingParams(), priority=priority)


def _prompt(prompt: PromptLike) -> Prompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(prompt)


def _any_prompt(prompt: PromptLike | Sequence[Message]) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    messages = [each for each in prompt if isinstance(each, Mapping)]
    if messages:
        return ChatPrompt(messages)
    return TokenPrompt([each for each in prompt if isinstance(each, int)])


def _as_list(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    """One prompt is a list of one; a list of numbers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    numbers = [each for each in prompts if isinstance(each, int)]
    if numbers:
        return [numbers]
    return [each for each in prompts if not isinstance(each, int)]


def _conversations(
    conversations: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    messages = [each for each in conversations if isinstance(each, Mapping)]
    if messages:
        return [messages]
    return [each for each in conversations if not isinstance(each, Mapping)]


def _one_each(count: int, value: T | Sequence[T], name: str) -> Sequence[T]:
    """One value for all prompts as one per prompt. REQUIRES: T is no sequence."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{count} prompts need as many {name}, not {len(value)}")
    return value


def _no_bar() -> None:
    """Shows nothing."""


class _Bar(AbstractContextManager[Callable[[], None]]):
    """How many of the prompts are done, on standard error."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True))
        self._task = self._progress.add_task("prompts", total=total)

    def __enter__(self) -> Callable[[], None]:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


_bar = _Bar
