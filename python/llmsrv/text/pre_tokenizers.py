"""The pre-tokenizers of byte-level BPE vocabularies, by the name that a GGUF file gives in `tokenizer.ggml.pre`.

A pre-tokenizer cuts text into the words within which BPE merges. The vocabulary was trained with one exact cut; any
other gives token ids that the model has never seen in that place, so an unknown name is an error, never a guess.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES

# GPT-4's pattern and its descendants differ in how many digits stay together and in what a letter is.
_DIGITS_BY_THREE = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
)
_DIGITS_ALONE = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_DIGITS_ALONE_MARKS_IN_WORDS = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)

# A word that changes from upper to lower case once: the capital run belongs to the lower-case run that follows it.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"


def _cased_words(contractions: str, digits: str) -> str:
    return (
        rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{contractions}|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{contractions}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
    )


_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""


@dataclass(frozen=True)
class PreTokenizerSpec:
    """How text is cut before BPE."""

    splits: tuple[str, ...] = ()  # applied in this order; what a pattern matches becomes a word of its own
    gpt2_pattern: bool = False  # whether GPT-2's pattern cuts what the splits left
    nfc: bool = False  # whether text is brought to NFC first
    ignore_merges: bool = False  # whether a word that is a token is taken whole, without merging
    adds_bos: bool = False  # the default of `tokenizer.ggml.add_bos_token`

    def pre_tokenizer(self, add_prefix_space: bool) -> pre_tokenizers.PreTokenizer:
        """The cut, followed by the byte alphabet."""
        stages: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.splits
        ]
        stages.append(pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=self.gpt2_pattern))
        return pre_tokenizers.Sequence(stages)

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to text before the cut."""
        return normalizers.NFC() if self.nfc else None


_GPT2 = PreTokenizerSpec(gpt2_pattern=True)
_GPT2_NFC = PreTokenizerSpec(gpt2_pattern=True, nfc=True)
_GPT2_DIGITS_ALONE = PreTokenizerSpec(splits=(r"\p{N}",), gpt2_pattern=True)
_GPT2_DIGITS_ALONE_NFC = PreTokenizerSpec(splits=(r"\p{N}",), gpt2_pattern=True, nfc=True)
_LLAMA3 = PreTokenizerSpec(splits=(_DIGITS_BY_THREE,), ignore_merges=True, adds_bos=True)
_GPT4 = PreTokenizerSpec(splits=(_DIGITS_BY_THREE,))
_GPT4O = PreTokenizerSpec(splits=(_cased_words(rf"(?i:{_CONTRACTIONS})?", r"\p{N}{1,3}"),))
_DEEPSEEK_V3 = PreTokenizerSpec(
    splits=(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        _PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES,
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizerSpec] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2_NFC,
    "olmo": _GPT2_NFC,
    "smollm": _GPT2_DIGITS_ALONE,
    "starcoder": _GPT2_DIGITS_ALONE,
    "refact": _GPT2_DIGITS_ALONE,
    "codeshell": _GPT2_DIGITS_ALONE,
    "command-r": _GPT2_DIGITS_ALONE_NFC,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "smaug-bpe": _GPT4,
    "dbrx": _GPT4,
    "glm4": _GPT4,
    "qwen2": PreTokenizerSpec(splits=(_DIGITS_ALONE,), nfc=True),
    "deepseek-r1-qwen": PreTokenizerSpec(splits=(_DIGITS_ALONE,)),
    "qwen35": PreTokenizerSpec(splits=(_DIGITS_ALONE_MARKS_IN_WORDS,), nfc=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": PreTokenizerSpec(splits=(_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "deepseek-coder": PreTokenizerSpec(
        splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "deepseek-v3": _DEEPSEEK_V3,
}
