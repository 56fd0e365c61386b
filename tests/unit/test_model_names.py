"""Several models in the options: how they are written, in every source, and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.config import _MODEL_NAME, EngineOptions, ServeConfig, parse_model
from llmsrv.flags import parse_settings
from llmsrv.settings import resolve
from llmsrv.settings_text import show_settings

TWO = {"a": "smollm2-135m", "b": "/models/x.gguf"}


def from_flags(*arguments, environment=None):
    return parse_settings(
        ServeConfig, prog="p", description="", arguments=arguments, environment=environment or {}
    ).options


def from_file(tmp_path, text):
    path = tmp_path / "serving.toml"
    path.write_text(text)
    return resolve(ServeConfig, config=str(path), environment={}, flags={})


def test_every_source_says_the_same(tmp_path):
    expected = ServeConfig(model=TWO)
    assert from_flags("--model", "a=smollm2-135m", "--model", "b=/models/x.gguf") == expected
    assert from_flags(environment={"LLMSRV_MODEL": "a=smollm2-135m, b=/models/x.gguf"}) == expected
    inline = from_file(tmp_path, '[serving]\nmodel = { a = "smollm2-135m", b = "/models/x.gguf" }\n')
    assert inline.options == expected
    assert from_file(tmp_path, '[serving.model]\na = "smollm2-135m"\nb = "/models/x.gguf"\n').options == expected
    shown = show_settings(inline, {})
    assert re.search(r'^model = \{ "a" = "smollm2-135m", "b" = "/models/x.gguf" \} +# /.*/serving.toml:2$', shown, re.M)
    assert from_file(tmp_path, shown).options == expected


def test_flags_replace_the_models_of_a_file(tmp_path):
    path = tmp_path / "serving.toml"
    path.write_text('[serving]\nmodel = { a = "x", b = "y" }\n')
    assert from_flags("--config", str(path), "--model", "c=z").model == {"c": "z"}
    assert from_flags("--config", str(path), "--model", "z").model == "z"


@pytest.mark.parametrize(
    "path",
    ["smollm2-135m", "/runs/lr=3/x.gguf", "./lr=3/x.gguf", "~/lr=3", "../a=b", "=x", "", "a b=c", "org/name", "ä=b"],
)
def test_what_is_no_name_is_a_model(path):
    assert parse_model(path) == (None, path)


@given(st.from_regex(_MODEL_NAME, fullmatch=True), st.text())
def test_a_name_ends_at_the_first_equals_sign(name, model):
    assert parse_model(f"{name}={model}") == (name, model)


def test_a_single_model_with_commas_in_its_path():
    assert from_flags(environment={"LLMSRV_MODEL": "/models/a,b=1.gguf"}).model == "/models/a,b=1.gguf"


def test_each_model_has_the_other_options_of_all():
    assert ServeConfig(model="x", served_model_name="y").apart() == {"y": ServeConfig(model="x", served_model_name="y")}
    assert ServeConfig(model="x").apart() == {None: ServeConfig(model="x")}
    several = ServeConfig(model=TWO, max_num_seqs=3)
    assert several.apart() == {name: ServeConfig(model=source, max_num_seqs=3) for name, source in TWO.items()}
    assert [each.model_source for each in several.apart().values()] == list(TWO.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "x", "--model", "y"), "model: each of several needs a name: --model NAME=x"),
        (("--model", "a=x", "--model", "y"), "model: each of several needs a name: --model NAME=y"),
        (("--model", "a=x", "--model", "a=y"), "model: 'a' is given twice"),
        (("--model", "a="), "model: 'a' must not be empty"),
        (("--model", "a=x", "--served-model-name", "b"), "served_model_name: cannot be combined"),
        (("--model", "a=x", "--model", "b=y", "--trace-steps", "f"), "trace_steps: cannot be combined with several"),
    ],
)
def test_what_is_not_clear_is_refused(arguments, says, capsys):
    with pytest.raises(SystemExit):
        from_flags(*arguments)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("{ a = '' }", "'a' must not be empty"),
        ("{ ' ' = 'm' }", "' ' is not a name: write letters, digits and . _ : @ / -"),
        ("{}", "must not be empty"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(tmp_path, table, says):
    with pytest.raises(ValueError, match=re.escape(f"serving.toml:2: model: {says}")):
        from_file(tmp_path, f"[serving]\nmodel = {table}\n")


def test_several_are_for_a_daemon():
    with pytest.raises(ValueError, match=r"^model: must be one model"):
        EngineOptions(model=TWO)
