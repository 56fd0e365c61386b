"""Templates render as Hugging Face renders them, fail with their own words, and cannot run away."""

import json
import time

import pytest

from llmsrv.text.chat_template import ChatTemplate

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
    transformers = pytest.importorskip("transformers")
    import tokenizers

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


def test_continues_the_last_text_of_a_message_in_parts():
    source = (
        "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else '<image>' }}"
        "{% endfor %}<end>{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}, {"type": "image"}]
    messages = [{"role": "assistant", "content": parts}]
    assert render(source, messages, add_generation_prompt=False, continue_final_message=True) == "ab "


def test_tools_and_further_variables_reach_the_template(hugging_face):
    source = "{{ tools | tojson }}{{ enable_thinking }}{{ bos_token }}"
    tools = [{"type": "function", "function": {"name": "f", "description": "é <x>", "parameters": {}}}]
    text = render(source, tools=tools, enable_thinking=False, bos_token="<bos>")
    assert text == json.dumps(tools, ensure_ascii=False) + "False<bos>"
    assert text == hugging_face(source, tools=tools, enable_thinking=False, bos_token="<bos>")


def test_smollm2_template(smollm2_path, hugging_face):
    from llmsrv.text.tokenizer import Tokenizer
    from llmsrv.weights.gguf import GgufFile

    tokenizer = Tokenizer.from_gguf(GgufFile(smollm2_path).metadata)
    source = tokenizer.chat_templates["default"]
    text = ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token).render(USER)
    assert text == hugging_face(source, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == tokenizer.bos_token_id  # the template's own; nothing adds a second
    assert tokenizer.bos_token_id not in tokenizer.encode("Hi")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Only user and assistant roles are supported!') }}", "Only user and assistant roles"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% for x in none %}{% endfor %}", "not iterable"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_failure_of_a_template_is_a_value_error_with_its_words(source, words):
    with pytest.raises(ValueError, match=words):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'a }}", "{% nonsense %}", "{{ x | no_such_filter }}", "{% for %}"])
def test_invalid_template_is_a_value_error_with_its_line(source):
    with pytest.raises(ValueError, match="chat template, line 2"):
        ChatTemplate("\n" + source, "", "")


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10 ** 9) | length }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set t = 'a' * 10 ** 6 %}{% for i in range(99999) %}{{ t }}{% endfor %}",
    ],
)
def test_hostile_template_is_stopped(source):
    begin_s = time.monotonic()
    with pytest.raises(ValueError, match=r"too large|Range too big|more than|longer than"):
        render(source)
    assert time.monotonic() - begin_s < 20


def test_each_render_has_all_its_steps():
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}x", "", "")
    assert {template.render(USER) for _ in range(15)} == {"x"}


def test_wrong_requests():
    with pytest.raises(ValueError, match="empty"):
        render(CHATML, [])
    with pytest.raises(ValueError, match="exclude each other"):
        render(CHATML, continue_final_message=True)
    for content in (None, [], 3, [{"type": "image"}]):
        with pytest.raises(ValueError, match="no text to continue"):
            render("x", [{"content": content}], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ValueError, match="does not show the final message"):
        render("x", TURNS, add_generation_prompt=False, continue_final_message=True)
