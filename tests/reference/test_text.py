"""Token ids, decoded text and rendered conversations against transformers."""

import random

import pytest
import sentencepiece
import tokenizers
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import pre_tokenizers

from llmsrv.text.chat_template import ChatTemplate
from llmsrv.text.detokenizer import IncrementalDetokenizer
from llmsrv.text.tokenizer import Tokenizer
from llmsrv.weights.gguf import GgufFile

USER = [{"role": "user", "content": "Hi <b> é"}]
TURNS = [*USER, {"role": "assistant", "content": " Once upon "}]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TRIMMED = CHATML.replace("message['content']", "message['content'] | trim")
# One line of a template for each thing that templates in the wild make use of.
FEATURES = [
    "{{ bos_token }}{{ eos_token }}|{{ tools }}|{{ documents }}|{{ nothing }}",
    "{{ messages | tojson }}{{ [1, 2] | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "{% if true %}\n  a\n  {% endif %}\n  b\n",
    "{% generation %}x{% endgeneration %}\n y",
    "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ loop.last, loop.length }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v.strip() }}{% endfor %}{{ messages[0].get('x', 'y') }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index0 }}{{ m.content.split(' ') }}{% else %}-{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n * 2 ** 3 }}",
    "{% macro f(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}{{ f('a' * 3, y='%02d' % 7) }}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "{% for m in missing %}x{% endfor %}{{ messages | length }}{{ messages[0].content is string }}",
    "{% for m in messages | selectattr('role', 'equalto', 'user') | map(attribute='content') %}{{ m }}{% endfor %}",
]


def render(source, messages=USER, **kwargs):
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


@pytest.fixture(scope="module")
def hugging_face():
    """`apply_chat_template` of the reference, on a tokenizer that has nothing but its two special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")

    def apply(source, messages=USER, **kwargs):
        return tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **kwargs)

    return apply


@pytest.mark.parametrize("source", [CHATML, CHATML_TRIMMED, *FEATURES])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_hugging_face_does(hugging_face, source, add_generation_prompt):
    for messages in (USER, TURNS):
        expected = hugging_face(source, messages, add_generation_prompt=add_generation_prompt)
        assert render(source, messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("source", [CHATML, CHATML_TRIMMED])
@pytest.mark.parametrize("content", ["Hello", " Hello ", "Hello\n\n", "", " "])
def test_continues_the_final_message_as_hugging_face_does(hugging_face, source, content):
    messages = [*USER, {"role": "assistant", "content": content}]
    expected = hugging_face(source, messages, continue_final_message=True)
    assert render(source, messages, add_generation_prompt=False, continue_final_message=True) == expected
    assert messages[-1]["content"] == content


def test_passes_tools_and_variables_as_hugging_face_does(hugging_face):
    source = "{{ tools | tojson }}{{ enable_thinking }}"
    tools = [{"type": "function", "function": {"name": "f", "description": "é <x>", "parameters": {}}}]
    text = render(source, tools=tools, enable_thinking=False)
    assert text == hugging_face(source, tools=tools, enable_thinking=False)


def test_smollm2_template_renders_as_hugging_face_does(smollm2_path, hugging_face):
    tokenizer = Tokenizer.from_gguf(GgufFile(smollm2_path).metadata)
    source = tokenizer.chat_templates["default"]
    text = ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token).render(USER)
    assert text == hugging_face(source, add_generation_prompt=True)


TEXTS = [
    "",
    " ",
    "Hello world, don't I'LL we've",
    "  leading, inner   and trailing  \n",
    "a\n\n\nb\r\n\tc \t\n d",
    "def f(x: int) -> int:\n    return x ** 2  # 日本語\n",
    "0 12 1234567 3.14159 v2  7\r\n8 ½ ²",
    "naïve café, e\u0301 n\u0303 Ünïcödé ﬁ",
    "中文字符。한국어 العربية हिन्दी ไทย",
    "👩\u200d👩\u200d👧 🇩🇪 👍🏽 \u200b\ufeff\x00\x01",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|not a token|>",
    "https://example.org/a?b=1&c=%20#d",
    "x" * 300 + " " * 70 + "\n" * 40,
]


def test_smollm2_ids_equal_transformers(smollm2_path):
    smollm2 = Tokenizer.from_gguf(GgufFile(smollm2_path).metadata)
    reference = transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # Its conversion forgets that SmolLM2 cuts digits off first, which shows where spaces stand before a digit.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in TEXTS:
        ids = smollm2.encode(text)
        assert ids == reference.encode(text), text
        for skip in (True, False):
            assert smollm2.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip), text


GEMMA3_TEXTS = [
    *(text.replace(" " * 70, " " * 31) for text in TEXTS),  # longer runs follow Hugging Face, not SentencePiece
    "<table><tr><td>x</td></tr></table> <b>b</b> [multimodal]",
    "▁ ▁▁ a▁b",
    "<0x41> <unk <s> </s>",
    "\t" * 40 + "\n" * 70,
]
# Inclusive ranges of characters: ASCII, Latin, Greek to Hebrew, Arabic, Indic, punctuation, kana, Han, Hangul, emoji.
SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0x2000, 0x206F), (0x3040, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF),
]  # fmt: skip


@pytest.fixture(scope="module")
def gemma3_metadata(gemma3_path):
    return GgufFile(gemma3_path).metadata


@pytest.fixture(scope="module")
def gemma3(gemma3_metadata):
    return Tokenizer.from_gguf(gemma3_metadata)


@pytest.fixture(scope="module")
def gemma3_sentence_piece(gemma3_metadata):
    """SentencePiece itself, on the tables of the file."""
    model = sentencepiece_model_pb2.ModelProto()
    tables = (gemma3_metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    for piece, score, kind in zip(*tables, strict=True):
        kind = model.SentencePiece.UNKNOWN if piece == "<unk>" else int(kind)  # the same numbers, but for this one
        escaped = piece.replace(" ", "▁") if not piece.strip(" ") else piece
        model.pieces.add(piece=escaped, score=float(score), type=kind)
    trainer = model.trainer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = trainer.BPE, True, len(model.pieces)
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = range(4)
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = "<pad>", "<eos>", "<bos>", "<unk>"
    normalizer = model.normalizer_spec
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def random_texts(count):
    draw = random.Random(3)
    for _ in range(count):
        low, high = draw.choice(SCRIPTS)
        yield "".join(chr(draw.randint(low, high)) if draw.random() < 0.8 else " " for _ in range(draw.randint(1, 30)))


def test_gemma3_ids_equal_sentence_piece(gemma3, gemma3_sentence_piece):
    for text in [*GEMMA3_TEXTS, *random_texts(3000)]:
        ids = gemma3.encode(text)
        assert ids == [2, *gemma3_sentence_piece.encode(text)], text
        assert gemma3.decode(ids) == text.replace("▁", " ")  # which SentencePiece does not tell apart


def test_gemma3_streams_give_the_text(gemma3):
    for text in [*GEMMA3_TEXTS, *random_texts(300)]:
        prompt, *output = gemma3.encode(text)
        detokenizer = IncrementalDetokenizer(gemma3, [prompt])
        assert "".join([*(detokenizer.push([token]) for token in output), detokenizer.finish()]) == gemma3.decode(
            output
        )


def test_gemma3_control_tokens(gemma3):
    assert gemma3.encode("<start_of_turn>user\nhi<end_of_turn>\n") == [2, 105, 2364, 107, 2202, 106, 107]
    assert gemma3.decode([2, 105, 2364, 107, 2202, 106, 107]) == "user\nhi\n"
    assert (gemma3.bos_token, gemma3.eos_token, gemma3.eos_token_ids) == ("<bos>", "<eos>", (1, 106))
    assert gemma3.chat_templates == {}  # a base model
