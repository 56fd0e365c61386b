"""One request from its text to its last token, for every transport: gRPC, HTTP and the LLM class use this and add nothing.

The path: `GenerationService.submit` refuses or prepares (template and tokenizer in a worker thread), the core's gate checks all
limits at once, one pump thread takes the outputs of a step and wakes the loop once, `Generation` detokenizes and merges what
its reader has not taken yet, `Generation.close` aborts what has not ended.

Thread rule: everything here runs on one event loop, except `_prepare` and `_pump`, which touch only what they are given.
Invariant: a key is in `_live` from the core's acceptance until the final output or `close`, whichever is first.
"""

import asyncio
import logging
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from llmsrv.engine import service_error
from llmsrv.errors import Code, Resource, ServiceError, Violation
from llmsrv.params import (
    ChatPrompt,
    Completion,
    Delta,
    Finish,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Prompt,
    PromptInfo,
    SamplingParams,
    TextPrompt,
    Timing,
    TokenLogprob,
    TokenPrompt,
    Update,
    Usage,
)

if TYPE_CHECKING:
    from llmsrv import _core
    from llmsrv.engine import LoadedModel
    from llmsrv.text.detokenizer import IncrementalDetokenizer

logger = logging.getLogger(__name__)

PUMP_WAIT_MS = 100  # how long the pump waits at most before it looks whether it should end
TEXT_WORKERS = 2  # templates and tokenizers run here, never on the loop
STALL_S = 60.0  # a step that takes longer than this while work waits is a stall
RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0
ROLES = ("system", "developer", "user", "assistant", "tool")


class State(Enum):
    """Whether requests are taken. STALLED goes back to SERVING by itself; FAILED and DRAINED never do."""

    STARTING = "starting"
    SERVING = "serving"
    STALLED = "stalled"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids of an input, and the rendered text of a conversation (empty for plain text)."""

    token_ids: Sequence[int]
    rendered_text: str = ""
    offsets: Sequence[tuple[int, int]] = ()  # of each id in the UTF-8 text, if asked for


class _Choice:
    """One sequence of a request: its detokenizer, how far it got, how it ended."""

    def __init__(self, detokenizer: "IncrementalDetokenizer | None") -> None:
        self.detokenizer = detokenizer
        self.token_count = 0
        self.finish: Finish | None = None


class Generation:
    """An accepted request: an async iterator of updates. The caller must call close(), whatever happens.

    A reader that is slow finds everything since its last read merged into one update, so at most one delta per sequence waits.
    """

    def __init__(
        self,
        service: "GenerationService",
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        detokenizers: "Sequence[IncrementalDetokenizer | None]",
    ) -> None:
        self.request_id = request_id
        self.model = service.model.name
        self._service = service
        self._prompt_ids = prompt_ids
        self._params = params
        self._choices = [_Choice(each) for each in detokenizers]
        self._key: int | None = None  # while the core has it
        self._prompt_logprobs = _first_prompt_logprob(prompt_ids) if params.prompt_logprobs else []
        self._pending: dict[int, Delta] = {}
        self._ending: tuple[Usage, Timing] | None = None
        self._error: ServiceError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._started = False
        self._ended = False  # the reader has seen the end or the error
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        """The next update. Raises ServiceError when the request failed; everything delivered before stays valid."""
        if self._ended:
            raise StopAsyncIteration
        while not self._pending and self._ending is None and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._error is not None and not self._pending:
            self._ended = True
            raise self._error
        return self._take()

    def close(self) -> None:
        """Gives up what has not ended; its blocks are free after the next step. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._service._forget(self)

    @property
    def outcome(self) -> str:
        """How the request ended so far: the finish reason of its first sequence, or the name of a status code."""
        if self._error is not None:
            return self._error.code.name
        finish = self._choices[0].finish
        if self._ending is None or finish is None:
            return Code.CANCELLED.name
        return finish.reason.value

    def _take(self) -> Update:
        prompt = None
        if not self._started:
            self._started = True
            cached = self._ending[0].cached_prompt_tokens if self._ending else 0
            prompt = PromptInfo(self._prompt_ids, self._prompt_logprobs, cached)
        deltas, self._pending = list(self._pending.values()), {}
        if self._ending is None:
            return Update(prompt, deltas)
        self._ended = True
        return Update(prompt, deltas, *self._ending)

    def _deliver(self, output: "_core.Output") -> None:
        """Takes one output of the core: detokenizes, looks for stop strings, merges, wakes the reader."""
        if output.error is not None:
            self._fail(service_error(output.error))
            return
        self._prompt_logprobs.extend(_logprob(each) for each in output.prompt_logprobs)
        choice = self._choices[output.index]
        if choice.finish is None:  # later tokens of a sequence that a stop string ended are dropped
            self._advance(choice, output)
        if output.final:
            self._end(output)
        elif all(each.finish is not None for each in self._choices):
            self._service._stop(self)  # stop strings are ours to find: the core would go on
        self._wake()

    def _advance(self, choice: _Choice, output: "_core.Output") -> None:
        token_ids, logprobs = output.token_ids, [_logprob(each) for each in output.logprobs]
        count, finish = len(token_ids), _finish(output.finish)
        if finish is not None and finish.reason is FinishReason.STOP and not self._params.include_stop:
            token_ids, logprobs = token_ids[:-1], logprobs[:-1]
        text = ""
        if choice.detokenizer is not None:
            text = choice.detokenizer.push(token_ids)
            if choice.detokenizer.matched_stop is None and finish is not None:
                text += choice.detokenizer.finish()
            if choice.detokenizer.matched_stop is not None:
                count = choice.detokenizer.tokens_until_stop - choice.token_count
                token_ids, logprobs = token_ids[:count], logprobs[:count]
                finish = Finish(FinishReason.STOP, stop_string=choice.detokenizer.matched_stop)
        if count == 0 and finish is None:
            return
        choice.token_count += count
        choice.finish = finish
        self._merge(Delta(output.index, text, token_ids, logprobs, count, finish))

    def _merge(self, delta: Delta) -> None:
        pending = self._pending.setdefault(delta.index, delta)
        if pending is delta:
            return
        pending.text += delta.text
        pending.token_ids += delta.token_ids
        pending.logprobs += delta.logprobs
        pending.token_count += delta.token_count
        pending.finish = delta.finish

    def _end(self, output: "_core.Output") -> None:
        usage, timing = output.usage, output.timing
        completion_tokens = sum(each.token_count for each in self._choices)
        self._ending = (
            Usage(usage.prompt_tokens, completion_tokens, usage.cached_prompt_tokens),
            Timing(timing.queue_s, timing.prefill_s, timing.decode_s, timing.preemptions),
        )

    def _fail(self, error: ServiceError) -> None:
        if self._ending is None and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done() and (self._pending or self._ending or self._error):
            self._reader.set_result(None)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the worker thread made of a request. With violations, `request` is only good for finding more of them."""

    request: "_core.Request"
    prompt_ids: Sequence[int]
    params: SamplingParams
    detokenizers: "Sequence[IncrementalDetokenizer | None]"
    violations: Sequence[Violation]
    field: str  # of GenerateRequest, where the prompt came from


class GenerationService:
    """Serves one loaded model on one event loop. Knows no transport."""

    def __init__(self, model: "LoadedModel") -> None:
        self.model = model
        self._engine = model.engine
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(TEXT_WORKERS, thread_name_prefix="llmsrv-text")
        self._live: dict[int, Generation] = {}
        self._preparing = 0
        self._open = 0  # submits that have not returned plus generations that are not closed
        self._idle = asyncio.Event()
        self._idle.set()
        self._outcomes: Counter[str] = Counter()
        self._drain_state: State | None = None
        self._failure: str | None = None
        self._seconds_per_request = RETRY_MIN_S
        self._last_end: float | None = None
        self._closing = threading.Event()
        self._pump_thread = threading.Thread(target=self._pump, name="llmsrv-pump", daemon=True)
        self._pump_thread.start()

    # --- requests ---

    async def submit(self, request: GenerationRequest) -> Generation:
        """Accepts a request, or raises ServiceError without having changed anything."""
        self._open += 1
        self._idle.clear()
        try:
            return await self._admit(request)
        except ServiceError as error:
            self._leave(error.code.name)
            raise
        except BaseException:
            self._leave(Code.CANCELLED.name)
            raise

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Runs a request to its end."""
        generation = await self.submit(request)
        try:
            return await collect(generation)
        finally:
            generation.close()

    async def tokenize(
        self, prompt: Prompt, *, model: str = "", add_special_tokens: bool | None = None, offsets: bool = False
    ) -> Tokenized:
        """Token ids of text or a conversation, as `submit` would make them. Raises ServiceError."""
        self.check_model(model)
        return await self._loop.run_in_executor(self._workers, self._tokenize, prompt, add_special_tokens, offsets)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool = True) -> str:
        """Text of token ids. Raises ServiceError."""
        self.check_model(model)
        vocab_size = self.model.vocab_size
        wrong = [i for i, each in enumerate(token_ids) if not 0 <= each < vocab_size]
        if wrong:
            raise ServiceError.invalid(
                [
                    Violation(f"token_ids[{i}]", f"{token_ids[i]} is not in the vocabulary of {vocab_size}")
                    for i in wrong
                ]
            )
        return await self._loop.run_in_executor(
            self._workers, lambda: self.model.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        )

    def abort_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ends requests early; the ids of those that were in flight."""
        return [each for each in request_ids if self._engine.abort_id(each)]

    def abort_all(self) -> list[str]:
        """Ends every request early; the ids of those that were in flight."""
        return self._engine.abort_all()

    # --- state ---

    @property
    def state(self) -> State:
        """Whether requests are taken, and why not."""
        stats = self._engine.stats()
        if self._failure is None and not stats.healthy:
            self._failure = stats.failure
        if self._failure is not None:
            return State.FAILED
        if self._drain_state is not None:
            return self._drain_state
        busy = stats.running + stats.waiting > 0
        return State.STALLED if busy and stats.seconds_since_progress > STALL_S else State.SERVING

    @property
    def failure(self) -> str | None:
        """Why the engine failed."""
        return self._failure

    @property
    def in_flight(self) -> int:
        """Requests whose callers have not seen the end yet."""
        return self._open

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Requests by outcome since start: the finish reason of the first sequence, or a status code's name."""
        return self._outcomes

    def stats(self) -> "_core.EngineStats":
        """One sample of the engine."""
        return self._engine.stats()

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, waits for those in flight, aborts what is left after `timeout_s`."""
        self._drain_state = State.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            aborted = self._engine.abort_all()
            logger.warning("drain timeout: %d requests aborted", len(aborted))
            # What was aborted ends within a step; a reader that does not read is left to the transport.
            for generation in list(self._live.values()):
                if generation._reader is None:
                    generation.close()
            try:
                await asyncio.wait_for(self._idle.wait(), 2.0)
            except asyncio.TimeoutError:
                logger.warning("drain timeout: %d callers did not read their last message", self._open)
        self._drain_state = State.DRAINED

    async def close(self) -> None:
        """Ends everything in flight as aborted and stops all threads. Idempotent."""
        if self._closing.is_set():
            return
        if self._drain_state is None:
            self._drain_state = State.DRAINING
        self._closing.set()
        await self._loop.run_in_executor(self._workers, self._engine.shutdown)
        await self._loop.run_in_executor(self._workers, self._pump_thread.join)
        self._drain_state = State.DRAINED
        self._workers.shutdown(wait=False)

    # --- admission ---

    async def _admit(self, request: GenerationRequest) -> Generation:
        self._refuse_unless_serving()
        self.check_model(request.model)
        if self._preparing >= self.model.config.max_queued_requests:
            raise ServiceError(
                Code.RESOURCE_EXHAUSTED, "too many prompts wait for the tokenizer", retry_delay_s=self._retry_delay()
            )
        request_id = request.request_id or f"req-{secrets.token_hex(8)}"
        self._preparing += 1
        try:
            prepared = await self._loop.run_in_executor(self._workers, self._prepare, request, request_id)
        finally:
            self._preparing -= 1
        self._refuse_unless_serving()
        return self._enter(request_id, prepared)

    def _enter(self, request_id: str, prepared: _Prepared) -> Generation:
        """Hands a prepared request to the core. No await here: no output can be delivered before the key is known."""
        if prepared.violations:
            more = [_in_request(each, prepared.field) for each in self._engine.validate(prepared.request)]
            known = {each.field for each in prepared.violations}
            raise ServiceError.invalid([*prepared.violations, *(each for each in more if each.field not in known)])
        try:
            key = self._engine.submit(prepared.request)
        except ServiceError as error:
            if error.code is Code.INVALID_ARGUMENT:
                raise ServiceError.invalid([_in_request(each, prepared.field) for each in error.violations]) from None
            if error.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE):
                error.retry_delay_s = self._retry_delay()
            raise
        generation = Generation(self, request_id, prepared.prompt_ids, prepared.params, prepared.detokenizers)
        generation._key = key
        self._live[key] = generation
        return generation

    def _refuse_unless_serving(self) -> None:
        if self._failure is not None:
            raise ServiceError(Code.UNAVAILABLE, f"the engine failed: {self._failure}", reason="ENGINE_FAILED")
        if self._drain_state is not None:
            raise ServiceError(Code.UNAVAILABLE, "the server is shutting down", reason="DRAINING", retry_delay_s=1.0)

    def check_model(self, name: str) -> None:
        """Raises NOT_FOUND for a name that is not served. Empty means the served model."""
        if name and name != self.model.name:
            raise ServiceError(
                Code.NOT_FOUND,
                f"model {name!r} is not served here; served: {self.model.name!r}",
                resource=Resource("model", name),
            )

    def _retry_delay(self) -> float:
        """Time until a place in the queue should be free: what waits, at the recent rate of endings."""
        waiting = self._engine.stats().waiting + self._preparing
        return min(max(waiting * self._seconds_per_request * 0.5, RETRY_MIN_S), RETRY_MAX_S)

    # --- worker threads ---

    def _prepare(self, request: GenerationRequest, request_id: str) -> _Prepared:
        violations: list[Violation] = []
        prompt_ids: Sequence[int] = ()
        params = self.model.resolve(request.params)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        try:
            prompt_ids = self._tokenize(request.prompt, None).token_ids
        except ServiceError as error:
            if error.code is not Code.INVALID_ARGUMENT:
                raise
            violations += error.violations
        if request.truncate_prompt_tokens is not None:
            if request.truncate_prompt_tokens < 1:
                violations.append(Violation("truncate_prompt_tokens", "must be at least 1"))
            else:
                prompt_ids = prompt_ids[-request.truncate_prompt_tokens :]
        if params.stop_strings and not params.text:
            violations.append(Violation("stopping.stop_strings", "need output.text: they are found in the text"))
        field = _prompt_field(request.prompt)
        if not prompt_ids and not violations:
            violations.append(Violation(field, "the prompt has no tokens"))
        # A prompt that could not be made stands for nothing: one token lets the core check all other fields.
        engine_request, too_wide = self._engine.build(request_id, prompt_ids or (0,), params)
        violations += [_in_request(each, field) for each in too_wide]
        detokenizers = [] if violations else self._detokenizers(prompt_ids, params)
        return _Prepared(engine_request, prompt_ids, params, detokenizers, violations, field)

    def _tokenize(self, prompt: Prompt, add_special_tokens: bool | None, offsets: bool = False) -> Tokenized:
        if isinstance(prompt, TokenPrompt):
            return Tokenized(list(prompt.token_ids))
        rendered = ""
        if isinstance(prompt, ChatPrompt):
            text = rendered = self._render(prompt)
            special = False  # the template has put in what it wants
        else:
            text, special = prompt.text, add_special_tokens is not False
        tokenizer = self.model.tokenizer
        try:
            if offsets:
                ids, places = tokenizer.encode_with_offsets(text, add_special_tokens=special)
                return Tokenized(ids, rendered, places)
            return Tokenized(tokenizer.encode(text, add_special_tokens=special), rendered)
        except ValueError as error:
            raise ServiceError.invalid([Violation(_prompt_field(prompt), str(error))]) from None

    def _render(self, chat: ChatPrompt) -> str:
        template = self.model.chat_template
        if template is None:
            raise ServiceError(Code.UNIMPLEMENTED, "this model has no chat template", reason="NO_CHAT_TEMPLATE")
        violations = _chat_violations(chat)
        if violations:
            raise ServiceError.invalid(violations)
        opens = chat.add_generation_prompt
        try:
            return template.render(
                [dict(message) for message in chat.messages],
                add_generation_prompt=not chat.continue_final_message if opens is None else opens,
                continue_final_message=chat.continue_final_message,
                **chat.template_kwargs,
            )
        except ValueError as error:
            raise ServiceError.invalid([Violation("chat", str(error))]) from None

    def _detokenizers(self, prompt_ids: Sequence[int], params: SamplingParams) -> "list[IncrementalDetokenizer | None]":
        """One per sequence; none for an `n` that the core is about to refuse."""
        n = params.n if 1 <= params.n <= self.model.config.max_choices else 0
        if not params.text:
            return [None] * n
        from llmsrv.text.detokenizer import IncrementalDetokenizer

        return [
            IncrementalDetokenizer(
                self.model.tokenizer,
                prompt_ids,
                skip_special_tokens=params.skip_special_tokens,
                stop_strings=params.stop_strings,
                include_stop=params.include_stop,
            )
            for _ in range(n)
        ]

    def _pump(self) -> None:
        """The only thread that waits inside the core: one wake-up of the loop for all outputs of a step."""
        while True:
            closing = self._closing.is_set()
            outputs = self._engine.wait_outputs(PUMP_WAIT_MS)
            if outputs:
                self._loop.call_soon_threadsafe(self._deliver, outputs)
            elif closing:
                return

    # --- outputs ---

    def _deliver(self, outputs: "Sequence[_core.Output]") -> None:
        for output in outputs:
            generation = self._live.get(output.request)
            if generation is None:
                continue  # its reader left; the core is told already
            try:
                generation._deliver(output)
            except Exception:  # one request's text must not hurt the others
                logger.exception("request %s: detokenizing failed", generation.request_id)
                self._engine.abort(output.request)
                generation._fail(ServiceError(Code.INTERNAL, "detokenizing failed", reason="DETOKENIZER_FAILED"))
            if output.final:
                del self._live[output.request]
                generation._key = None

    def _stop(self, generation: Generation) -> None:
        if generation._key is not None:
            self._engine.stop(generation._key)

    def _forget(self, generation: Generation) -> None:
        if generation._key is not None:
            self._engine.abort(generation._key)
            self._live.pop(generation._key, None)
            generation._key = None
        self._leave(generation.outcome)

    def _leave(self, outcome: str) -> None:
        self._outcomes[outcome] += 1
        now = self._loop.time()
        if self._last_end is not None:
            gap = min(now - self._last_end, RETRY_MAX_S)
            self._seconds_per_request += 0.1 * (gap - self._seconds_per_request)
        self._last_end = now
        self._open -= 1
        if self._open == 0:
            self._idle.set()


async def collect(generation: Generation) -> GenerationResult:
    """The whole answer of a generation. The caller closes it."""
    merged: dict[int, Delta] = {}
    prompt: PromptInfo | None = None
    async for update in generation:
        prompt = update.prompt or prompt
        for delta in update.deltas:
            known = merged.setdefault(delta.index, delta)
            if known is not delta:
                known.text += delta.text
                known.token_ids += delta.token_ids
                known.logprobs += delta.logprobs
                known.finish = delta.finish
        if update.usage is not None and update.timing is not None and prompt is not None:
            completions = [
                Completion(each.index, each.text, each.token_ids, each.logprobs, each.finish)
                for each in sorted(merged.values(), key=lambda delta: delta.index)
                if each.finish is not None
            ]
            prompt = replace(prompt, cached_token_count=update.usage.cached_prompt_tokens)
            return GenerationResult(
                generation.request_id, generation.model, prompt, completions, update.usage, update.timing
            )
    raise ServiceError(Code.INTERNAL, "the generation ended without a final update")


def _prompt_field(prompt: Prompt) -> str:
    if isinstance(prompt, TextPrompt):
        return "text"
    return "token_ids.ids" if isinstance(prompt, TokenPrompt) else "chat.messages"


def _in_request(violation: Violation, prompt_field: str) -> Violation:
    """The core knows the prompt as input.token_ids only: names the field that the client has set instead."""
    field = violation.field
    if field.startswith("input.token_ids"):
        place = field.removeprefix("input.token_ids")
        return replace(violation, field=prompt_field + place if prompt_field == "token_ids.ids" else prompt_field)
    return replace(violation, field=prompt_field) if field == "input" else violation


def _chat_violations(chat: ChatPrompt) -> list[Violation]:
    violations = []
    if not chat.messages:
        violations.append(Violation("chat.messages", "must not be empty"))
    for i, message in enumerate(chat.messages):
        if message.get("role") not in ROLES:
            violations.append(Violation(f"chat.messages[{i}].role", f"must be one of {', '.join(ROLES)}"))
    if chat.continue_final_message and chat.messages and chat.messages[-1].get("role") != "assistant":
        violations.append(Violation("chat.continue_final_message", "needs an assistant message at the end"))
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & set(chat.template_kwargs)
    violations += [Violation(f"chat.template_kwargs.{each}", "is not an extra variable") for each in sorted(reserved)]
    if chat.continue_final_message and chat.add_generation_prompt:
        violations.append(Violation("chat.add_generation_prompt", "contradicts continue_final_message"))
    return violations


def _finish(finish: "_core.Finish | None") -> Finish | None:
    if finish is None:
        return None
    reason = FinishReason(finish.reason)
    if reason is not FinishReason.STOP:
        return Finish(reason)
    if finish.stopped_by_eos:
        return Finish(reason, eos_token_id=finish.stop_token)
    return Finish(reason, stop_token_id=finish.stop_token)


def _logprob(entry: "_core.TokenLogprob") -> TokenLogprob:
    return TokenLogprob(entry.token_id, entry.logprob, entry.rank, tuple(entry.top))


def _first_prompt_logprob(prompt_ids: Sequence[int]) -> list[TokenLogprob]:
    """The first position has no distribution before it; the core's list begins with the second."""
    return [TokenLogprob(prompt_ids[0], None, 0)]
