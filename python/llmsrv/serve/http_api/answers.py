"""What generations become: one object at the end, or chunks on the way. A chat completion or a text completion.

A stream's chunks carry one choice each: clients look at the first choice only. A choice opens (a role, or the echoed
prompt) together with its first news, and its finish reason comes in a chunk of its own.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from llmsrv.params import Completion, Delta, FinishReason, PromptInfo, RequestOutput, TokenLogprob, Update, Usage
from llmsrv.serve.http_api.convert import Asked
from llmsrv.serve.http_api.logprobs import TextLogprobs, TokenBytes, chat_logprobs, prompt_logprobs

FINISH_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIME_LIMIT: "length",
    FinishReason.ABORTED: "abort",
}
DONE = b"data: [DONE]\n\n"

Fields = dict[str, object]

_encode = msgspec.json.Encoder().encode


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data) + b"\n\n"


class Answer(ABC):
    """Makes the answer to one body, in one piece or in chunks. Not both."""

    kind = ""

    def __init__(self, answer_id: str, model: str, asked: Asked, token_bytes: TokenBytes) -> None:
        self.id = answer_id
        self.asked = asked
        self.echoed: Sequence[str] = ()  # texts of the prompts, if they are to be repeated; set before any is needed
        self._token_bytes = token_bytes
        self._head: Fields = {"id": answer_id, "object": self.kind, "created": int(time.time()), "model": model}
        self._prompts: dict[int, PromptInfo] = {}
        self._open: set[int] = set()  # choices of which something was sent
        self._usage = Usage(0, 0)

    # --- in one piece ---

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of the answer, from one output per prompt."""
        choices = []
        for number, output in enumerate(outputs):
            self._prompts[number] = output.prompt
            self._count(output.usage)
            choices += [self._choice(number, each) for each in output.completions]
        return _encode({**self._head, "choices": choices, "usage": _usage(self._usage), **self._whole_extras()})

    def _choice(self, prompt: int, completion: Completion) -> Fields:
        index = self._index(prompt, completion.index)
        finish = FINISH_REASONS[completion.finish.reason]
        made: Fields = {"index": index, **self._content(index, prompt, completion), "finish_reason": finish}
        if self.asked.token_ids:
            made["token_ids"] = completion.token_ids
        return made

    # --- in chunks ---

    def chunks(self, prompt: int, update: Update) -> bytes:
        """The events of an update of one prompt's generation."""
        if update.prompt is not None:
            self._prompts[prompt] = update.prompt
        events = [chunk for delta in update.deltas for chunk in self._delta_chunks(prompt, delta)]
        if update.usage is not None:
            self._count(update.usage)
        return b"".join(events)

    def last_chunks(self) -> bytes:
        """What follows when all generations have ended."""
        if not self.asked.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": _usage(self._usage)}) + DONE

    def _delta_chunks(self, prompt: int, delta: Delta) -> list[bytes]:
        index = self._index(prompt, delta.index)
        events = []
        if index not in self._open:
            self._open.add(index)
            events += self._opening(index, prompt)
        content = self._piece(index, delta)
        ids: Fields = {"token_ids": delta.token_ids} if self.asked.token_ids else {}
        if delta.text or delta.logprobs or (delta.token_ids and ids):
            events.append(self._chunk({"index": index, **content, "finish_reason": None, **ids}))
        if delta.finish is not None:
            reason = FINISH_REASONS[delta.finish.reason]
            events.append(self._chunk({"index": index, **self._nothing(), "finish_reason": reason}))
        return events

    def _chunk(self, choice: Fields, extra: Fields | None = None) -> bytes:
        usage: Fields = {"usage": None} if self.asked.include_usage else {}
        return event({**self._head, "choices": [choice], **usage, **(extra or {})})

    # --- what differs ---

    @abstractmethod
    def _content(self, index: int, prompt: int, completion: Completion) -> Fields:
        """A finished choice's text and log-probabilities."""

    @abstractmethod
    def _whole_extras(self) -> Fields:
        """What else stands in the whole answer."""

    @abstractmethod
    def _opening(self, index: int, prompt: int) -> list[bytes]:
        """The chunks with which a choice opens."""

    @abstractmethod
    def _piece(self, index: int, delta: Delta) -> Fields:
        """A piece of text and its log-probabilities."""

    @abstractmethod
    def _nothing(self) -> Fields:
        """The same with nothing in it."""

    # --- what does not ---

    def _index(self, prompt: int, index: int) -> int:
        return prompt * self.asked.choices_each + index

    def _count(self, usage: Usage) -> None:
        total = self._usage
        self._usage = Usage(
            total.prompt_tokens + usage.prompt_tokens,
            total.completion_tokens + usage.completion_tokens,
            total.cached_prompt_tokens + usage.cached_prompt_tokens,
        )

    def _prompt_extras(self, prompt: int) -> Fields:
        """What was asked for about a prompt."""
        made: Fields = {}
        info = self._prompts[prompt]
        if self.asked.token_ids:
            made["prompt_token_ids"] = list(info.token_ids)
        if self.asked.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(info.logprobs, self.asked.prompt_logprobs, self._token_bytes)
        return made


class ChatAnswer(Answer):
    """A chat completion."""

    kind = "chat.completion"

    def _content(self, index: int, prompt: int, completion: Completion) -> Fields:
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(completion.logprobs)}

    def _whole_extras(self) -> Fields:
        return self._prompt_extras(0)

    def _opening(self, index: int, prompt: int) -> list[bytes]:
        extras = self._prompt_extras(prompt) if index == 0 else {}
        delta = {"role": "assistant", "content": ""}
        return [self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, extras)]

    def _piece(self, index: int, delta: Delta) -> Fields:
        return {"delta": {"content": delta.text}, "logprobs": self._logprobs(delta.logprobs)}

    def _nothing(self) -> Fields:
        return {"delta": {}, "logprobs": None}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Fields | None:
        if self.asked.logprobs is None:
            return None
        return chat_logprobs(entries, self.asked.logprobs, self._token_bytes)


class ChatStream(ChatAnswer):
    """A chat completion in chunks."""

    kind = "chat.completion.chunk"


class TextAnswer(Answer):
    """A completion, in one piece or in chunks: both have one kind."""

    kind = "text_completion"

    def __init__(self, answer_id: str, model: str, asked: Asked, token_bytes: TokenBytes) -> None:
        super().__init__(answer_id, model, asked, token_bytes)
        self._logprobs: dict[int, TextLogprobs] = {}

    def _content(self, index: int, prompt: int, completion: Completion) -> Fields:
        shown = [*(self._prompts[prompt].logprobs if self.echoed else ()), *completion.logprobs]
        text = (self.echoed[prompt] if self.echoed else "") + completion.text
        return {"text": text, "logprobs": self._taken(index, shown), **self._prompt_extras(prompt)}

    def _whole_extras(self) -> Fields:
        return {}

    def _opening(self, index: int, prompt: int) -> list[bytes]:
        extras = self._prompt_extras(prompt)
        if not self.echoed and not extras:
            return []
        entries = self._prompts[prompt].logprobs if self.echoed else ()
        text = self.echoed[prompt] if self.echoed else ""
        choice: Fields = {"index": index, "text": text, "logprobs": self._taken(index, entries) if entries else None}
        return [self._chunk({**choice, "finish_reason": None, **extras})]

    def _piece(self, index: int, delta: Delta) -> Fields:
        return {"text": delta.text, "logprobs": self._taken(index, delta.logprobs)}

    def _nothing(self) -> Fields:
        return {"text": "", "logprobs": None}

    def _taken(self, index: int, entries: Sequence[TokenLogprob]) -> Fields | None:
        if self.asked.logprobs is None:
            return None
        found = self._logprobs.setdefault(index, TextLogprobs(self.asked.logprobs, self._token_bytes))
        return found.take(entries)


def _usage(usage: Usage) -> Fields:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
    }
