"""Log-probabilities in OpenAI's two shapes, and the one of the prompt's."""

from collections.abc import Callable, Sequence

from llmsrv.params import TokenLogprob

LOGPROB_MIN = -9999.0  # JSON has no minus infinity

TokenBytes = Callable[[int], bytes]


def chat_logprobs(entries: Sequence[TokenLogprob], alternatives: int, token_bytes: TokenBytes) -> dict[str, object]:
    """`logprobs` of a chat choice."""
    content = []
    for entry in entries:
        made = _chat_entry(entry.token_id, entry.logprob, token_bytes)
        made["top_logprobs"] = [_chat_entry(*each, token_bytes) for each in entry.top[:alternatives]]
        content.append(made)
    return {"content": content, "refusal": None}


class TextLogprobs:
    """`logprobs` of a completion's choice, which say where in its text each token begins: one object per choice."""

    def __init__(self, alternatives: int, token_bytes: TokenBytes) -> None:
        self._alternatives = alternatives
        self._token_bytes = token_bytes
        self._offset = 0

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """Those of the next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            # A character begins with every byte that does not continue one.
            self._offset += sum(byte & 0xC0 != 0x80 for byte in self._token_bytes(entry.token_id))
        return {
            "tokens": [_shown(self._token_bytes(entry.token_id)) for entry in entries],
            "token_logprobs": [_bounded(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries] if self._alternatives else None,
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        """The alternatives, and the token itself if it is none of them. None at the prompt's first position."""
        if entry.logprob is None:
            return None
        top = [*entry.top[: self._alternatives], (entry.token_id, entry.logprob)]
        return {_shown(self._token_bytes(token_id)): _bounded(logprob) for token_id, logprob in top}


def prompt_logprobs(
    entries: Sequence[TokenLogprob], alternatives: int, token_bytes: TokenBytes
) -> list[dict[str, dict[str, object]] | None]:
    """`prompt_logprobs`: for each position the alternatives and the token itself by id; null at the first."""
    made: list[dict[str, dict[str, object]] | None] = []
    for entry in entries:
        if entry.logprob is None:
            made.append(None)
            continue
        ranked = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:alternatives], 1)]
        made.append(
            {
                str(token_id): {
                    "logprob": _bounded(logprob),
                    "rank": rank,
                    "decoded_token": _shown(token_bytes(token_id)),
                }
                for token_id, logprob, rank in [(entry.token_id, entry.logprob, entry.rank), *ranked]
            }
        )
    return made


def _chat_entry(token_id: int, logprob: float | None, token_bytes: TokenBytes) -> dict[str, object]:
    raw = token_bytes(token_id)
    return {"token": _shown(raw), "logprob": _bounded(logprob), "bytes": list(raw)}


def _shown(raw: bytes) -> str:
    """A token as a string; one that holds part of a character as OpenAI's API shows it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _bounded(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOGPROB_MIN)
