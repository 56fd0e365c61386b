"""Builds the tokenizer that the tables of a GGUF file describe.

Two kinds exist: `gpt2` (byte-level BPE with a list of merges) and `llama` (SentencePiece BPE, whose merges are implied
by the scores of its pieces). The tables come from an untrusted file: whatever is wrong with them is a ValueError that
names the key, raised before anything is built from them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import cast

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers

from llmsrv.text.parts import TokenizerParts, library_errors
from llmsrv.text.pre_tokenizers import PRE_TOKENIZERS

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # values of tokenizer.ggml.token_type

# Merges of a piece are found by cutting it everywhere, so an endless piece would cost its length squared.
_PIECE_CHARACTERS_MAX = 1024

# Control tokens that end a turn under their usual names. Files of chat models often declare the end of the text alone,
# and a chat that cannot stop at the end of its turn never stops.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


@dataclass(frozen=True)
class _Table:
    """The entries that both kinds have. Invariant: pieces and types have one length; every id lies in it."""

    pieces: list[str]
    types: list[float]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eos_ids: tuple[int, ...]

    def ids_of(self, kind: int) -> list[int]:
        return self._ids_by_kind.get(kind, [])

    @cached_property
    def _ids_by_kind(self) -> dict[float, list[int]]:
        ids: dict[float, list[int]] = {}
        for i, kind in enumerate(self.types):
            ids.setdefault(kind, []).append(i)
        return ids


def parts_from_gguf(metadata: Mapping[str, object]) -> TokenizerParts:
    """The tokenizer described by the `tokenizer.*` entries of a GGUF file. Raises ValueError naming the bad key."""
    model = _string(metadata, "tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model: {model!r} is not supported (known: 'gpt2', 'llama')")
    table = _read_table(metadata)
    backend, adds_bos, strips_space = (_byte_level if model == "gpt2" else _sentence_piece)(metadata, table)
    with library_errors("tokenizer.ggml.tokens"):
        _add_tokens(backend, table)

    adds_eos = _flag(metadata, "tokenizer.ggml.add_eos_token", False)
    return TokenizerParts(
        backend=backend,
        piece_of=dict(enumerate(table.pieces)),
        special_ids=frozenset(table.ids_of(_CONTROL) + table.ids_of(_UNKNOWN)),
        added_ids=frozenset(table.ids_of(_CONTROL) + table.ids_of(_UNKNOWN) + table.ids_of(_USER_DEFINED)),
        alphabet="byte_level" if model == "gpt2" else "sentence_piece",
        strips_leading_space=strips_space,
        bos_id=table.bos_id,
        eos_ids=table.eos_ids,
        prefix_ids=_wanted_id(metadata, "bos", table.bos_id, adds_bos),
        suffix_ids=_wanted_id(metadata, "eos", table.eos_id, adds_eos),
        chat_templates=_chat_templates(metadata),
        sha256=_content_hash(metadata),
    )


def merges_from_scores(
    pieces: list[str], scores: list[float], user_defined: Iterable[int], normal: Iterable[int]
) -> list[tuple[str, str]]:
    """The ranked merges of a SentencePiece vocabulary.

    SentencePiece joins the neighbours whose union has the highest score. As a list: every way to cut a piece into two
    pieces, pieces in falling order of score, the longest left part first. User-defined pieces are whole by decree and
    come before all others, in order of id.
    """
    user_defined = list(user_defined)
    by_score = sorted(normal, key=lambda i: -scores[i])
    mergeable = {pieces[i] for i in by_score}.union(pieces[i] for i in user_defined)

    def cuts(piece: str) -> list[tuple[str, str]]:
        return [
            (left, right)
            for k in range(len(piece) - 1, 0, -1)
            if (left := piece[:k]) in mergeable and (right := piece[k:]) in mergeable
        ]

    merges = [cut for i in user_defined for cut in cuts(pieces[i])]
    for _, tied_ids in groupby(by_score, key=scores.__getitem__):
        first, *others = tied_ids
        tied = cuts(pieces[first])
        if others:
            tied += [cut for i in others for cut in cuts(pieces[i])]
            tied.sort(key=lambda cut: (-len(cut[0]), -len(cut[1])))
        merges += tied
    return merges


def _byte_level(metadata: Mapping[str, object], table: _Table) -> tuple[tokenizers.Tokenizer, bool, bool]:
    name = _string(metadata, "tokenizer.ggml.pre", "default")
    spec = PRE_TOKENIZERS.get(name)
    if spec is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ValueError(f"tokenizer.ggml.pre: pre-tokenizer {name!r} is not known (known: {known})")
    merges = _merges(_strings(metadata, "tokenizer.ggml.merges"))
    with library_errors("tokenizer.ggml.merges"):
        backend = tokenizers.Tokenizer(models.BPE(_first_ids(table.pieces), merges, ignore_merges=spec.ignore_merges))
    normalizer = spec.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = spec.pre_tokenizer(_flag(metadata, "tokenizer.ggml.add_space_prefix", False))
    return backend, spec.adds_bos, False


def _merges(lines: list[str]) -> list[tuple[str, str]]:
    merges = [tuple(line.split(" ")) for line in lines]
    if any(len(merge) != 2 for merge in merges) or not all(map(all, merges)):
        i = next(i for i, merge in enumerate(merges) if len(merge) != 2 or not all(merge))
        raise ValueError(f"tokenizer.ggml.merges[{i}]: {lines[i]!r} is not two pieces with one space between them")
    return cast("list[tuple[str, str]]", merges)


def _sentence_piece(metadata: Mapping[str, object], table: _Table) -> tuple[tokenizers.Tokenizer, bool, bool]:
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(table.pieces))
    for i, piece in enumerate(table.pieces):
        if len(piece) > _PIECE_CHARACTERS_MAX:
            raise ValueError(
                f"tokenizer.ggml.tokens[{i}]: a piece of {len(piece)} characters (the limit is {_PIECE_CHARACTERS_MAX})"
            )
    for i in table.ids_of(_BYTE):
        if parse_byte_piece(table.pieces[i]) is None:
            raise ValueError(f"tokenizer.ggml.tokens[{i}]: {table.pieces[i]!r} is typed as a byte but is not '<0xNN>'")
    # Files spell user-defined runs of spaces as spaces; the text in which BPE finds them has ▁ in their place.
    pieces = [piece.replace(" ", "▁") if _is_space_run(piece) else piece for piece in table.pieces]
    normal = table.ids_of(_NORMAL) + table.ids_of(_UNUSED)
    merges = merges_from_scores(pieces, scores, table.ids_of(_USER_DEFINED), normal)
    unknown = None if table.unknown_id is None else table.pieces[table.unknown_id]
    with library_errors("tokenizer.ggml.tokens"):
        backend = tokenizers.Tokenizer(
            models.BPE(_first_ids(pieces), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
    prefix_space = _flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    escape = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape]) if prefix_space else escape
    return backend, True, prefix_space


def parse_byte_piece(piece: str) -> int | None:
    """The value of a byte piece, such as 10 for '<0x0A>', or None for any other piece."""
    if len(piece) != 6 or not piece.startswith("<0x") or piece[5] != ">":
        return None
    digits = piece[3:5]
    return int(digits, 16) if all(c in "0123456789abcdefABCDEF" for c in digits) else None


def _is_space_run(piece: str) -> bool:
    return bool(piece) and not piece.strip(" ▁")


def _first_ids(pieces: list[str]) -> dict[str, int]:
    """The first id of each piece: files pad their tables, and a padding piece may occur more than once."""
    ids = dict(zip(pieces, range(len(pieces)), strict=True))
    return ids if len(ids) == len(pieces) else {piece: i for i, piece in reversed(list(enumerate(pieces)))}


def _add_tokens(backend: tokenizers.Tokenizer, table: _Table) -> None:
    """Has control and user-defined tokens found in the raw text, before it is normalized and cut.

    Runs of spaces are left to the merges: a long run is then cut as Hugging Face cuts it.
    """
    for kinds, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
        names = [table.pieces[i] for i in sorted(i for kind in kinds for i in table.ids_of(kind))]
        tokens = [
            AddedToken(name, normalized=False, special=special) for name in names if name and not _is_space_run(name)
        ]
        if special:
            backend.add_special_tokens(tokens)
        else:
            backend.add_tokens(tokens)


def _read_table(metadata: Mapping[str, object]) -> _Table:
    pieces = _strings(metadata, "tokenizer.ggml.tokens")
    if not pieces:
        raise ValueError("tokenizer.ggml.tokens: the table is empty")
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(pieces))
    for kind in set(types):
        if kind not in range(_NORMAL, _BYTE + 1):
            raise ValueError(f"tokenizer.ggml.token_type[{types.index(kind)}]: {kind:g} is not a token type (1 to 6)")

    def id_of(name: str) -> int | None:
        return _token_id(metadata, f"tokenizer.ggml.{name}_token_id", len(pieces))

    control = {pieces[i]: i for i, kind in enumerate(types) if kind == _CONTROL}
    # In the Harmony format <|end|> ends a message, not the turn; <|return|> ends the turn there.
    turn_ends = [name for name in _TURN_ENDS if name in control and (name != "<|end|>" or "<|return|>" not in control)]
    eos_id = id_of("eos")
    candidates = [eos_id, id_of("eot"), id_of("eom"), *(control[name] for name in turn_ends)]
    unknown_id = id_of("unknown")
    if unknown_id is None:
        unknown_id = next((i for i, kind in enumerate(types) if kind == _UNKNOWN), None)
    return _Table(
        pieces=pieces,
        types=types,
        bos_id=id_of("bos"),
        eos_id=eos_id,
        unknown_id=unknown_id,
        eos_ids=tuple(dict.fromkeys(i for i in candidates if i is not None)),
    )


def _wanted_id(metadata: Mapping[str, object], name: str, token_id: int | None, default: bool) -> tuple[int, ...]:
    """The token that is put around every text: one id, or none."""
    key = f"tokenizer.ggml.add_{name}_token"
    if not _flag(metadata, key, default):
        return ()
    if token_id is not None:
        return (token_id,)
    if key in metadata:
        raise ValueError(f"{key}: is true, but tokenizer.ggml.{name}_token_id is missing")
    return ()


def _chat_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    templates = {}
    for key in metadata:
        if key == "tokenizer.chat_template":
            templates["default"] = _string(metadata, key)
        elif key.startswith("tokenizer.chat_template."):
            templates[key.removeprefix("tokenizer.chat_template.")] = _string(metadata, key)
    return templates


def _content_hash(metadata: Mapping[str, object]) -> str:
    """Covers every entry that shapes ids or text. REQUIRES: those entries have been validated."""
    shaping = {"model", "pre", "tokens", "token_type", "add_bos_token", "add_eos_token", "add_space_prefix"}
    shaping |= {f"{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown")}
    shaping.add("merges" if metadata["tokenizer.ggml.model"] == "gpt2" else "scores")
    content = {name: metadata.get(f"tokenizer.ggml.{name}") for name in sorted(shaping)}
    text = json.dumps(content, separators=(",", ":"), default=_plain)
    return hashlib.sha256(b"gguf\0" + text.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """NumPy arrays and numbers as JSON can write them."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else list(cast(Iterable[object], value))


def _value(metadata: Mapping[str, object], key: str) -> object:
    if key not in metadata:
        raise ValueError(f"{key}: is missing")
    return metadata[key]


def _string(metadata: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = default if default is not None and key not in metadata else _value(metadata, key)
    if not isinstance(value, str):
        raise ValueError(f"{key}: must be a string, not {type(value).__name__}")
    return value


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key}: must be a boolean, not {type(value).__name__}")
    return value


def _token_id(metadata: Mapping[str, object], key: str, count: int) -> int | None:
    if key not in metadata:
        return None
    value = metadata[key]
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{key}: must be an integer, not {type(value).__name__}")
    token_id = int(value.__index__())
    if not 0 <= token_id < count:
        raise ValueError(f"{key}: {token_id} is not in the vocabulary (tokenizer.ggml.tokens has {count} entries)")
    return token_id


def _entries(metadata: Mapping[str, object], key: str) -> list[object]:
    value = _value(metadata, key)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(f"{key}: must be an array, not {type(value).__name__}")
    return list(value)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    strings: list[str] = []
    for i, entry in enumerate(_entries(metadata, key)):
        if not isinstance(entry, str):
            raise ValueError(f"{key}[{i}]: must be a string, not {type(entry).__name__}")
        strings.append(entry)
    return strings


def _numbers(metadata: Mapping[str, object], key: str, count: int) -> list[float]:
    entries = _entries(metadata, key)
    if len(entries) != count:
        raise ValueError(f"{key}: has {len(entries)} entries, but tokenizer.ggml.tokens has {count}")
    try:
        array = np.asarray(entries)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{key}: must be an array of numbers: {error}") from error
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"{key}: must be an array of numbers")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{key}[{int(np.argmin(np.isfinite(numbers)))}]: is not finite")
    values: list[float] = numbers.tolist()
    return values
