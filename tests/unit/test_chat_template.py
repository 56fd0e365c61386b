"""Templates render as Hugging Face renders them, fail with their own words, and cannot run away."""

import json

import pytest

from llmsrv.text import template_sandbox
from llmsrv.text.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi <b> é"}]
TURNS = [*USER, {"role": "assistant", "content": " Once upon "}]


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source, messages=USER, **kwargs):
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


def test_continues_the_last_text_of_a_message_in_parts():
    source = (
        "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else '<image>' }}"
        "{% endfor %}<end>{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}, {"type": "image"}]
    messages = [{"role": "assistant", "content": parts}]
    assert render(source, messages, add_generation_prompt=False, continue_final_message=True) == "ab "


def test_tools_and_further_variables_reach_the_template():
    source = "{{ tools | tojson }}{{ enable_thinking }}{{ bos_token }}"
    tools = [{"type": "function", "function": {"name": "f", "description": "é <x>", "parameters": {}}}]
    text = render(source, tools=tools, enable_thinking=False, bos_token="<bos>")
    assert text == json.dumps(tools, ensure_ascii=False) + "False<bos>"


@pytest.mark.parametrize("name", ["self", "variables", "context", "loop", "range", "", "a b", "__class__", "é"])
def test_a_variable_may_have_any_name(name):
    assert render(CHATML, **{name: 1}) == render(CHATML)


@pytest.mark.parametrize("name", ["raise_exception", "range", "namespace", "strftime_now"])
def test_a_variable_that_takes_the_place_of_a_function_fails_the_template_only(name):
    with pytest.raises(ValueError, match="not callable"):
        render("{{ " + name + "(1) }}", **{name: 1})


def test_smollm2_template(smollm2_path):
    from llmsrv.text.tokenizer import Tokenizer
    from llmsrv.weights.gguf import GgufFile

    tokenizer = Tokenizer.from_gguf(GgufFile(smollm2_path).metadata)
    source = tokenizer.chat_templates["default"]
    text = ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token).render(USER)
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
def test_hostile_template_is_stopped(source, monkeypatch):
    """However fast the machine is."""
    monkeypatch.setattr(template_sandbox.time, "thread_time", lambda: 0.0)
    with pytest.raises(ValueError, match=r"too large|Range too big|more than \d+ steps|longer than"):
        render(source)


@pytest.mark.parametrize(
    ("source", "steps_each"),
    [
        ("{% for i in range(99999) %}{{ tick() }}{% for j in range(9) %}{% endfor %}{% endfor %}", 12),
        ("{% macro f() %}{{ tick() }}{% endmacro %}{% for i in range(99999) %}{{ f() }}{% endfor %}", 3),
        ("{% for i in range(99999) %}{{ tick() | string | length }}{% endfor %}", 4),
        ("{% for i in range(99999) %}{% if tick() is none %}{% endif %}{% endfor %}", 3),
    ],
)
def test_passes_calls_filters_and_tests_are_steps(source, steps_each, monkeypatch):
    monkeypatch.setattr(template_sandbox.time, "thread_time", lambda: 0.0)
    ticks = []
    with pytest.raises(ValueError, match="more than 100000 steps"):
        render(source, tick=lambda: ticks.append(0))
    assert len(ticks) == pytest.approx(template_sandbox.STEPS_MAX / steps_each, abs=2)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{{ messages | tojson | length }}{% endfor %}",
        "{% set t = 'a' * 10 ** 6 %}{% for i in range(99999) %}{% if t | upper is lower %}{% endif %}{% endfor %}",
        "{% macro f() %}{{ messages | tojson | length }}{% endmacro %}{% for i in range(99999) %}{{ f() }}{% endfor %}",
        "{{ range(99999) | map('string') | map('upper') | join | length }}",
    ],
)
def test_steps_that_take_long_are_stopped_by_their_time(source, monkeypatch):
    """Between two looks at the clock a hundredth of it passes."""
    looks = []
    step_s = template_sandbox.PROCESSOR_S_MAX / 100
    monkeypatch.setattr(template_sandbox.time, "thread_time", lambda: looks.append(0) or len(looks) * step_s)
    with pytest.raises(ValueError, match="s of processor time"):
        render(source)
    assert len(looks) < 110


def test_a_long_conversation_is_within_the_limits(smollm2_path):
    from llmsrv.text.tokenizer import Tokenizer
    from llmsrv.weights.gguf import GgufFile

    template = Tokenizer.from_gguf(GgufFile(smollm2_path).metadata).chat_templates["default"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 20} for i in range(4000)]
    assert render(template, messages).count("<|im_start|>") == 4002


def test_each_render_has_all_its_steps():
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}x", "", "")
    assert {template.render(USER) for _ in range(3)} == {"x"}


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
