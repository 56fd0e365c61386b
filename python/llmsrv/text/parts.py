"""What a tokenizer is made of, whichever file it came from, and the guard around the library that runs it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import tokenizers

# How a piece spells its bytes. `byte_level`: one character of GPT-2's alphabet for each byte. `sentence_piece`: text
# with ▁ for a space, or <0xNN>. `opaque`: bytes depend on the neighbours (WordPiece and others).
Alphabet = Literal["byte_level", "sentence_piece", "opaque"]


@dataclass(frozen=True)
class TokenizerParts:
    """One tokenizer as data. Nothing changes it after construction, so that threads may share it."""

    backend: tokenizers.Tokenizer
    piece_of: Mapping[int, str]  # every id that has a token; the text as the file spells it
    special_ids: frozenset[int]  # left out of decoded text on request
    added_ids: frozenset[int]  # found in the raw text before it is cut; includes special_ids
    alphabet: Alphabet
    strips_leading_space: bool  # whether decoding drops the one space that encoding put before the text
    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of them ends a generation; the file's own comes first
    prefix_ids: tuple[int, ...]  # put before every encoded text, unless the backend does that itself
    suffix_ids: tuple[int, ...]  # likewise after it
    chat_templates: Mapping[str, str]  # by name; "default" is the usual one
    sha256: str


@contextmanager
def library_errors(source: str) -> Iterator[None]:
    """Turns what the tokenizers library raises inside the block, its panics included, into a ValueError of `source`."""
    try:
        yield
    except BaseException as error:
        # A Rust panic arrives as PanicException, which derives from BaseException and cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(f"{source}: {error}") from error
        raise
