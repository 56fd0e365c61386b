"""Text to token ids and back.

A `Tokenizer` never changes after construction: all methods may be called from any thread. Encoding runs in the
`tokenizers` library with the GIL released. Decoding of byte-level and SentencePiece vocabularies is done here, on
bytes, so that whole texts, streams (detokenizer.py) and single tokens agree on every byte.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken

from llmsrv.text.gguf_vocabulary import parse_byte_piece, parts_from_gguf
from llmsrv.text.parts import Alphabet, TokenizerParts, library_errors


class Tokenizer:
    """A vocabulary with its rules. Made by `from_file` or `from_gguf`."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._backend = parts.backend
        self._bytes_of: dict[int, bytes] = {}  # filled on first use; two threads may compute an entry, to equal values

    @classmethod
    def from_file(cls, path: str | Path, config: Mapping[str, object] | None = None) -> "Tokenizer":
        """Reads a tokenizer.json. `config` is the content of tokenizer_config.json beside it.

        An `eos_token_id` in `config` (a number or a list, as in generation_config.json) adds ids that end a generation.
        Raises ValueError for a malformed file or entry.
        """
        return cls(_parts_from_file(Path(path), config or {}))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Builds the tokenizer from a GGUF file's key/value table. Raises ValueError naming the malformed key."""
        return cls(parts_from_gguf(metadata))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._parts.piece_of, default=-1) + 1

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the vocabulary has one."""
        return self._parts.bos_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation. The vocabulary's own end-of-text token comes first."""
        return self._parts.eos_ids

    @property
    def bos_token(self) -> str:
        """The text of the token that begins a text; empty if there is none."""
        return "" if self._parts.bos_id is None else self._parts.piece_of[self._parts.bos_id]

    @property
    def eos_token(self) -> str:
        """The text of the token that ends a text; empty if there is none."""
        return self._parts.piece_of[self._parts.eos_ids[0]] if self._parts.eos_ids else ""

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """The chat templates that came with the vocabulary, by name. The usual one is called "default"."""
        return self._parts.chat_templates

    @property
    def sha256(self) -> str:
        """Hash of the content: equal for equal tokenizers, on every machine and in every run."""
        return self._parts.sha256

    @property
    def decodes_by_bytes(self) -> bool:
        """Whether decoded text is exactly the concatenated bytes of its tokens, read as UTF-8."""
        return self._parts.alphabet != "opaque"

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops one space at the very beginning of the text."""
        return self._parts.strips_leading_space

    def is_special(self, token_id: int) -> bool:
        """Whether the token controls the model and is no part of the text."""
        return token_id in self._parts.special_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`. Raises ValueError if `text` is not valid Unicode."""
        _check_unicode(text)
        with library_errors("tokenizer"):
            # The batch call skips the offsets and, unlike the single one, works without the GIL.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return self._surrounded(encoding.ids, add_special_tokens)

    def encode_with_offsets(
        self, text: str, add_special_tokens: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The token ids, and for each the range of bytes in the UTF-8 form of `text` that it covers.

        A token that is a part of a character covers the whole of it; a token that was added covers nothing, (0, 0).
        """
        _check_unicode(text)
        with library_errors("tokenizer"):
            (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        offsets: list[tuple[int, int]] = encoding.offsets
        if not text.isascii():
            byte_at = _byte_positions(text)
            offsets = [(byte_at[begin], byte_at[end]) for begin, end in offsets]
        before, after = (self._parts.prefix_ids, self._parts.suffix_ids) if add_special_tokens else ((), ())
        return [*before, *encoding.ids, *after], [(0, 0)] * len(before) + offsets + [(0, 0)] * len(after)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD, one for each maximal part of a character.

        An id without a token adds nothing: models have more rows than their vocabulary. Raises ValueError if negative.
        """
        if not self.decodes_by_bytes:
            return self.decode_opaque(list(ids), skip_special_tokens)
        special = self._parts.special_ids if skip_special_tokens else ()
        text = b"".join(self.token_bytes(i) for i in ids if i not in special).decode("utf-8", "replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def decode_opaque(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Decodes by the library's own rules: for vocabularies whose text is not made of the bytes of each token."""
        known = [i for i in ids if _check_id(i) in self._parts.piece_of]
        with library_errors("tokenizer"):
            return self._backend.decode(known, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that one token stands for: possibly a part of a character; for a special token its name.

        Empty for an id without a token. Raises ValueError if negative.
        """
        data = self._bytes_of.get(token_id)
        if data is None:
            piece = self._parts.piece_of.get(_check_id(token_id))
            if piece is None:
                return b""
            data = self._bytes_of[token_id] = self._bytes_of_piece(token_id, piece)
        return data

    def _bytes_of_piece(self, token_id: int, piece: str) -> bytes:
        alphabet = self._parts.alphabet
        if alphabet == "opaque":
            return self.decode_opaque([token_id], skip_special_tokens=False).encode("utf-8")
        if alphabet == "byte_level":
            return piece.encode("utf-8") if token_id in self._parts.added_ids else _byte_level_bytes(piece)
        if token_id in self._parts.special_ids:
            return piece.encode("utf-8")
        byte = parse_byte_piece(piece)
        return piece.replace("▁", " ").encode("utf-8") if byte is None else bytes([byte])

    def _surrounded(self, ids: list[int], add_special_tokens: bool) -> list[int]:
        if not add_special_tokens:
            return ids
        return [*self._parts.prefix_ids, *ids, *self._parts.suffix_ids]


def _make_byte_characters() -> dict[int, int]:
    """From each character of GPT-2's alphabet to its byte. Printable Latin-1 stands for itself, the rest for 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_by_character = {byte: byte for byte in printable}
    bytes_by_character.update({256 + i: byte for i, byte in enumerate(others)})
    # The characters that share a number with a byte but are not of the alphabet must not pass as that byte.
    bytes_by_character.update(dict.fromkeys(others, 0xFFFF))
    return bytes_by_character


_BYTE_OF_CHARACTER = _make_byte_characters()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return piece.translate(_BYTE_OF_CHARACTER).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")  # not spelled in the alphabet: the file means the text itself


def _check_id(token_id: int) -> int:
    if token_id < 0:
        raise ValueError(f"token id {token_id} is negative")
    return token_id


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"text is not valid Unicode: a lone surrogate at character {error.start}") from error


def _byte_positions(text: str) -> list[int]:
    """Where each character of `text`, and its end, lies in the UTF-8 form."""
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (code_points >= 0x80).astype(np.int64) + (code_points >= 0x800) + (code_points >= 0x10000)
    positions: list[int] = [0, *np.cumsum(widths).tolist()]
    return positions


def _parts_from_file(path: Path, config: Mapping[str, object]) -> TokenizerParts:
    data = path.read_bytes()
    with library_errors(str(path)):
        backend = tokenizers.Tokenizer.from_buffer(data)
        # A file may carry the settings of its training run; a server must never cut or pad a prompt by them.
        backend.no_truncation()
        backend.no_padding()
        _add_configured_tokens(backend, config)
        added = backend.get_added_tokens_decoder()
        id_of = backend.get_vocab(with_added_tokens=True)
        alphabet, strips_space = _decoding_rules(backend)

    def token_id(key: str) -> int | None:
        name = _token_text(config, key)
        if name is not None and name not in id_of:
            raise ValueError(f"tokenizer_config.json: {key}: {name!r} is not in the vocabulary of {path}")
        return None if name is None else id_of[name]

    piece_of = {i: piece for piece, i in id_of.items()}
    eos_ids = [i for i in chain([token_id("eos_token")], _configured_eos_ids(config, piece_of)) if i is not None]
    used_config = {key: config.get(key) for key in ("added_tokens_decoder", "bos_token", "eos_token", "eos_token_id")}
    digest = hashlib.sha256(b"json\0" + data + b"\0" + json.dumps(used_config, sort_keys=True).encode("ascii"))
    return TokenizerParts(
        backend=backend,
        piece_of=piece_of,
        special_ids=frozenset(i for i, token in added.items() if token.special),
        added_ids=frozenset(added),
        alphabet=alphabet,
        strips_leading_space=strips_space,
        bos_id=token_id("bos_token"),
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        prefix_ids=(),  # the file's own post-processor adds them
        suffix_ids=(),
        chat_templates=_configured_templates(config),
        sha256=digest.hexdigest(),
    )


def _decoding_rules(backend: tokenizers.Tokenizer) -> tuple[Alphabet, bool]:
    """How the file's decoder spells bytes, and whether it drops one leading space."""
    if backend.decoder is None:
        return "opaque", False
    stage = json.loads(backend.decoder.__getstate__())
    stages = stage["decoders"] if stage["type"] == "Sequence" else [stage]
    if [s["type"] for s in stages] == ["ByteLevel"]:
        return "byte_level", False
    space_to_text = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip_one = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    sentence_piece = [space_to_text, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if stages in (sentence_piece, [*sentence_piece, strip_one]):
        return "sentence_piece", stages[-1] == strip_one
    return "opaque", False


def _add_configured_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, object]) -> None:
    """Adds the tokens of `added_tokens_decoder` that tokenizer.json lacks, under exactly the ids that it gives."""
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, Mapping):
        raise ValueError("tokenizer_config.json: added_tokens_decoder: must be an object")
    for key, entry in sorted(entries.items(), key=lambda item: (len(str(item[0])), str(item[0]))):
        where = f"tokenizer_config.json: added_tokens_decoder: {key!r}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
            raise ValueError(f"{where}: must be an object with a string 'content'")
        content = entry["content"]
        if backend.token_to_id(content) is None:
            flags = {name: bool(entry.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "special")}
            normalized = bool(entry.get("normalized", not flags["special"]))
            backend.add_tokens([AddedToken(content, normalized=normalized, **flags)])
        if str(backend.token_to_id(content)) != str(key):
            raise ValueError(f"{where}: {content!r} has the id {backend.token_to_id(content)} in tokenizer.json")


def _token_text(config: Mapping[str, object], key: str) -> str | None:
    """A token of tokenizer_config.json: its text, or an object with the text as `content`."""
    value = config.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise ValueError(f"tokenizer_config.json: {key}: must be a string or an object with a string 'content'")
    return value


def _configured_eos_ids(config: Mapping[str, object], piece_of: Mapping[int, str]) -> list[int]:
    value = config.get("eos_token_id")
    entries: list[object] = value if isinstance(value, list) else [] if value is None else [value]
    ids: list[int] = []
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int) or entry not in piece_of:
            raise ValueError(f"eos_token_id: {entry!r} is not the id of a token")
        ids.append(entry)
    return ids


def _configured_templates(config: Mapping[str, object]) -> dict[str, str]:
    """`chat_template` is one template, or a list of objects with `name` and `template`."""
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    templates = {}
    for entry in value if isinstance(value, list) else [value]:
        name, template = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            raise ValueError("tokenizer_config.json: chat_template: must be a string or a list of {name, template}")
        templates[name] = template
    return templates
