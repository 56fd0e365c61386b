"""Every key has its line, however the file is written; what is no TOML is refused with file and line."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.option import quoted
from llmsrv.toml_file import parse_toml, read_toml

FULL = '''# a comment [not.a.table]
top = 1

[serving]  # a comment
model = "a = 1 # b"
"max_model_len" = 7

text = """
[orchestrator]
env = "no"
"""
weights = [
  1, # one
  [2, 3],
]
[ distributed . "x y" ]
z = { a = 1, b = { c = 2 } }
d.e = 5
[[many]]
x = 1
[[many]]
x = 2
y = 3
'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_all_ways_of_writing_have_their_lines(newline):
    file = parse_toml("f", FULL.replace("\n", newline))
    assert file.lines == {
        ("top",): 2,
        ("serving",): 4,
        ("serving", "model"): 5,
        ("serving", "max_model_len"): 6,
        ("serving", "text"): 8,
        ("serving", "weights"): 12,
        ("distributed",): 16,
        ("distributed", "x y"): 16,
        ("distributed", "x y", "z"): 17,
        ("distributed", "x y", "z", "a"): 17,
        ("distributed", "x y", "z", "b"): 17,
        ("distributed", "x y", "z", "b", "c"): 17,
        ("distributed", "x y", "d"): 18,
        ("distributed", "x y", "d", "e"): 18,
        ("many",): 19,
        ("many", "x"): 20,
        ("many", "y"): 23,
    }
    assert file.values["serving"]["text"] == '[orchestrator]\nenv = "no"\n'
    assert file.where(("serving", "model")) == "f:5"
    assert file.where(("serving", "no such key")) == "f:4"
    assert file.where(("nothing",)) == "f:1"


values = st.one_of(
    st.integers(-9, 9).map(str),
    st.text(st.characters(exclude_categories=["Cs"])).map(quoted),
    st.sampled_from(
        ["true", "1979-05-27", "[]", "[\n1,\n2 # x\n]", "'''\n[a]\nb = 1\n'''", '"""x\\\n  y = 2"""', "{ a = 1 }"]
    ),
)
blanks = st.sampled_from(["", "", "\n", "# x = 1\n", "  \t\n", "# [y]\n\n"])


@given(st.lists(st.tuples(blanks, st.booleans(), values), max_size=12))
def test_the_line_is_where_it_was_written(statements):
    """Tables and keys one after another, with anything between them."""
    text, table, expected = "", (), {}
    for number, (blank, opens, value) in enumerate(statements):
        text += blank
        line = text.count("\n") + 1
        if opens:
            table = (f"t{number}",)
            expected[table] = line
            text += f"[t{number}]\n"
        else:
            expected[(*table, f"k{number}")] = line
            text += f"k{number} = {value}\n"
    lines = parse_toml("f", text).lines
    assert {key: lines[key] for key in expected} == expected
    assert all((len(key) == 2 and key[-1] == "a") or len(key) == 3 for key in lines.keys() - expected.keys())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_its_quotes(text):
    assert parse_toml("f", f"x = {quoted(text)}").values == {"x": text}


def test_half_a_character_cannot_be_quoted():
    with pytest.raises(ValueError, match="is not Unicode"):
        quoted("\udc80")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = 1\nb = \n", r"f\.toml:2: invalid value$"),
        (b"a = 1\na = 2\n", r"f\.toml:2: cannot overwrite a value$"),
        (b"[a]\n\n[a]\n", r"f\.toml:3: cannot declare \('a',\) twice$"),
        (b'a = """\nb', r"f\.toml:2: "),
        (b"a", r"f\.toml:1: "),
        (b'a = "\xff"', r"f\.toml:1: is not UTF-8 text"),
        (b"#\n#\n\xff", r"f\.toml:3: is not UTF-8 text"),
        (b"a = " + b"[" * 30000, r"f\.toml: is nested too deeply"),
        (b"#" * 70000, r"f\.toml: is longer than a configuration can be"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_place(content, says, tmp_path):
    path = tmp_path / "f.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}/{says}"):
        read_toml(str(path))


@given(st.binary(max_size=40))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "f.toml"
    path.write_bytes(content)
    file, refusal = None, ""
    try:
        file = read_toml(str(path))
    except ValueError as error:
        refusal = str(error)
    if file is None:
        assert refusal.startswith(str(path))
    else:
        assert set(file.values) == {key[0] for key in file.lines}


def test_long_dotted_keys_are_read(tmp_path):
    file = parse_toml("f", ".".join("a" * 50) + " = 1")
    assert file.where(("a", "a")) == "f:1"


@pytest.mark.parametrize("name", ["nothing.toml", "."])
def test_what_cannot_be_read_is_named(name, tmp_path):
    with pytest.raises(ValueError, match=r"cannot be read: (No such file|Is a directory)"):
        read_toml(str(tmp_path / name))
