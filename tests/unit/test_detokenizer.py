"""Streaming text equals whole text, and stop strings are found wherever they lie, for every way to cut the ids."""

import itertools

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models
from vocabularies import BYTE_LEVEL, SENTENCE_PIECE, byte_level_ids, sentence_piece_ids

from llmsrv.text.detokenizer import IncrementalDetokenizer
from llmsrv.text.tokenizer import Tokenizer

# Bytes of characters of each length, of surrogates, of U+FFFD itself, beyond the last code point, and never valid.
TELLING_BYTES = b" ab\xc3\xa9\xe4\xb8\xad\xed\xa0\x80\xf0\x9f\x91\x8d\xef\xbf\xbd\xf4\x90\xff"


def ids_of(tokenizer, ids_of_bytes):
    """Ids of all kinds, one past the vocabulary included, and often those that make or break a character."""
    telling = st.sampled_from(ids_of_bytes(TELLING_BYTES))
    return st.tuples(st.just(tokenizer), st.lists(telling | st.integers(0, tokenizer.vocab_size), max_size=12))


ids_of_either = ids_of(BYTE_LEVEL, byte_level_ids) | ids_of(SENTENCE_PIECE, sentence_piece_ids)
# Few different characters, so that stop strings overlap each other and the text.
stop_lists = st.lists(st.text("ab é中👍\N{REPLACEMENT CHARACTER}", min_size=1, max_size=4), max_size=4)


def push_in_chunks(detokenizer, ids, cuts):
    """The deltas of pushing `ids` cut at the places `cuts`, with `finish` last."""
    edges = [0, *sorted(cut for cut in cuts if cut <= len(ids)), len(ids)]
    return [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(edges)] + [detokenizer.finish()]


def text_after(tokenizer, prompt, output, skip):
    """What the output adds: the decoded whole without what it has in common with the decoded prompt."""
    shown, whole = tokenizer.decode(prompt, skip), tokenizer.decode([*prompt, *output], skip)
    common = 0
    while common < min(len(shown), len(whole)) and shown[common] == whole[common]:
        common += 1
    return whole[common:]


def naive_stop(text, stops):
    """By trying everything: the end and the stop string of the match that ends earliest, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(ids_of_either, st.integers(0, 12), st.lists(st.integers(0, 12)), st.booleans())
def test_any_chunking_gives_the_decoded_text(case, prompt_length, cuts, skip):
    tokenizer, ids = case
    prompt, output = ids[:prompt_length], ids[prompt_length:]
    deltas = push_in_chunks(IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip), output, cuts)
    assert "".join(deltas) == text_after(tokenizer, prompt, output, skip)


@given(st.binary(max_size=24), st.lists(st.integers(0, 24)))
def test_arbitrary_bytes_decode_as_the_whole_does(data, cuts):
    for tokenizer, ids in ((BYTE_LEVEL, byte_level_ids(data)), (SENTENCE_PIECE, sentence_piece_ids(data))):
        text = data.decode("utf-8", "replace")
        if tokenizer.strips_leading_space:
            text = text.removeprefix(" ")
        assert "".join(push_in_chunks(IncrementalDetokenizer(tokenizer, []), ids, cuts)) == text


@given(ids_of_either, stop_lists, st.lists(st.integers(0, 12)), st.booleans(), st.booleans())
def test_stop_strings_match_a_search_of_the_whole_text(case, stops, cuts, include_stop, skip):
    tokenizer, ids = case
    detokenizer = IncrementalDetokenizer(
        tokenizer, [], stop_strings=stops, include_stop=include_stop, skip_special_tokens=skip
    )
    text = "".join(push_in_chunks(detokenizer, ids, cuts))

    whole = tokenizer.decode(ids, skip)
    match = naive_stop(whole, stops)
    if match is None:
        assert (text, detokenizer.matched_stop, detokenizer.tokens_until_stop) == (whole, None, None)
        return
    end, stop = match
    assert text == (whole[:end] if include_stop else whole[: end - len(stop)])
    assert detokenizer.matched_stop == stop
    assert detokenizer.push(ids) == ""
    assert detokenizer.finish() == ""

    one_by_one = IncrementalDetokenizer(tokenizer, [], stop_strings=stops, skip_special_tokens=skip)
    needed = 0
    while one_by_one.matched_stop is None and needed < len(ids):
        one_by_one.push(ids[needed : needed + 1])
        needed += 1
    assert detokenizer.tokens_until_stop == needed


@given(st.text("ab", max_size=12), stop_lists)
def test_holds_back_exactly_what_may_begin_a_stop_string(text, stops):
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], stop_strings=stops)
    shown = "".join(detokenizer.push([token_id]) for token_id in byte_level_ids(text.encode()))
    if detokenizer.matched_stop is not None:
        return
    beginnings = [stop[:k] for stop in stops for k in range(len(stop)) if text.endswith(stop[:k])]
    held = max(beginnings, key=len, default="")
    assert shown == text.removesuffix(held)


@pytest.mark.parametrize("text", ["👩\u200d👩\u200d👧 🇩🇪 👍🏽", "中文字符。한국어 हिन्दी", "e\u0301\ufb00\u200d\ufeff"])
def test_no_delta_has_a_part_of_a_character(text):
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], stop_strings=["ZZZ"])  # vLLM PR 44620: stop with CJK output
    deltas = [detokenizer.push([token_id]) for token_id in byte_level_ids(text.encode())] + [detokenizer.finish()]
    assert "".join(deltas) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in delta for delta in deltas)


def test_cut_character_becomes_one_replacement_at_the_end():
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [])
    assert [detokenizer.push(byte_level_ids(b"a\xe4\xb8")), detokenizer.finish(), detokenizer.finish()] == [
        "a",
        "\N{REPLACEMENT CHARACTER}",
        "",
    ]


def test_wrong_byte_comes_out_at_once():
    assert IncrementalDetokenizer(BYTE_LEVEL, []).push(byte_level_ids(b"\xff")) == "\N{REPLACEMENT CHARACTER}"


def test_output_completes_a_character_that_the_prompt_began():
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, byte_level_ids(b"a\xe4\xb8"))
    assert detokenizer.push(byte_level_ids(b"\xad!")) == "中!"


def test_leading_space_is_kept_after_a_prompt_only():
    word = SENTENCE_PIECE.encode("ab", add_special_tokens=False)
    bos = [SENTENCE_PIECE.bos_token_id]
    assert IncrementalDetokenizer(SENTENCE_PIECE, bos).push(word) == "ab"
    assert IncrementalDetokenizer(SENTENCE_PIECE, bos + word).push(word) == " ab"


def test_stop_string_across_tokens_and_characters():
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], stop_strings=["é\n\n"])
    deltas = [detokenizer.push([token_id]) for token_id in byte_level_ids("aé\né\n\nb".encode())]
    assert deltas == ["a", "", "", "", "", "é\n", "", "", ""]
    assert (detokenizer.matched_stop, detokenizer.tokens_until_stop) == ("é\n\n", 8)


def test_earliest_end_wins_then_the_longest():
    for stops in (["abcd", "bc", "abc"], ["abc", "abcd", "bc"]):
        detokenizer = IncrementalDetokenizer(BYTE_LEVEL, [], stop_strings=stops)
        assert detokenizer.push(byte_level_ids(b"xabcd")) == "x"
        assert detokenizer.matched_stop == "abc"


def test_special_tokens_are_text_only_on_request():
    ids = [*byte_level_ids(b"a"), *BYTE_LEVEL.eos_token_ids, *byte_level_ids(b"b")]
    assert IncrementalDetokenizer(BYTE_LEVEL, []).push(ids) == "ab"
    assert IncrementalDetokenizer(BYTE_LEVEL, [], skip_special_tokens=False).push(ids) == "a<|end|>b"


def test_empty_stop_string_is_an_error():
    with pytest.raises(ValueError, match="stop"):
        IncrementalDetokenizer(BYTE_LEVEL, [], stop_strings=["a", ""])


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory):
    pieces = ["[UNK]", "hello", "wor", "##ld", ".", "'", "s", "a"]
    backend = tokenizers.Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    path = tmp_path_factory.mktemp("word_piece") / "tokenizer.json"
    backend.save(str(path))
    return Tokenizer.from_file(path)


@given(prompt=st.lists(st.integers(0, 7), max_size=8), output=st.lists(st.integers(0, 7), max_size=20))
def test_other_decoders_stream_what_they_decode(word_piece, prompt, output):
    detokenizer = IncrementalDetokenizer(word_piece, prompt)
    text = "".join(detokenizer.push([token_id]) for token_id in output) + detokenizer.finish()
    assert word_piece.decode(prompt) + text == word_piece.decode(prompt + output)
