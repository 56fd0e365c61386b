"""Token ids to text, a few at a time, with stop strings.

One detokenizer belongs to one generation and to one thread at a time. A push costs its own tokens and no more.

    ids ──> pieces of whole characters ──> stop matcher ──> text for the client
            (holds a cut character)        (holds a possible beginning of a stop string)

What comes out depends on the ids alone, never on how they were cut into pushes.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from llmsrv.text.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer:
    """The text that follows a prompt: `decode(prompt + output)` without what `decode(prompt)` already shows.

    The text ends at the first stop string: of all occurrences the one that ends earliest, and of those that end there
    the longest. The text ends before it, or after it with `include_stop`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        stop_strings: "Sequence[str] | StopStrings" = (),
        include_stop: bool = False,
    ) -> None:
        """`stop_strings` as StopStrings are shared by many generations. Raises ValueError if one is empty."""
        decoder = _ByteDecoder if tokenizer.decodes_by_bytes else _WindowDecoder
        self._decoder: _Decoder = decoder(tokenizer, prompt_ids, skip_special_tokens)
        stops = stop_strings if isinstance(stop_strings, StopStrings) else StopStrings(stop_strings)
        self._matcher = _StopMatcher(stops) if stops else None
        self._include_stop = include_stop
        self._tokens_seen = 0
        self._matched_stop: str | None = None
        self._finished = False

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matched_stop

    @property
    def tokens_until_stop(self) -> int | None:
        """How many of the pushed ids it took to complete the stop string; None without a match."""
        return None if self._matched_stop is None else self._tokens_seen

    def push(self, ids: Sequence[int]) -> str:
        """Takes the next ids and gives the text that is certain by now. After a match or `finish`: nothing."""
        if self._matcher is None:
            return "" if self._finished else self._decoder.push(ids)
        pieces = []
        for token_id in ids:
            if self._finished:
                break
            self._tokens_seen += 1
            pieces.append(self._match(self._matcher, self._decoder.push((token_id,))))
        return "".join(pieces)

    def finish(self) -> str:
        """Ends the text: a cut character becomes U+FFFD, and what was held for a stop string comes out."""
        if self._finished:
            return ""
        text = self._decoder.finish()
        if self._matcher is not None:
            text = self._match(self._matcher, text)
            if self._matched_stop is None:
                text += self._matcher.release()
        self._finished = True
        return text

    def _match(self, matcher: "_StopMatcher", text: str) -> str:
        safe, stop = matcher.push(text)
        if stop is None:
            return safe
        self._matched_stop = stop
        self._finished = True
        return safe + stop if self._include_stop else safe


class _Decoder(Protocol):
    def push(self, ids: Iterable[int]) -> str:
        """The whole characters that `ids` complete."""

    def finish(self) -> str:
        """What is left."""


class _ByteDecoder:
    """For vocabularies whose text is the bytes of its tokens."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        prompt_end = self._last_bytes(prompt_ids)
        self._utf8.decode(prompt_end)
        cut_character, _ = self._utf8.getstate()
        # The U+FFFD of a character that the prompt began is part of the prompt's text, unless the output completes it.
        self._prompt_replacements = cut_character.decode("utf-8", "replace")
        self._at_text_begin = not prompt_end

    def push(self, ids: Iterable[int]) -> str:
        return self._joined(self._utf8.decode(b"".join(map(self._bytes_of, ids))))

    def finish(self) -> str:
        return self._joined(self._utf8.decode(b"", final=True))

    def _joined(self, text: str) -> str:
        """Settles what the prompt's text has to do with the first characters of the output."""
        if not text:
            return text
        if self._prompt_replacements:
            text = text.removeprefix(self._prompt_replacements)
            self._prompt_replacements = ""
        if self._at_text_begin:
            self._at_text_begin = False
            if self._tokenizer.strips_leading_space:
                text = text.removeprefix(" ")
        return text

    def _bytes_of(self, token_id: int) -> bytes:
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _last_bytes(self, ids: Sequence[int]) -> bytes:
        """The end of the text of `ids`, at least as long as the longest cut character; all of it if it is shorter."""
        tail = b""
        for token_id in reversed(ids):
            tail = self._bytes_of(token_id) + tail
            if len(tail) >= 4:
                break
        return tail


class _WindowDecoder:
    """For all other vocabularies: decodes the last few tokens with and without the new one and takes the difference.

    Text is held while it ends in U+FFFD, for up to `_held_tokens_max` tokens: the token may be a part of a character.
    """

    _context_tokens = 6  # decoders look at a neighbour or two: spaces before words, doubled tokens, a leading space
    _held_tokens_max = 16

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = self._visible(prompt_ids[-self._context_tokens :])
        self._shown_tokens = len(self._window)  # the first so many of the window have come out
        self._shown_text = self._decode(self._window).rstrip(_REPLACEMENT)

    def push(self, ids: Iterable[int]) -> str:
        return "".join(map(self._push_one, self._visible(ids)))

    def finish(self) -> str:
        text = self._decode(self._window)
        shown, self._shown_text = self._shown_text, text
        return text.removeprefix(shown) if text.startswith(shown) else ""

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        held_tokens = len(self._window) - self._shown_tokens
        is_cut = text.endswith(_REPLACEMENT) and held_tokens < self._held_tokens_max
        if is_cut or not text.startswith(self._shown_text):
            return ""
        delta = text.removeprefix(self._shown_text)
        self._window = self._window[-self._context_tokens :]
        self._shown_tokens = len(self._window)
        self._shown_text = self._decode(self._window)
        return delta

    def _visible(self, ids: Iterable[int]) -> list[int]:
        return [i for i in ids if not (self._skip_special_tokens and self._tokenizer.is_special(i))]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode_opaque(ids, self._skip_special_tokens)


class StopStrings:
    """Stop strings as the automaton of Aho and Corasick (1975). Never changes once it is made: any thread may use it.

    A state is a text that begins some stop string: the longest such text that the input ends with. Its length is
    exactly how much must be held back, since any match still to come begins within it.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        """Raises ValueError if one is empty."""
        if not all(stop_strings):
            raise ValueError("stop: a stop string must not be empty")
        self._next: list[dict[str, int]] = [{}]  # per state: the longer beginnings
        self._depth = [0]  # per state: its length
        self._stop: list[str | None] = [None]  # per state: the longest stop string that it ends with
        self._fallback = [0]  # per state: the longest shorter state that it ends with
        for stop in stop_strings:
            self._insert(stop)
        self._link()

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def depth(self, state: int) -> int:
        """How much text the state stands for."""
        return self._depth[state]

    def stop(self, state: int) -> str | None:
        """The longest stop string that the text ends with."""
        return self._stop[state]

    def step(self, state: int, character: str) -> int:
        """The state after one more character; 0 is the state of no text."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._stop.append(None)
                self._fallback.append(0)
            state = following
        self._stop[state] = stop

    def _link(self) -> None:
        """Sets the fallbacks, shorter states first: a state's fallback continues that of its parent."""
        level = list(self._next[0].values())
        while level:
            deeper = []
            for state in level:
                if self._stop[state] is None:
                    self._stop[state] = self._stop[self._fallback[state]]
                for character, following in self._next[state].items():
                    self._fallback[following] = self.step(self._fallback[state], character)
                    deeper.append(following)
            level = deeper


class _StopMatcher:
    """Finds the stop string that ends earliest, one character at a time."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""  # invariant: as long as the state

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes text; gives what lies before any possible stop string, and the stop string that was completed.

        REQUIRES: no stop string was completed before.
        """
        for i, character in enumerate(text):
            self._state = self._stops.step(self._state, character)
            stop = self._stops.stop(self._state)
            if stop is not None:
                seen = self._held + text[: i + 1]
                self._held = ""
                return seen[: len(seen) - len(stop)], stop
        seen = self._held + text
        certain = len(seen) - self._stops.depth(self._state)
        self._held = seen[certain:]
        return seen[:certain], None

    def release(self) -> str:
        """What is held, when no more text will come."""
        held, self._held = self._held, ""
        self._state = 0
        return held
