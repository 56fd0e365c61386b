"""One request from its text to its last token, for every transport: gRPC, HTTP and the LLM class add nothing to it.

The path: `submit` refuses or prepares (template and tokenizer in a worker thread), the core's gate checks all limits at
once, one pump thread takes the outputs of a step and wakes the loop once, `Generation` makes text of them and merges
what its reader has not taken yet, `Generation.close` ends what has not ended.

Thread rule: everything here runs on one event loop, except `_pump` and `_prepare`, `_tokenize` and what they call.
Invariant: a key is in `_live` from the core's acceptance until its final output or close(), whichever is first.
"""

import asyncio
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from llmsrv.caller import CALL, Admission, Call
from llmsrv.engine import service_error
from llmsrv.errors import Code, Resource, ServiceError, Violation
from llmsrv.generation import Generation, SequenceText, collect, departure
from llmsrv.latencies import Latencies
from llmsrv.params import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from llmsrv.records import Arrival, RequestRecord, excerpt, outcome_of

if TYPE_CHECKING:
    from llmsrv import _core
    from llmsrv.engine import LoadedModel

logger = logging.getLogger(__name__)

PUMP_WAIT_MS = 10_000  # at most; the end of the engine ends the wait at once
TEXT_WORKERS = 2
STALL_S = 60.0  # work that waits for longer than this without a step is a stall
ABORTED_READ_S = 2.0  # what readers get to read the last message of a request that a drain aborted
RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0
DRAIN_MEMORY_S = 10.0  # of the time in which requests wait: how far back the drain rate looks
ROLES = ("system", "developer", "user", "assistant", "tool")
_SHOWN_KEY = secrets.token_bytes(16)  # one for all models: a tenant is called the same by each
TEMPLATE_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


class State(Enum):
    """Whether requests are taken. Back to SERVING goes STALLED by itself, a drain by resume(), and FAILED never."""

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


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request without violations, as the worker thread made it."""

    request: "_core.Request"
    prompt_ids: Sequence[int]
    params: SamplingParams
    texts: Sequence[SequenceText | None]


class GenerationService:
    """Serves one loaded model on one event loop. Knows no transport."""

    def __init__(self, model: "LoadedModel", *, served: Sequence[str] = ()) -> None:
        """`served`: the names of all models behind the same entry, for the one who asks for another one."""
        self.model = model
        self._served = served or (model.name,)
        self._engine = model.engine
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(TEXT_WORKERS, thread_name_prefix="llmsrv-text")
        # Whole books may be tokenized for their own sake: they wait for each other, and no prompt waits for them.
        self._book_worker = ThreadPoolExecutor(1, thread_name_prefix="llmsrv-tokenize")
        self._live: dict[int, Generation] = {}
        self._admissions: dict[int, Admission] = {}  # of generations whose callers are known, until close()
        self._preparing = 0
        self._open = 0  # submits that have not returned plus generations that are not closed
        self._idle = asyncio.Event()
        self._idle.set()
        self._outcomes: Counter[str] = Counter()
        self._drain_state: State | None = None
        self._refuses = False  # a drain does, after its withdrawal
        self._failure: str | None = None
        self._queue = QueueDrain()
        self._closed = False
        self.latencies = Latencies()
        self._on_end: Callable[[RequestRecord], None] | None = None
        self._prompt_chars = 0
        self._closing = threading.Event()
        self._pump_thread = threading.Thread(target=self._pump, name="llmsrv-pump", daemon=True)
        self._pump_thread.start()

    # --- requests ---

    async def submit(self, request: GenerationRequest) -> Generation:
        """Accepts a request, or raises ServiceError without having changed anything."""
        call = CALL.get()
        return await self._submit(request) if call is None else await self._submit_for(call, request)

    async def _submit_for(self, call: Call, request: GenerationRequest) -> Generation:
        """The same for a known caller, whose limits are asked first."""
        try:
            admission = call.admit()
        except ServiceError as error:
            self.count_refusal(error)
            raise
        salt = call.caller.cache_salt(request.cache_salt)
        try:
            generation = await self._submit(replace(request, tenant=call.caller.name, cache_salt=salt))
        except BaseException:
            admission.end()
            raise
        self._admissions[generation.key] = admission
        admission.measure(lambda: generation.token_count)
        return generation

    async def _submit(self, request: GenerationRequest) -> Generation:
        arrival = self._arrival(request)
        self._open += 1
        self._idle.clear()
        deadline = None if request.deadline_s is None else arrival.at_s + request.deadline_s
        try:
            return await self._admit(request, arrival, deadline)
        except ServiceError as error:
            self._leave(error.code.name, arrival, error.reason)
            raise
        except asyncio.CancelledError:
            self._leave(departure(deadline).name, arrival)
            raise
        except Exception:
            self._leave(Code.INTERNAL.name, arrival)
            raise

    async def generate(self, request: GenerationRequest) -> RequestOutput:
        """Runs a request to its end."""
        generation = await self.submit(request)
        try:
            return await collect(generation)
        finally:
            generation.close()

    async def tokenize(
        self,
        prompt: TextPrompt | ChatPrompt,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        offsets: bool = False,
    ) -> Tokenized:
        """Token ids of text or a conversation, as `submit` would make them. Raises ServiceError."""
        self.check_model(model)
        return await self._loop.run_in_executor(self._book_worker, self._tokenize, prompt, add_special_tokens, offsets)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool = True) -> str:
        """Text of token ids. Raises ServiceError."""
        self.check_model(model)
        return await self._loop.run_in_executor(self._book_worker, self._detokenize, token_ids, skip_special_tokens)

    def abort_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Ends requests early; the ids of those that were in flight."""
        return [each for each in request_ids if self._engine.abort_id(each)]

    def abort_all(self) -> list[str]:
        """Ends every request early; the ids of those that were in flight."""
        return self._engine.abort_all()

    async def clear_prefix_cache(self) -> int:
        """Forgets all cached prefixes; how many blocks became free."""
        return await self._loop.run_in_executor(self._book_worker, self._engine.clear_prefix_cache)

    async def violations(self, request: GenerationRequest) -> Sequence[Violation]:
        """What submit() would refuse in the request's fields; nothing is submitted."""
        try:
            await self._loop.run_in_executor(self._workers, self._prepare, request, "unsubmitted", None)
        except ServiceError as error:
            return error.violations
        return ()

    def check_model(self, name: str) -> None:
        """Raises NOT_FOUND for a name that is not served. Empty means the served model."""
        if name and name != self.model.name:
            raise ServiceError(
                Code.NOT_FOUND,
                f"model {name!r} is not served here; served: {', '.join(map(repr, self._served))}",
                resource=Resource("model", name),
            )

    def count_refusal(self, error: ServiceError) -> None:
        """Counts a generation that its transport refused before it came here."""
        self._outcomes[error.code.name] += 1
        call = CALL.get()
        self._tell_end(Arrival(tenant="" if call is None else call.caller.name), None, error.code.name, error.reason)

    def record_ends(self, tell: Callable[[RequestRecord], None], *, prompt_chars: int = 0) -> None:
        """From now on `tell` hears of every request that ends, with the beginning of its prompt if that is wanted.

        It is called on the loop: it must neither wait nor raise.
        """
        self._on_end, self._prompt_chars = tell, prompt_chars

    # --- state ---

    @property
    def state(self) -> State:
        """Whether requests are taken, and why not."""
        sample = self._engine.stats()
        if not sample.healthy:
            self._failure = sample.failure
        if self._failure is not None:
            return State.FAILED
        if self._drain_state is not None:
            return self._drain_state
        return State.STALLED if sample.seconds_since_progress > STALL_S else State.SERVING

    @property
    def failure(self) -> str | None:
        """Why the engine failed, if it did."""
        return self._failure

    @property
    def in_flight(self) -> int:
        """Requests whose callers have not seen the end yet."""
        return self._open

    @property
    def free_places(self) -> int:
        """How many more requests may wait, now."""
        return max(self.model.config.max_queued_requests - self._engine.queued - self._preparing, 0)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Requests by outcome since start: the finish reason of the first sequence, or a status code's name."""
        return self._outcomes

    def stats(self) -> "_core.EngineStats":
        """One sample of the engine."""
        return self._engine.stats()

    def announce_drain(self) -> None:
        """Says that no more requests should come; they are still taken until drain()."""
        self._drain_state = State.DRAINING

    async def drain(self, timeout_s: float | None, *, withdrawal_s: float = 0.0) -> None:
        """Refuses new requests, waits for those in flight, aborts what is left after `timeout_s`.

        For the first `withdrawal_s` they are still taken: who sends them has to hear of the drain first.
        """
        self.announce_drain()
        if withdrawal_s and not self._refuses:
            await asyncio.sleep(withdrawal_s)
        self._refuses = True
        if not await self._becomes_idle(timeout_s):
            logger.warning("drain timeout: %d requests aborted", len(self._engine.abort_all()))
            if not await self._becomes_idle(ABORTED_READ_S):
                logger.warning("drain timeout: %d callers did not read their last message", self._open)
        self._drain_state = State.DRAINED

    def resume(self) -> None:
        """Takes requests again. REQUIRES: no drain() is running. Raises ServiceError when the engine is gone."""
        if self._failure is None and not self._closing.is_set():
            self._drain_state, self._refuses = None, False
        self._refuse_unless_serving()

    def stop_engine(self) -> None:
        """Ends everything in flight as aborted, and waits for the engine's threads. Any thread but the loop's."""
        self._refuses = True
        self._drain_state = self._drain_state or State.DRAINING
        self._closing.set()
        self._engine.shutdown()
        self._pump_thread.join()

    async def close(self) -> None:
        """Ends everything in flight as aborted and stops all threads. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._pump_thread.is_alive():
            await asyncio.to_thread(self.stop_engine)
        await asyncio.sleep(0)  # the pump's last delivery runs before this returns
        self._drain_state = State.DRAINED
        self._workers.shutdown(wait=False)
        self._book_worker.shutdown(wait=False)

    async def _becomes_idle(self, timeout_s: float | None) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    # --- admission ---

    def _arrival(self, request: GenerationRequest) -> Arrival:
        return Arrival(
            request_id=request.request_id,
            tenant=self._shown_tenant(request),
            prompt=excerpt(request.prompt, self._prompt_chars),
        )

    async def _admit(self, request: GenerationRequest, arrival: Arrival, deadline: float | None) -> Generation:
        self._refuse_unless_serving()
        self.check_model(request.model)
        _time_left(deadline)
        self._refuse_when_full()
        request_id = request.request_id or f"req-{secrets.token_hex(8)}"
        self._preparing += 1
        try:
            prepared = await self._loop.run_in_executor(self._workers, self._prepare, request, request_id, deadline)
        finally:
            self._preparing -= 1
        self._refuse_unless_serving()
        return self._enter(request_id, prepared, deadline, arrival)

    def _enter(self, request_id: str, prepared: _Prepared, deadline: float | None, arrival: Arrival) -> Generation:
        """Hands a prepared request to the core. No await here: no output is delivered before its key is known."""
        try:
            key = self._engine.submit(prepared.request, deadline_s=_time_left(deadline))
        except ServiceError as error:
            if error.code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE):
                error.retry_delay_s = self._retry_delay()
            raise
        self._queue.enter(key, time.monotonic())
        self._live[key] = generation = Generation(
            key=key,
            request_id=request_id,
            model=self.model.name,
            prompt_ids=prepared.prompt_ids,
            params=prepared.params,
            texts=prepared.texts,
            watch=self.latencies.watch(
                prepared.params, arrival.at_s, prompt_tokens=len(prepared.prompt_ids), tenant=arrival.tenant
            ),
            stop=self._engine.stop,
            closed=partial(self._forget, arrival),
            deadline=deadline,
        )
        return generation

    def _shown_tenant(self, request: GenerationRequest) -> str:
        """A name that the operator gave, or a short hash: who knows another one's cache salt finds what it cached."""
        salt = request.cache_salt
        if request.tenant or not salt or salt in self.model.config.tenant_weights:
            return _tenant(request)
        encoded = salt.encode("utf-8", "surrogatepass")
        return f"salt {blake2b(encoded, digest_size=4, key=_SHOWN_KEY).hexdigest()}"

    def _refuse_unless_serving(self) -> None:
        if self._failure is not None:
            raise ServiceError(Code.UNAVAILABLE, f"the engine failed: {self._failure}", reason="ENGINE_FAILED")
        if self._refuses:
            raise ServiceError(Code.UNAVAILABLE, "the server is draining", reason="DRAINING", retry_delay_s=1.0)

    def _refuse_when_full(self) -> None:
        """Before anything is spent on a prompt: a refusal must not wait for the tokenizer."""
        if self.free_places == 0:
            raise ServiceError(
                Code.RESOURCE_EXHAUSTED,
                f"the queue is full: {self._engine.queued + self._preparing} requests wait (max_queued_requests)",
                retry_delay_s=self._retry_delay(),
            )

    def _retry_delay(self) -> float:
        """When half of what waits should have left the queue, at the rate at which it was left of late."""
        waiting = self._queue.waiting + self._preparing
        return min(max(0.5 * waiting * self._queue.seconds_each(time.monotonic()), RETRY_MIN_S), RETRY_MAX_S)

    def _ended_early(self, error: "_core.StatusError") -> ServiceError:
        """Why the core gave up an accepted request. One that has waited too long is told when to come back."""
        failure = service_error(error)
        if failure.code is Code.RESOURCE_EXHAUSTED:
            failure.reason = "QUEUE_TIMEOUT"
            failure.retry_delay_s = self._retry_delay()
        return failure

    # --- worker threads ---

    def _prepare(self, request: GenerationRequest, request_id: str, deadline: float | None) -> _Prepared:
        """Raises INVALID_ARGUMENT with every violation that the text side and the core find."""
        _time_left(deadline)  # it may have waited for this thread
        violations: list[Violation] = []
        prompt_ids: Sequence[int] = ()
        params = self.model.resolve(request.params)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(64))
        try:
            prompt_ids = self._prompt_ids(request.prompt, request.truncate_prompt_tokens)
        except ServiceError as error:
            if error.code is not Code.INVALID_ARGUMENT:
                raise
            violations += error.violations
        if request.truncate_prompt_tokens is not None and request.truncate_prompt_tokens < 1:
            violations.append(Violation("truncate_prompt_tokens", "must be at least 1"))
        if params.stop_strings and not params.text:
            violations.append(Violation("stopping.stop_strings", "need output.text: they are found in the text"))
        # A prompt that could not be made is replaced by one token, so that the core checks all other fields.
        stand_in = prompt_ids or ((0,) if violations else ())
        engine_request, too_wide = self._engine.build(
            request_id,
            stand_in,
            params,
            cache_salt=request.cache_salt,
            bypass_prefix_cache=request.bypass_prefix_cache,
            priority=request.priority,
            tenant=_tenant(request),
            queue_timeout_s=request.queue_timeout_s,
        )
        violations += [*too_wide, *self._engine.validate(engine_request)]
        if violations:
            raise ServiceError.invalid(_in_request(violations, _prompt_field(request.prompt)))
        return _Prepared(engine_request, prompt_ids, params, self._texts(prompt_ids, params))

    def _texts(self, prompt_ids: Sequence[int], params: SamplingParams) -> list[SequenceText | None]:
        if not params.text:
            return [None] * params.n
        from llmsrv.text.detokenizer import StopStrings

        stops = StopStrings(params.stop_strings)
        return [SequenceText(self.model.tokenizer, prompt_ids, params, stops) for _ in range(params.n)]

    def _prompt_ids(self, prompt: Prompt, keep_last: int | None) -> Sequence[int]:
        """The prompt's tokens. What cannot fit however it is cut is refused before time and memory are spent on it."""
        tokens = self.model.max_model_len if keep_last else self.model.longest_counted_prompt
        kept = slice(-keep_last if keep_last else None, None)
        if isinstance(prompt, TokenPrompt):
            ids = prompt.token_ids[kept]
            if len(ids) > 4 * tokens:
                raise _too_long(prompt, f"{len(ids)} tokens", self.model)
            return list(ids)
        text, special = self._text(prompt, None)
        if len(text) > 4 * tokens and len(text) > tokens * self.model.longest_token_bytes:
            raise _too_long(prompt, f"{len(text)} characters", self.model)
        with _named(_prompt_field(prompt)):
            return self.model.tokenizer.encode(text, add_special_tokens=special)[kept]

    def _tokenize(self, prompt: TextPrompt | ChatPrompt, add_special_tokens: bool | None, offsets: bool) -> Tokenized:
        text, special = self._text(prompt, add_special_tokens)
        rendered = text if isinstance(prompt, ChatPrompt) else ""
        with _named(_prompt_field(prompt)):
            if offsets:
                ids, places = self.model.tokenizer.encode_with_offsets(text, add_special_tokens=special)
                return Tokenized(ids, rendered, places)
            return Tokenized(self.model.tokenizer.encode(text, add_special_tokens=special), rendered)

    def _detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        vocab_size = self.model.vocab_size
        violations = [
            Violation(f"token_ids[{i}]", f"{token_id} is not in the vocabulary of {vocab_size}")
            for i, token_id in enumerate(token_ids)
            if not 0 <= token_id < vocab_size
        ]
        if violations:
            raise ServiceError.invalid(violations)
        return self.model.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _text(self, prompt: TextPrompt | ChatPrompt, add_special_tokens: bool | None) -> tuple[str, bool]:
        """What to encode, and whether the tokenizer adds its special tokens: a template has put in what it wants."""
        if isinstance(prompt, ChatPrompt):
            return self._render(prompt), False
        return prompt.text, add_special_tokens is not False

    def _render(self, chat: ChatPrompt) -> str:
        template = self.model.chat_template
        if template is None:
            raise ServiceError(
                Code.UNIMPLEMENTED,
                "this model has no chat template",
                violations=[Violation("chat", "this model has no chat template")],
                reason="NO_CHAT_TEMPLATE",
            )
        violations = _chat_violations(chat)
        if violations:
            raise ServiceError.invalid(violations)
        opens = chat.add_generation_prompt
        with _named("chat.messages"):
            return template.render(
                chat.messages,
                add_generation_prompt=not chat.continue_final_message if opens is None else opens,
                continue_final_message=chat.continue_final_message,
                **chat.template_kwargs,
            )

    # --- outputs ---

    def _pump(self) -> None:
        """The only thread that waits inside the core: one wake-up of the loop for all outputs of a step."""
        while True:
            closing = self._closing.is_set()
            outputs = self._engine.wait_outputs(PUMP_WAIT_MS)
            if outputs:
                self._loop.call_soon_threadsafe(self._deliver, outputs)
            elif closing:
                return

    def _deliver(self, outputs: "Sequence[_core.Output]") -> None:
        now = time.monotonic()
        for output in outputs:
            self._queue.leave(output.request, now)
            generation = self._live.get(output.request)
            if generation is None:
                continue  # its reader left, and the core was told
            try:
                if output.error is None:
                    generation.deliver(output, now)
                else:
                    generation.fail(self._ended_early(output.error))
            except Exception:  # one request's text must not hurt the others
                logger.exception("request %s: its output could not be read", generation.request_id)
                self._engine.abort(output.request)
                generation.fail(ServiceError(Code.INTERNAL, "the output could not be read", reason="OUTPUT_UNREADABLE"))
            if output.final:
                del self._live[output.request]

    def _forget(self, arrival: Arrival, generation: Generation) -> None:
        admission = self._admissions.pop(generation.key, None)
        if admission is not None:
            admission.end()
        if self._live.pop(generation.key, None) is not None:
            self._engine.abort(generation.key)
            self._queue.leave(generation.key, time.monotonic())
        self._leave(generation.outcome, arrival, generation.failure_reason, generation)

    def _leave(self, outcome: str, arrival: Arrival, reason: str = "", generation: Generation | None = None) -> None:
        self._outcomes[outcome] += 1
        self._open -= 1
        if self._open == 0:
            self._idle.set()
        self._tell_end(arrival, generation, outcome, reason)

    def _tell_end(self, arrival: Arrival, generation: Generation | None, counted: str, reason: str) -> None:
        if self._on_end is None:
            return
        outcome, reason = outcome_of(counted, reason)
        self._on_end(
            RequestRecord(
                arrival=arrival,
                request_id=arrival.request_id if generation is None else generation.request_id,
                model=self.model.name,
                outcome=outcome,
                reason=reason,
                usage=None if generation is None else generation.usage,
                timing=None if generation is None else generation.timing,
                first_token_s=None if generation is None else generation.first_token_s,
                total_s=time.monotonic() - arrival.at_s,
            )
        )


class QueueDrain:
    """Accepted requests of which nothing came yet, and how fast they have left that queue of late.

    Only time in which somebody waits is measured: an idle engine drains nothing and is not slow. Both sums fade with
    that time, so that many requests that leave in one step count as many.
    """

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        self._since = 0.0  # the last departure, or when the queue began to fill
        self._seconds = RETRY_MIN_S  # before anything is measured: one request in so much time
        self._departures = 1.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def enter(self, key: int, now: float) -> None:
        """A request was accepted."""
        if not self._waiting:
            self._since = now
        self._waiting.add(key)

    def leave(self, key: int, now: float) -> None:
        """Something came of a request, or it was given up. Only the first call for a key counts."""
        if key in self._waiting:
            self._seconds, self._departures = self._sums(now)
            self._departures += 1.0
            self._since = now
            self._waiting.remove(key)

    def seconds_each(self, now: float) -> float:
        """Time per departure as measured, or, in a queue that stands still, as it would be if one left now."""
        seconds, departures = self._sums(now)
        return max(self._seconds / self._departures, seconds / (departures + 1.0))

    def _sums(self, now: float) -> tuple[float, float]:
        gap = now - self._since if self._waiting else 0.0
        kept = math.exp(-gap / DRAIN_MEMORY_S)
        return self._seconds * kept + gap, self._departures * kept


def _tenant(request: GenerationRequest) -> str:
    """Whose share of the tokens a request takes under the policy "fair". `_in_request` names the field it came from."""
    return request.tenant or request.cache_salt


def _time_left(deadline: float | None) -> float | None:
    """Seconds until a moment of the monotonic clock. Raises DEADLINE_EXCEEDED when it has passed."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise ServiceError(Code.DEADLINE_EXCEEDED, "the deadline passed before the request reached the engine")
    return left


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Makes of the text layer's ValueError a violation of `field`."""
    try:
        yield
    except ValueError as error:
        raise ServiceError.invalid([Violation(field, str(error))]) from None


def _prompt_field(prompt: Prompt) -> str:
    if isinstance(prompt, TextPrompt):
        return "text"
    return "token_ids.ids" if isinstance(prompt, TokenPrompt) else "chat.messages"


def _too_long(prompt: Prompt, length: str, model: "LoadedModel") -> ServiceError:
    description = f"{length} are more than {model.max_model_len} tokens (max_model_len) can be"
    return ServiceError.invalid([Violation(_prompt_field(prompt), description)])


def _in_request(violations: Sequence[Violation], prompt_field: str) -> list[Violation]:
    """Names the field that the client has set where the core says `input`; keeps the first violation of each field."""
    named: dict[str, Violation] = {}
    for each in violations:
        field = each.field
        if field.startswith("input.token_ids[") and prompt_field == "token_ids.ids":
            field = prompt_field + field.removeprefix("input.token_ids")
        elif field == "input" or field.startswith("input."):
            field = prompt_field
        elif field == "tenant":
            field = "cache_salt"
        named.setdefault(field, replace(each, field=field))
    return list(named.values())


def _chat_violations(chat: ChatPrompt) -> list[Violation]:
    violations = []
    if not chat.messages:
        violations.append(Violation("chat.messages", "must not be empty"))
    for i, message in enumerate(chat.messages):
        if message.get("role") not in ROLES:
            violations.append(Violation(f"chat.messages[{i}].role", f"must be one of {', '.join(ROLES)}"))
    for name in sorted(TEMPLATE_OWN & set(chat.template_kwargs)):
        violations.append(Violation(f"chat.template_kwargs.{name}", "is not an extra variable of the template"))
    if chat.continue_final_message:
        if chat.messages and chat.messages[-1].get("role") != "assistant":
            violations.append(Violation("chat.continue_final_message", "needs an assistant message at the end"))
        if chat.add_generation_prompt:
            violations.append(Violation("chat.add_generation_prompt", "contradicts continue_final_message"))
    return violations
