"""Token ids, decoded text and rendered conversations against transformers."""

import pytest
import tokenizers
import transformers
from tokenizers import pre_tokenizers

from llmsrv.text.chat_template import ChatTemplate
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
