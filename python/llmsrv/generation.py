"""An accepted request between the core and its reader: outputs of the core in, merged updates out.

The core counts tokens; text is found here: the detokenizer, stop strings, what of a stop is shown. Thread rule: the
event loop's.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmsrv.errors import Code, ServiceError
from llmsrv.latencies import RequestWatch
from llmsrv.params import (
    Completion,
    Delta,
    Finish,
    FinishReason,
    PromptInfo,
    RequestOutput,
    SamplingParams,
    Timing,
    TokenLogprob,
    Update,
    Usage,
)

if TYPE_CHECKING:
    from llmsrv import _core
    from llmsrv.text.detokenizer import IncrementalDetokenizer, StopStrings
    from llmsrv.text.tokenizer import Tokenizer

DEADLINE_LEAD_S = 0.1  # a client's clock began before ours: it gives up by so much before the deadline at most


class SequenceText:
    """The growing text of one sequence, up to its first stop string. Stop strings count from token `min_tokens` on."""

    def __init__(
        self, tokenizer: "Tokenizer", prompt_ids: Sequence[int], params: SamplingParams, stops: "StopStrings"
    ) -> None:
        """`stops`: those of params, shared by the choices of a request."""
        self._tokenizer = tokenizer
        self._params = params
        self._stops = stops
        self._ids = list(prompt_ids)  # grows only while stop strings do not count
        self._early_left = max(params.min_tokens - 1, 0) if stops else 0
        self._tokens_before = 0  # of earlier detokenizers
        self._detokenizer = self._make(() if self._early_left else stops)

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens and gives the text that is certain by now."""
        if not self._early_left:
            return self._detokenizer.push(token_ids)
        early, rest = token_ids[: self._early_left], token_ids[self._early_left :]
        text = self._detokenizer.push(early)
        self._ids += early
        self._early_left -= len(early)
        self._tokens_before += len(early)
        if self._early_left:
            return text
        self._detokenizer = self._make(self._stops)
        return text + self._detokenizer.push(rest)

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        return self._detokenizer.finish()

    @property
    def stop(self) -> tuple[str, int] | None:
        """The stop string that ended the text, and how many tokens it took to complete it."""
        matched, tokens = self._detokenizer.matched_stop, self._detokenizer.tokens_until_stop
        return None if matched is None or tokens is None else (matched, self._tokens_before + tokens)

    def _make(self, stop_strings: "Sequence[str] | StopStrings") -> "IncrementalDetokenizer":
        from llmsrv.text.detokenizer import IncrementalDetokenizer

        return IncrementalDetokenizer(
            self._tokenizer,
            self._ids,
            skip_special_tokens=self._params.skip_special_tokens,
            stop_strings=stop_strings,
            include_stop=self._params.include_stop,
        )


def departure(deadline: float | None) -> Code:
    """What became of a request whose client leaves now: one that leaves at its deadline has not changed its mind."""
    late = deadline is not None and time.monotonic() >= deadline - DEADLINE_LEAD_S
    return Code.DEADLINE_EXCEEDED if late else Code.CANCELLED


class _Choice:
    """One sequence of a request: its text (None when no text is wanted), how far it got, how it ended."""

    def __init__(self, text: SequenceText | None) -> None:
        self.text = text
        self.token_count = 0
        self.finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Coalescing:
    """How long a reader lets tokens be held back, so that it gets more of them at once."""

    delay_s: float
    tokens: int | None = None  # no longer when so many are held, of all sequences together


class Generation:
    """An async iterator of updates. The caller must call close(), whatever happens.

    A reader that is slow finds all news since its last read merged into one update: at most one delta per sequence
    waits. One that serves many generations need not wait for each: listen() tells it of news, take() gives them.
    """

    def __init__(
        self,
        *,
        key: int,
        request_id: str,
        model: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        texts: Sequence[SequenceText | None],
        watch: RequestWatch,
        stop: Callable[[int], object],
        closed: Callable[["Generation"], None],
        deadline: float | None = None,
    ) -> None:
        """`stop(key)` ends the request in the core; `closed` is called once, by close(). `deadline`: monotonic."""
        self.key = key
        self.request_id = request_id
        self.model = model
        self._prompt_ids = prompt_ids
        self._params = params
        self._choices = [_Choice(text) for text in texts]
        self._unfinished = len(self._choices)
        self._watch = watch
        self._stop = stop
        self._on_closed = closed
        self._deadline = deadline
        self._left_with = Code.CANCELLED  # where its reader left before the end
        # The first prompt position has no distribution before it; the core's list begins with the second.
        self._prompt_logprobs = [TokenLogprob(prompt_ids[0], None, 0)] if params.prompt_logprobs else []
        self._pending: dict[int, Delta] = {}
        self._ending: tuple[Usage, Timing] | None = None
        self._error: ServiceError | None = None  # until it is raised
        self._failed_with: Code | None = None
        self.failure_reason = ""
        self._reader: asyncio.Future[None] | None = None
        self._listener: Callable[[], object] | None = None
        self._coalescing: Coalescing | None = None
        self._timer: asyncio.TimerHandle | None = None  # while tokens are held back
        self._due = False  # they have been held long enough
        self._started = False
        self._ended = False  # the reader has seen the end or the error
        self._closed = False

    # --- the reader's side ---

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        """The next update. Raises ServiceError when the request failed; everything delivered before stays valid."""
        if self._ended:
            raise StopAsyncIteration
        while not self.has_news:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self.take()

    def listen(self, tell: Callable[[], object]) -> None:
        """Calls `tell` whenever there are news, until close(): for a reader that does not wait here."""
        self._listener = tell
        self._wake()

    def coalesce(self, coalescing: Coalescing) -> None:
        """Holds news back as it says, all but the first and the last. REQUIRES: nothing was read yet."""
        self._coalescing = coalescing

    @property
    def has_news(self) -> bool:
        """Whether take() has something to give."""
        if self._ending is not None or self._error is not None:
            return True
        whole_prompt = not self._params.prompt_logprobs or len(self._prompt_logprobs) == len(self._prompt_ids)
        return bool(self._pending) and whole_prompt and self._is_ripe()

    def take(self) -> Update:
        """All news since the last time. Raises ServiceError as __anext__ does. REQUIRES: has_news."""
        if self._error is not None and not self._pending:
            self._ended = True
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: the cycle would keep the request alive
        return self._take()

    def close(self) -> None:
        """Gives up what has not ended; its blocks are free after the next step. Idempotent."""
        if not self._closed:
            self._closed = True
            self._listener = None
            self._hold_no_longer()
            self._left_with = departure(self._deadline)
            self._on_closed(self)

    @property
    def token_count(self) -> int:
        """Tokens of the prompt, and of all sequences so far."""
        return len(self._prompt_ids) + sum(each.token_count for each in self._choices)

    @property
    def outcome(self) -> str:
        """How the request ended: the finish reason of its first sequence, or the name of a status code."""
        if self._failed_with is not None:
            return self._failed_with.name
        finish = self._choices[0].finish
        return self._left_with.name if self._ending is None or finish is None else finish.reason.value

    @property
    def usage(self) -> Usage:
        """What it cost, or has cost so far: whether a prompt was cached is known at the end."""
        if self._ending is not None:
            return self._ending[0]
        return Usage(len(self._prompt_ids), sum(each.token_count for each in self._choices))

    @property
    def timing(self) -> Timing | None:
        """Where the time went, if it came to its end."""
        return None if self._ending is None else self._ending[1]

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token, if there is one."""
        return self._watch.first_token_s

    def _is_ripe(self) -> bool:
        """Whether what waits need not wait for more. The first token never does."""
        if self._coalescing is None or not self._started or self._due:
            return True
        tokens = self._coalescing.tokens
        return tokens is not None and sum(each.token_count for each in self._pending.values()) >= tokens

    def _take(self) -> Update:
        self._hold_no_longer()
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

    # --- the core's side ---

    def deliver(self, output: "_core.Output", now: float) -> None:
        """Takes one output of the core. REQUIRES: it has no error; fail() takes that. `now`: monotonic seconds."""
        if self._params.prompt_logprobs:
            self._prompt_logprobs += [_logprob(each) for each in output.prompt_logprobs]
        choice = self._choices[output.index]
        if choice.finish is None:  # later tokens of a sequence that a stop string ended are dropped
            if output.token_ids:
                self._watch.note_tokens(output.index, len(output.token_ids), now)
            self._advance(choice, output)
        if output.final:
            self._watch.note_end(*self._end(output), now)
        elif self._unfinished == 0:
            self._stop(self.key)  # stop strings are ours to find: the core would go on
        self._wake()

    def fail(self, error: ServiceError) -> None:
        """Ends the request with an error, unless it has ended."""
        if self._ending is None and self._failed_with is None:
            self._error, self._failed_with, self.failure_reason = error, error.code, error.reason
            self._wake()

    def _advance(self, choice: _Choice, output: "_core.Output") -> None:
        token_ids, finish = output.token_ids, _finish(output.finish)
        logprobs = [_logprob(each) for each in output.logprobs] if self._params.logprobs else []
        count = len(token_ids)
        if finish is not None and finish.reason is FinishReason.STOP and not self._params.include_stop:
            token_ids, logprobs = token_ids[:-1], logprobs[:-1]
        text = ""
        if choice.text is not None:
            text = choice.text.push(token_ids)
            if finish is not None:
                text += choice.text.finish()
            if choice.text.stop is not None:
                stop_string, tokens = choice.text.stop
                count = tokens - choice.token_count
                token_ids, logprobs = token_ids[:count], logprobs[:count]
                finish = Finish(FinishReason.STOP, stop_string=stop_string)
        if count == 0 and finish is None:
            return
        choice.token_count += count
        choice.finish = finish
        self._unfinished -= finish is not None
        merge(self._pending, Delta(output.index, text, token_ids, logprobs, count, finish))

    def _end(self, output: "_core.Output") -> tuple[Usage, Timing]:
        usage, timing = output.usage, output.timing
        completion_tokens = sum(each.token_count for each in self._choices)
        self._ending = (
            Usage(usage.prompt_tokens, completion_tokens, usage.cached_prompt_tokens),
            Timing(timing.queue_s, timing.prefill_s, timing.decode_s, timing.preemptions),
        )
        return self._ending

    def _wake(self) -> None:
        if not self.has_news:
            if self._coalescing is not None and self._pending and self._timer is None and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._coalescing.delay_s, self._come_due)
            return
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self._listener is not None:
            self._listener()

    def _come_due(self) -> None:
        self._due = True
        self._wake()

    def _hold_no_longer(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def collect(generation: Generation) -> RequestOutput:
    """The whole answer of a generation. The caller closes it."""
    merged: dict[int, Delta] = {}
    prompt: PromptInfo | None = None
    async for update in generation:
        prompt = update.prompt or prompt
        for delta in update.deltas:
            merge(merged, delta)
        if update.usage is not None and update.timing is not None and prompt is not None:
            completions = [
                Completion(each.index, each.text, each.token_ids, each.logprobs, each.finish)
                for each in sorted(merged.values(), key=lambda delta: delta.index)
                if each.finish is not None
            ]
            prompt = replace(prompt, cached_token_count=update.usage.cached_prompt_tokens)
            return RequestOutput(
                generation.request_id, generation.model, prompt, completions, update.usage, update.timing
            )
    raise ServiceError(Code.INTERNAL, "the generation ended without a final update")


def merge(into: dict[int, Delta], delta: Delta) -> None:
    """Adds a delta to what waits for its sequence."""
    known = into.setdefault(delta.index, delta)
    if known is delta:
        return
    known.text += delta.text
    known.token_ids += delta.token_ids
    known.logprobs += delta.logprobs
    known.token_count += delta.token_count
    known.finish = delta.finish


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
