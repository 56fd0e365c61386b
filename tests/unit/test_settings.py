"""File, environment and flags: the later one wins, what is unknown is an error, and what is shown is what is used."""

import re
from contextlib import contextmanager
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.config import _CHOICES, _MODEL_NAME, TABLES, ServeConfig
from llmsrv.flags import parse_settings
from llmsrv.option import options_of
from llmsrv.settings import OTHER_VARIABLES, resolve
from llmsrv.settings_text import show_settings
from llmsrv.toml_file import parse_toml

# As people have them already.
ORIGINAL = """\
[orchestrator]
env = "production-serving"
idle_timeout = "10m"
permission_mode = "strict"
[serving]
gpu_memory_utilization = 0.90
max_model_len = 4096
swap_space = 16
[distributed]
tensor_parallel_size = 2
"""
KNOWN = options_of(ServeConfig)


@pytest.fixture
def resolved(tmp_path):
    """Resolves what a file's text, an environment and flags say; the file is called serving.toml."""

    def resolve_all(text=None, environment=None, flags=None):
        path = None
        if text is not None:
            path = tmp_path / "serving.toml"
            path.write_text(text)
        try:
            return resolve(
                ServeConfig, config=path and str(path), environment=environment or {}, flags=flags or {"model": "m"}
            )
        except ValueError as error:
            raise ValueError(str(error).replace(f"{tmp_path}/", "")) from None

    return resolve_all


@contextmanager
def refused(*lines):
    with pytest.raises(ValueError, match=r"^[a-z-]") as error:
        yield
    assert str(error.value).splitlines() == list(lines)


def test_the_original_serving_file_works_but_for_its_second_rank(resolved):
    with refused(
        "serving.toml:10: tensor_parallel_size: must be 1, not 2: this version computes each model whole, in one "
        "process; threads is how many cores it uses"
    ):
        resolved(ORIGINAL)
    settings = resolved(ORIGINAL.replace("size = 2", "size = 1"))
    assert settings.options == ServeConfig(
        model="m",
        env="production-serving",
        idle_timeout=600.0,
        permission_mode="strict",
        gpu_memory_utilization=0.9,
        max_model_len=4096,
        swap_space=16 << 30,
    )
    assert str(settings.origins["swap_space"]).endswith("serving.toml:8")
    assert settings.notes == ()


def test_every_option_is_a_key_of_one_table():
    assert {option.table for option in KNOWN.values()} == set(TABLES)
    assert list(KNOWN) == [each.name for each in fields(ServeConfig)]


def test_an_option_that_is_a_path_says_what_it_is_opened_for():
    """Else the strict permission mode would refuse it."""
    paths = {name for name, option in KNOWN.items() if re.match(r"(PEM )?(file|folder)\b", option.help, re.IGNORECASE)}
    assert {"trace_steps", "packed_cache"} <= paths
    assert paths == {name for name, option in KNOWN.items() if option.opens}


def test_the_later_source_wins(resolved):
    text = "[serving]\nmax_num_seqs = 1\nport = 1\nblock_size = 8\ntenant_weights = { a = 1, b = 2.5 }\n"
    environment = {"LLMSRV_PORT": "2", "LLMSRV_BLOCK_SIZE": "16", "LLMSRV_TENANT_WEIGHTS": "c=3, d=e=4", "OTHER": "x"}
    settings = resolved(text, environment, {"model": "m", "port": 3})
    expected = {"max_num_seqs": 1, "port": 3, "block_size": 16, "tenant_weights": {"c": 3.0, "d=e": 4.0}}
    assert settings.options == ServeConfig(model="m", **expected)
    origins = {name: str(settings.origins[name]) for name in (*expected, "model", "threads")}
    assert re.fullmatch(r"/.*/serving\.toml:2", origins.pop("max_num_seqs"))
    assert origins == {
        "port": "flag --port",
        "block_size": "environment LLMSRV_BLOCK_SIZE",
        "tenant_weights": "environment LLMSRV_TENANT_WEIGHTS",
        "model": "flag --model",
        "threads": "default",
    }


def test_the_environment_names_the_file_and_a_flag_another(tmp_path):
    for name, port in (("a.toml", 1), ("b.toml", 2)):
        (tmp_path / name).write_text(f"[serving]\nmodel = 'm'\nport = {port}\n")
    environment = {"LLMSRV_CONFIG": str(tmp_path / "a.toml")}
    assert resolve(ServeConfig, config=None, environment=environment, flags={}).options.port == 1
    named = resolve(ServeConfig, config=str(tmp_path / "b.toml"), environment=environment, flags={})
    assert named.options.port == 2


def test_auto_in_a_later_source_opens_what_was_set(resolved):
    settings = resolved("[serving]\nmax_model_len = 77\n", {"LLMSRV_MAX_MODEL_LEN": "auto"})
    assert settings.options.max_model_len is None
    assert str(settings.origins["max_model_len"]) == "environment LLMSRV_MAX_MODEL_LEN"


def test_everything_that_is_wrong_is_told_at_once(resolved):
    text = """\
port = 5
serving = 1
[servng]
[orchestrator]
idle-timeout = "10m"
max_model_len = 5
permission_mode = 1
env = 1979-05-27
"""
    with refused(
        "serving.toml:1: port: belongs into the table [serving]",
        "serving.toml:2: serving: must be a table: [serving]",
        "serving.toml:3: servng: there is no such table or option; did you mean serving?",
        "serving.toml:5: idle-timeout: there is no such option; did you mean idle_timeout?",
        "serving.toml:6: max_model_len: belongs into the table [serving], not [orchestrator]",
        "serving.toml:7: permission_mode: must be text, not 1",
        "serving.toml:8: env: must be text, not a date or time",
        "environment LLMSRV_MAX_LEN: there is no such variable; did you mean LLMSRV_MAX_MODEL_LEN?",
        "environment LLMSRV_PREFIX_CACHE: 'maybe' is not a choice: write true or false",
        "environment LLMSRV_PREFIX_CACHES: there is no such variable; did you mean LLMSRV_PREFIX_CACHE?",
        "environment LLMSRV_THREADS: '2x' is not a whole number",
    ):
        resolved(
            text,
            {
                "LLMSRV_MAX_LEN": "5",
                "LLMSRV_PREFIX_CACHE": "maybe",
                "LLMSRV_PREFIX_CACHES": "1",
                "LLMSRV_THREADS": "2x",
            },
        )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('port = "50051"', "port: must be a whole number, not the text '50051'"),
        ("port = 1.0", "port: must be a whole number, not 1.0"),
        ("port = true", "port: must be a whole number, not true"),
        ("prefix_cache = 1", "prefix_cache: must be true or false, not 1"),
        ('prefix_cache = "true"', "prefix_cache: must be true or false, not the text 'true'"),
        ('deterministic = "maybe"', "deterministic: 'maybe' is not a choice: write on or off"),
        ("deterministic = 1", "deterministic: '1' is not a choice: write on or off"),
        ('drain_timeout = "30"', "drain_timeout: must be a number, not the text '30'"),
        ("model = 5", "model: must be text, or a table such as { NAME = 'MODEL' }, not 5"),
        ("model = ['m']", "model: must be text, or a table such as { NAME = 'MODEL' }, not an array"),
        ("model = { a = 1 }", "model: 'a': must be text, not 1"),
        ("swap_space = true", "swap_space: must be a whole number, not true"),
        ('swap_space = "2GB"', "swap_space: '2GB' is not a size: write bytes, or a number with KiB, MiB, GiB or TiB"),
        ("swap_space = nan", "swap_space: 'NaN' is not a size: write bytes"),
        ("max_model_len = 4096.0", "max_model_len: '4096.0' is not a length in tokens: write auto or a positive"),
        ("tenant_weights = 2", "tenant_weights: must be a table such as { NAME = 2 }, not 2"),
        ("tenant_weights = { a = true }", "tenant_weights: 'a': must be a number, not true"),
        ("port = 70000", "port: must be in 0..65535, not 70000"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(resolved, line, says):
    with pytest.raises(ValueError, match="^" + re.escape(f"serving.toml:3: {says}")):
        resolved(f"[serving]\n\n{line}\n")


def test_an_impossible_value_is_blamed_on_who_said_it(resolved):
    with refused("environment LLMSRV_PORT: port: must be in 0..65535, not -1"):
        resolved("[serving]\nport = 1", {"LLMSRV_PORT": "-1"})
    with refused("port: must be in 0..65535, not -2"):
        resolved(None, None, {"model": "m", "port": -2})


def test_a_model_must_come_from_somewhere(resolved):
    assert resolved("[serving]\nmodel = 'x'\n", None, {"port": 1}).options.model == "x"
    assert resolved(None, {"LLMSRV_MODEL": "x"}, {"port": 1}).options.model == "x"
    with refused("--model, LLMSRV_MODEL or a file's model must say what to serve"):
        resolved(None, None, {"port": 1})


def test_variables_that_others_read_and_empty_ones_are_left_alone(resolved):
    environment = {name: "/nowhere" for name in OTHER_VARIABLES if name != "LLMSRV_CONFIG"}
    environment |= {"LLMSRV_TEST_CACHE": "x", "LLMSRV_PORT": "", "LLMSRV_NOTHING": "", "llmsrv_port": "x"}
    assert resolved(None, environment).options == ServeConfig(model="m")


def test_what_kubernetes_says_of_a_service_called_llmsrv_is_no_option(resolved):
    links = {
        "LLMSRV_PORT": "tcp://10.0.0.7:50051",
        "LLMSRV_PORT_50051_TCP": "tcp://10.0.0.7:50051",
        "LLMSRV_PORT_50051_TCP_ADDR": "10.0.0.7",
        "LLMSRV_PORT_50051_TCP_PORT": "50051",
        "LLMSRV_PORT_50051_TCP_PROTO": "tcp",
        "LLMSRV_SERVICE_HOST": "10.0.0.7",
        "LLMSRV_SERVICE_PORT": "50051",
        "LLMSRV_SERVICE_PORT_GRPC": "50051",
        "LLMSRV_HTTP_PORT": "tcp://10.0.0.8:8000",
    }
    settings = resolved(None, links)
    assert settings.options == ServeConfig(model="m")
    (note,) = settings.notes
    assert all(variable in note for variable in links)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
SPECIAL = {
    "model": texts | st.dictionaries(st.from_regex(_MODEL_NAME, fullmatch=True), texts, min_size=1, max_size=3),
    "swap_space": st.integers(0, 1 << 62),
    "kv_cache_memory": st.integers(1, 1 << 62),
    "idle_timeout": st.floats(1e-6, 1e9),
    "drain_timeout": st.floats(0, 1e300),
    "gpu_memory_utilization": st.floats(0, 1, exclude_min=True),
    "tensor_parallel_size": st.just(1),
    "permission_mode": st.sampled_from(["standard", "strict"]),
    "reserve_cpus": st.just(0),
    "dtype": st.just("auto"),
    "max_model_len": st.none() | st.integers(1, 10**9),
    "tenant_weights": st.dictionaries(texts, st.floats(1e-300, 1e300), max_size=3),
} | {name: st.sampled_from(choices) for name, choices in _CHOICES.items() if name != "dtype"}


def values_of(option):
    by_kind = {str: texts, int: st.integers(1, 60000), bool: st.booleans(), float: st.floats(1, 1000)}
    return SPECIAL.get(option.name, by_kind[option.kind])


def is_possible(values):
    try:
        ServeConfig(**values)
    except ValueError:
        return False
    return True


@st.composite
def chosen(draw):
    """Some options, of which none makes the others impossible."""
    values = {"model": draw(SPECIAL["model"])}
    for name in draw(st.lists(st.sampled_from(sorted(KNOWN)), unique=True)):
        more = values | {name: draw(values_of(KNOWN[name]))}
        values = more if is_possible(more) else values
    return values


@given(chosen())
def test_what_is_shown_is_read_as_the_same(tmp_path_factory, values):
    """Whatever the options are, their text is a file that gives them again."""
    settings = resolve(ServeConfig, config=None, environment={}, flags=values)
    path = tmp_path_factory.mktemp("shown") / "serving.toml"
    path.write_text(show_settings(settings, {}), encoding="utf-8", newline="")
    again = resolve(ServeConfig, config=str(path), environment={}, flags={})
    assert again.options == settings.options
    assert show_settings(again, {}).count("\n[") == len(TABLES)


@given(chosen())
def test_all_sources_read_a_value_alike(tmp_path_factory, values):
    """A value's text means the same as a flag, as a variable and in a file."""
    file = {table: {} for table in TABLES}
    arguments, environment = [], {}
    for name, value in values.items():
        option = KNOWN[name]
        if value is None or option.repeated or not str(value).strip():
            continue
        text = option.writer(value) if option.writer else str(value)
        environment[option.variable] = text
        is_switch = option.kind is bool and option.parser is None
        arguments.append(
            f"{option.flag}={text}" if not is_switch else option.flag if value else f"--no-{option.flag[2:]}"
        )
        file[option.table][name] = option.write_toml(value)
    text = "".join(f"[{table}]\n" + "".join(f"{n} = {v}\n" for n, v in keys.items()) for table, keys in file.items())
    path = tmp_path_factory.mktemp("alike") / "serving.toml"
    path.write_text(text, encoding="utf-8", newline="")
    model = {"model": values["model"]}
    by_file = resolve(ServeConfig, config=str(path), environment={}, flags=model)
    by_variable = resolve(ServeConfig, config=None, environment=environment, flags=model)
    arguments = ["--model", "m", *arguments] if "--model=" not in "".join(arguments) else arguments
    by_flag = parse_settings(ServeConfig, prog="p", description="", arguments=arguments, environment={})
    assert by_file.options == by_variable.options
    assert {**vars(by_flag.options), **model} == vars(by_file.options)


def test_what_is_shown_has_origins_and_no_secret(resolved):
    environment = {"LLMSRV_PORT": "5", "LLMSRV_API_KEY": "hush-1", "LLMSRV_ADMIN_TOKEN": "hush-2"}
    settings = resolved("[serving]\nhost = '::1'\n", environment)
    shown = show_settings(settings, environment)
    assert re.search(r'^host = "::1" +# /.*/serving\.toml:2$', shown, re.M)
    assert re.search(r"^port = 5 +# environment LLMSRV_PORT$", shown, re.M)
    assert re.search(r'^model = "m" +# flag --model$', shown, re.M)
    assert re.search(r"^# http_port is not set +# default$", shown, re.M)
    assert "# LLMSRV_API_KEY is set, and never shown\n" in shown
    assert "hush" not in shown
    assert parse_toml("shown", shown).values["serving"]["swap_space"] == "128MiB"


def test_an_error_has_no_secret(resolved):
    with pytest.raises(ValueError, match="LLMSRV_ADMIN_TOKN") as error:
        resolved(None, {"LLMSRV_ADMIN_TOKN": "hush", "LLMSRV_ADMIN_TOKEN": "hush"})
    assert "hush" not in str(error.value)
