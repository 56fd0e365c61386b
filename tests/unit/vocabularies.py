"""Two small vocabularies, one of each GGUF kind, with a token for every byte."""

from llmsrv.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_characters():
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for characters from 256 on."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def byte_level_metadata():
    """`gpt2`: three control tokens, the 256 bytes, and a few merges."""
    alphabet = byte_characters()
    merges = ["a b", "Ġ ab", "Ã ©", "ä \xb8", "ä\xb8 Ń", "ab ab"]
    pieces = ["<|begin|>", "<|end|>", "<|é ▁|>", *alphabet.values(), *(m.replace(" ", "") for m in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * (len(pieces) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def sentence_piece_metadata():
    """`llama`: control tokens, the 256 bytes, and scored pieces with overlaps, so that the order of merges matters."""
    byte_pieces = [f"<0x{b:02X}>" for b in range(256)]
    letters = ["▁", "a", "b", "c", "é", "中"]
    merged = ["ab", "▁a", "bc", "▁ab", "abc", "ca", "aa", "▁▁", "cab", "中é", "bcab", "aab"]
    pieces = ["<unk>", "<s>", "</s>", *byte_pieces, *merged, *letters, "[user]"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(merged) + len(letters))] + [0.0],
        "tokenizer.ggml.token_type": (
            [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(merged) + len(letters)) + [USER_DEFINED]
        ),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata())
SENTENCE_PIECE = Tokenizer.from_gguf(sentence_piece_metadata())


def byte_level_ids(data):
    """One token for each byte."""
    order = list(byte_characters())
    return [3 + order.index(byte) for byte in data]


def sentence_piece_ids(data):
    """One token for each byte."""
    return [3 + byte for byte in data]
