"""One field, one flag; and the same names and defaults as the core."""

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import llmsrv
from llmsrv import _core
from llmsrv.config import EngineOptions, ServeConfig, flags_of, parse_size
from llmsrv.engine import CORE_FIELDS, DEFAULT_KV_CACHE_BYTES, describe_plan, fit

# Left open here until the model is known (llmsrv.engine.fit); required or fixed in the core.
WORKED_OUT = {"max_model_len", "kv_cache_memory"}


def stub_parameters(class_name):
    tree = ast.parse(Path(llmsrv.__file__).with_name("_core.pyi").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    init = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return [argument.arg for argument in init.args.kwonlyargs]


def test_the_cores_options_are_all_here():
    assert set(stub_parameters("EngineConfig")) == set(CORE_FIELDS) | {"eos_token_ids"}


def test_defaults_are_the_cores():
    core = _core.EngineConfig(max_model_len=8)
    ours = ServeConfig(model="m")
    for name in set(CORE_FIELDS) - WORKED_OUT:
        assert getattr(ours, name) == getattr(core, name), name
    assert core.kv_cache_memory == DEFAULT_KV_CACHE_BYTES


def daemon_app(seen):
    def serve(**options):
        seen.update(options)

    serve.__signature__ = flags_of(ServeConfig)
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    return app


def test_every_field_is_a_flag_and_there_is_no_other():
    seen = {}
    assert CliRunner().invoke(daemon_app(seen), ["--model", "m"]).exit_code == 0
    assert ServeConfig(**seen) == ServeConfig(model="m")
    assert set(seen) == {each.name for each in fields(ServeConfig)}


def test_flags_are_parsed():
    seen = {}
    flags = ["--model", "m", "--kv-cache-memory", "4GiB", "--max-model-len", "77", "--drain-timeout", "2.5"]
    assert CliRunner().invoke(daemon_app(seen), flags).exit_code == 0
    assert (seen["kv_cache_memory"], seen["max_model_len"], seen["drain_timeout"]) == (4 << 30, 77, 2.5)


@pytest.mark.parametrize("flags", [["--modle", "m"], ["--model", "m", "--port", "x"], [], ["--kv-cache-memory", "4Gb"]])
def test_wrong_flags_are_errors(flags):
    assert CliRunner().invoke(daemon_app({}), flags).exit_code == 2


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("123", 123), ("1KiB", 1024), ("1.5 GiB", 3 << 29), (" 2MiB ", 2 << 20), (7, 7)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@given(st.text())
def test_a_size_is_read_or_refused(text):
    try:
        size = parse_size(text)
    except ValueError:
        return
    assert size >= 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"dtype": "int3"},
        {"kv_cache_dtype": "fp8"},
        {"threads": 0},
        {"max_model_len": 0},
        {"kv_cache_memory": 0},
        {"port": 70000},
        {"drain_timeout": -1.0},
        {"served_model_name": ""},
    ],
)
def test_impossible_values_are_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        ServeConfig(**{"model": "m", **wrong})


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="nonsense"):
        EngineOptions(model="m", nonsense=1)


def spec(max_position):
    return _core.ModelSpec(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=max_position,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
    )


# This model's keys and values take 2 layers x 2 x 2 heads x 16 x 2 bytes = 256 bytes per token.
TOKEN_BYTES = 256


@pytest.mark.parametrize(
    ("own", "asked", "expected_len", "expected_memory"),
    [
        (1000, {}, 1000, DEFAULT_KV_CACHE_BYTES),
        (1 << 22, {}, DEFAULT_KV_CACHE_BYTES // TOKEN_BYTES, DEFAULT_KV_CACHE_BYTES),
        (1000, {"kv_cache_memory": 1 << 16}, (1 << 16) // TOKEN_BYTES, 1 << 16),
        (1 << 22, {"max_model_len": 3 << 20}, 3 << 20, (3 << 20) * TOKEN_BYTES),
        (1000, {"max_model_len": 77, "kv_cache_memory": 1 << 20}, 77, 1 << 20),
    ],
)
def test_what_is_left_open_is_worked_out(own, asked, expected_len, expected_memory):
    lines = []
    config = fit(spec(own), EngineOptions(model="m", threads=1, **asked), lines.append)
    assert (config.max_model_len, config.kv_cache_memory) == (expected_len, expected_memory)
    assert bool(lines) == (expected_len < own and "max_model_len" not in asked)


def test_the_plan_is_printed_with_its_sum():
    config = fit(spec(1000), EngineOptions(model="m", threads=1), print)
    core_config = _core.EngineConfig(max_model_len=config.max_model_len, kv_cache_memory=config.kv_cache_memory)
    plan = _core.plan_memory(spec(1000), weights_dtype="bfloat16", config=core_config, threads=1)
    text = describe_plan(plan, config, process_bytes=10 << 20)
    assert f"{(plan.total_bytes + (10 << 20)) / (1 << 20):.1f} MiB" in text
    assert f"{plan.kv_blocks} blocks of 16 tokens, {TOKEN_BYTES} B/token" in text


def test_signature_is_keyword_only():
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in flags_of(ServeConfig).parameters.values())
