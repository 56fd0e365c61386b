"""Options of an engine and of a server, declared once: names, types, defaults, help, and how each one is written.

One field = one flag (`max_model_len` is `--max-model-len`) = one key of the configuration file (in its `table`) = one
environment variable (`LLMSRV_MAX_MODEL_LEN`); option.py has the forms, settings.py what wins. The fields that the core
also has equal cpp/engine/config.h in name and default (tests/unit/test_config.py); None stands where the core needs a
figure that is worked out from the model (engine.py).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

T = TypeVar("T", bound="EngineOptions")

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SWITCHES = {"on": True, "true": True, "off": False, "false": False}
_UNIT_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_MAX = 1 << 62
TIMEOUT_MAX_S = 1_000_000  # in ms it fits an int
UNIX_PREFIX = "unix:"  # of an address that is the path of a Unix socket
# What `--dtype` is when nothing is asked for.
DEFAULT_DTYPE = "auto"
# Tables of the configuration file, in the order in which they are shown.
TABLES = ("orchestrator", "serving", "distributed")
_PERMISSION_MODES = ("standard", "strict")
# Of one among several. A path that begins as paths do, with a slash, a dot or a tilde, is no name.
_MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@/-]*"
_CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "bfloat16", "float32"),
    "quantization": ("int8", "int4", "int8-g64", "int8-g128", "int4-g64", "int4-g128"),
    "kv_cache_dtype": ("bfloat16", "float32", "int8"),
    "preemption_mode": ("auto", "swap", "recompute"),
    "generation_config": ("auto", "none"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
}
_SERVE_CHOICES = {"log_format": ("text", "json"), "log_level": ("debug", "info", "warning", "error")}


def parse_size(text: str | int) -> int:
    """Bytes from "4GiB", "512MiB" or a plain number of bytes. Raises ValueError that says what is accepted."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|)\s*", str(text))
    if match is None:
        raise ValueError(
            f"{text!r} is not a size: write bytes, or a number with KiB, MiB, GiB or TiB, for example 4GiB"
        )
    whole, _, decimals = match[1].partition(".")
    size: int = int(whole + decimals) * _UNITS[match[2]] // 10 ** len(decimals)
    return size


def write_size(size: int) -> str:
    """A short text that parse_size() and parse_swap_space() read as exactly so many bytes."""
    unit = next(each for each in ("TiB", "GiB", "MiB", "KiB") if size % _UNITS[each] == 0 or each == "KiB")
    whole, rest = divmod(size, _UNITS[unit])
    decimals = f"{rest * 10**10 // _UNITS[unit]:010}".rstrip("0")  # 1/1024 has ten decimals
    return f"{whole}.{decimals}{unit}" if decimals else f"{whole}{unit}"


def write_duration(seconds: float) -> str:
    """A short text that parse_duration() reads as exactly so many seconds."""
    for unit in ("d", "h", "m", "s"):
        text = f"{int(seconds / _UNIT_SECONDS[unit])}{unit}"
        if seconds and parse_duration(text) == seconds:
            return text
    return plain_decimal(seconds)


def plain_decimal(number: float) -> str:
    """All digits of a float without an exponent, which the parsers of sizes and times do not know."""
    from decimal import Decimal

    return format(Decimal(repr(number)), "f")


def parse_swap_space(text: str) -> int:
    """The same, but a plain number means GiB, as it does wherever this option exists. Bytes."""
    size = str(text).strip()
    return parse_size(f"{size}GiB" if re.fullmatch(r"[0-9.]+", size) else size)


def parse_model_len(text: str) -> int | None:
    """Tokens, or None for "auto": chosen when the model is known."""
    if text.strip() == "auto":
        return None
    if not re.fullmatch(r"\s*0*[1-9][0-9]{0,9}\s*", text):
        raise ValueError(f"{text!r} is not a length in tokens: write auto or a positive number")
    return int(text)


def parse_duration(text: str) -> float:
    """Seconds from "10m", "30s", "1h" or a plain number of seconds."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: write seconds, or a number with ms, s, m, h or d, for example 10m")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def parse_switch(text: str) -> bool:
    """True from "on", False from "off"."""
    if text.strip().lower() not in _SWITCHES:
        raise ValueError(f"{text!r} is not a choice: write on or off")
    return _SWITCHES[text.strip().lower()]


def write_switch(value: bool) -> str:
    """What parse_switch() reads as this."""
    return "on" if value else "off"


def parse_origins(text: str | None) -> tuple[str, ...]:
    """Origins from a list with commas: what a browser sends, a scheme and a host with a port if it has one."""
    origins = tuple(each.strip() for each in text.split(",")) if text is not None else ()
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^\s/?#,@]+", origin):
            raise ValueError(f"cors_origins: {origin!r} is not an origin: write for example https://chat.example.com")
    return origins


def parse_model(text: str) -> tuple[str | None, str]:
    """A model and its name from "NAME=MODEL"; without a name from all else, also from a path that has a = in it."""
    name, equals, model = text.partition("=")
    return (name, model) if equals and re.fullmatch(_MODEL_NAME, name) else (None, text)


def parse_tenant_weight(text: str) -> tuple[str, float]:
    """A tenant and its weight from "NAME=WEIGHT"; the name may have a = in it."""
    name, equals, weight = text.rpartition("=")
    try:
        return name, float(weight if equals else "")
    except ValueError:
        raise ValueError(f"{text!r} is not a tenant's weight: write NAME=WEIGHT, for example alice=2") from None


def _option(
    help_text: str,
    default: Any = MISSING,  # noqa: ANN401
    *,
    parser: Callable[[str], Any] | None = None,
    writer: Callable[[Any], str] | None = None,
    written: str | None = None,
    unset: str | None = None,
    repeated: str | None = None,
    entry: type = float,
    required: bool = False,
    table: str = "serving",
    opens: Literal["read", "write", "folder"] | None = None,
) -> Any:  # noqa: ANN401
    """A dataclass field that is also a flag, a key of the configuration file and an environment variable.

    `writer`: makes text of a value that `parser` reads as the same. `written`: the default as one would write it.
    `unset`: the word that `parser` reads as None. `repeated`: the flag of one entry, for a field that is a mapping of
    names to `entry`s. `required`: it may not be left out; then an entry without a name is the field's whole value.
    `opens`: the value is the path of a file that the process reads again later, or of one that it writes, or of a
    folder in which it makes files.
    """
    metadata = {
        "help": help_text,
        "parser": parser,
        "writer": writer,
        "written": written,
        "unset": unset,
        "repeated": repeated,
        "entry": entry,
        "table": table,
        "opens": opens,
    }
    if repeated and not required:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _duration(help_text: str, default_s: float) -> Any:  # noqa: ANN401
    """An option that is a time."""
    written = write_duration(default_s)
    return _option(help_text, default_s, parser=parse_duration, writer=write_duration, written=written)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What to load and within which limits. Raises ValueError when a value is impossible whatever the model."""

    model: str | Mapping[str, str] = _option(
        "GGUF file, Hugging Face folder, hub id, or a demo model: smollm2-135m. Several, as NAME=MODEL each, are "
        "served side by side, under these names; each has what the other options say, and the first is the default.",
        parser=parse_model,
        repeated="--model",
        entry=str,
        required=True,
    )
    device: str = _option("Where the model runs: cpu, cuda, or auto, which takes cuda where that can be used.", "auto")
    deterministic: bool = _option(
        "on: the same request gets the same tokens, whatever else runs. off: a CUDA device may choose faster products "
        "whose results depend on the batch. The CPU is always deterministic.",
        True,
        parser=parse_switch,
        writer=write_switch,
        written="on",
    )
    dtype: str = _option(
        "Type of the weight matrices in memory: auto (as the file has them: 4 to 8 bits stay, floats become bfloat16), "
        "bfloat16 or float32.",
        DEFAULT_DTYPE,
    )
    quantization: str | None = _option(
        "Pack float weights while loading: int8 or int4, in groups of 32 columns, or in larger ones: int4-g64, "
        "int4-g128, int8-g64, int8-g128. Weights with fewer bits stay as they are.",
        None,
    )
    packed_cache: str | None = _option(
        "Folder that keeps the weights as they stand in memory, for quicker starts. Default: none are kept.",
        None,
        opens="folder",
    )
    packed_cache_size: int | None = _option(
        "What that folder may hold, for example 10GiB; what was not used for longest goes first. Default: 32GiB.",
        None,
        parser=parse_size,
        writer=write_size,
    )
    threads: int | None = _option("Compute threads. Default: physical cores that this process may use.", None)
    reserve_cpus: int = _option("Cores that the default of threads leaves free, for a busy front end.", 0)
    pin_threads: bool | None = _option(
        "Keep each compute thread on a core of its own. Default: when there are as many threads as cores.", None
    )
    max_model_len: int | None = _option(
        "Longest prompt plus output in tokens. Default, and auto: the model's own, or less if the KV cache is too "
        "small for it.",
        None,
        parser=parse_model_len,
        unset="auto",
    )
    block_size: int = _option("Tokens per KV block: 8, 16 or 32.", 16)
    max_num_seqs: int = _option("Most sequences that run at once.", 64)
    max_num_batched_tokens: int = _option("Most tokens computed in one step.", 512)
    kv_cache_memory: int | None = _option(
        "Memory for the KV cache, for example 4GiB. Default: 512MiB, or what one sequence of max_model_len needs.",
        None,
        parser=parse_size,
        writer=write_size,
    )
    gpu_memory_utilization: float | None = _option(
        "Part of a GPU's memory to use, above 0 and at most 1. Of no use on a CPU, and where kv_cache_memory is "
        "given. Default: 0.9.",
        None,
    )
    kv_cache_dtype: str = _option("Type of the KV cache: bfloat16, float32 or int8.", "bfloat16")
    swap_space: int = _option(
        "Host memory for keys and values of preempted sequences: GiB, or for example 512MiB.",
        128 << 20,
        parser=parse_swap_space,
        writer=write_size,
        written="128MiB",
    )
    preemption_mode: str = _option(
        "What becomes of a sequence's keys and values when memory is short: swap, recompute, or auto, the cheaper.",
        "auto",
    )
    scheduling_policy: str = _option(
        "Who goes first: fcfs, priority (of the request; lower is earlier), or fair (shares of tokens per tenant).",
        "fcfs",
    )
    tenant_weights: Mapping[str, float] = _option(
        "A tenant's weight under the policy fair, as NAME=WEIGHT; may be given several times. Default: 1 each.",
        parser=parse_tenant_weight,
        repeated="--tenant-weight",
    )
    idle_timeout: float | None = _option(
        "Give the KV cache's memory back to the system after so long without requests, for example 10m. "
        "Default: never.",
        None,
        parser=parse_duration,
        writer=write_duration,
        table="orchestrator",
    )
    tensor_parallel_size: int = _option(
        "Parts that each layer's weights are cut into. This version computes a model whole: 1.", 1, table="distributed"
    )
    trace_steps: str | None = _option(
        "File that gets the plan of every step, a line of JSON each.", None, opens="write"
    )
    max_queued_requests: int = _option("Most waiting requests; the next one gets RESOURCE_EXHAUSTED.", 1024)
    max_queued_tokens: int = _option("Most prompt tokens of waiting requests together.", 1048576)
    generation_config: str = _option(
        "What a request leaves open of its sampling: auto (as the model's generation_config.json says), or none "
        "(temperature 1, all tokens, no penalties).",
        "auto",
    )
    max_logprobs: int = _option("Most top_logprobs that a request may ask for.", 20)
    max_choices: int = _option("Most sequences (n) that a request may ask for.", 128)
    prefix_cache: bool = _option("Share the keys and values of equal prompt beginnings between requests.", True)
    prefix_hash_bits: int = _option("Bits of the prefix cache's hash. Fewer only test what collisions do.", 128)

    def __post_init__(self) -> None:
        self._check_model()
        self._check_choices(_CHOICES)
        for name in ("threads", "max_model_len", "kv_cache_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1, not {value}")
        if self.reserve_cpus < 0:
            raise ValueError(f"reserve_cpus: must not be negative, not {self.reserve_cpus}")
        if self.reserve_cpus and self.threads is not None:
            raise ValueError("reserve_cpus: cannot be combined with threads")
        for name in ("kv_cache_memory", "swap_space", "packed_cache_size"):
            if not 0 <= (getattr(self, name) or 0) <= _SIZE_MAX:
                raise ValueError(f"{name}: must be in 0..{_SIZE_MAX} bytes, not {getattr(self, name)}")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        if self.tensor_parallel_size != 1:
            raise ValueError(
                f"tensor_parallel_size: must be 1, not {self.tensor_parallel_size}: this version computes each model "
                "whole, in one process; threads is how many cores it uses"
            )
        for name, weight in self.tenant_weights.items():
            if not name or not 0 < weight < math.inf:
                raise ValueError(f"tenant_weights: needs a name and a weight above 0, not {name!r}: {weight}")
        if self.idle_timeout is not None and not 0 < self.idle_timeout < math.inf:
            raise ValueError(f"idle_timeout: must be above 0 seconds, not {self.idle_timeout}")
        for name in ("trace_steps", "packed_cache"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}: must not be empty")
        if self.packed_cache_size is not None and self.packed_cache is None:
            raise ValueError("packed_cache_size: needs packed_cache")
        if self.quantization and self.dtype == "float32":
            raise ValueError("quantization: cannot be combined with dtype float32")

    def _check_model(self) -> None:
        if not isinstance(self.model, str):
            raise ValueError("model: must be one model; a daemon serves several")
        if not self.model:
            raise ValueError("model: must not be empty")

    @property
    def model_source(self) -> str:
        """Where the model is. REQUIRES: it is one; of several, ServeConfig.apart() has the options of each."""
        if isinstance(self.model, str):
            return self.model
        raise TypeError("these are the options of several models")

    def _check_choices(self, choices_of: Mapping[str, tuple[str, ...]]) -> None:
        for name, choices in choices_of.items():
            if getattr(self, name) not in (*choices, getattr(type(self), name)):
                listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
                raise ValueError(f"{name}: must be {listed}, not {getattr(self, name)!r}")

    @property
    def weights_dtype(self) -> str:
        """What the weight matrices become, as the core has it: `quantization`, or `dtype` without one."""
        return self.quantization or self.dtype


@dataclass(frozen=True, kw_only=True)
class ServeConfig(EngineOptions):
    """The options of a daemon."""

    served_model_name: str | None = _option("Name that clients use. Default: the model's file or folder name.", None)
    env: str | None = _option(
        "Name of this deployment, which the log shows, for example production-serving.", None, table="orchestrator"
    )
    permission_mode: str = _option(
        "standard, or strict: read nothing but the model and the installation; once loaded, write no file, execute "
        "nothing and connect nowhere.",
        _PERMISSION_MODES[0],
        table="orchestrator",
    )
    host: str = _option("Address to listen on, or unix:/path for a Unix socket.", "127.0.0.1")
    port: int = _option("gRPC port; 0 picks a free one and prints it.", 50051)
    http_host: str = _option(
        "Address to listen on for HTTP, or unix:/path for a Unix socket, which needs no port.", "127.0.0.1"
    )
    http_port: int | None = _option(
        "Serve the OpenAI-compatible HTTP API on this port, too; 0 picks a free one and prints it. Default: no HTTP.",
        None,
    )
    admin_host: str = _option(
        "Address of the administrators' gRPC listener, or unix:/path for a Unix socket, which needs no port.",
        "127.0.0.1",
    )
    admin_port: int | None = _option(
        "Serve AdminService and channelz on this gRPC port and no longer on --port; 0 picks a free one and prints it. "
        "Default: they are on --port.",
        None,
    )
    reflection: bool = _option(
        "Tell gRPC clients on --port which services there are. The administrators' listener always does.", True
    )
    api_key_file: str | None = _option(
        "File of API keys, their limits and weights; LLMSRV_API_KEY holds a key itself. Default: no key is needed.",
        None,
        opens="read",
    )
    admin_token_file: str | None = _option(
        "File with the token for AdminService. LLMSRV_ADMIN_TOKEN holds the token itself.", None, opens="read"
    )
    share_prefixes: bool = _option(
        "Share cached prefixes between keys. Then a key's owner can find out what others have asked.", False
    )
    open_metrics: bool = _option("Let anybody read /metrics when there are keys.", False)
    tls_cert: str | None = _option(
        "PEM file with the certificate chain of both ports; SIGHUP reads it again.", None, opens="read"
    )
    tls_key: str | None = _option("PEM file with the certificate's private key.", None, opens="read")
    tls_client_ca: str | None = _option(
        "PEM file with the authorities whose clients may connect, and nobody else (mTLS).", None, opens="read"
    )
    insecure_bind: bool = _option("Do not warn of an address that others reach without encryption or keys.", False)
    cors_origins: str | None = _option(
        "Origins whose pages may use the HTTP API in a browser, with commas between, for example "
        "https://chat.example.com; * is every page.",
        None,
    )
    metrics_vllm_names: bool = _option(
        "Tell /metrics under vLLM's own names, too, for dashboards that were made for it.", False
    )
    drain_timeout: float = _option(
        "Seconds that running requests get to finish after SIGTERM; then they are aborted.", 30.0
    )
    exit_with_parent: bool = _option(
        "End when the process that started this one ends, however that happens. For programs that start a daemon for "
        "themselves.",
        False,
    )
    log_format: str = _option("Lines on standard error: text, or json, one object each.", "text")
    log_level: str = _option(
        "Least level that is logged: debug, info (a line for each request that ends), warning or error.", "info"
    )
    log_prompts: bool = _option("Log the first 1000 characters of each prompt, too.", False)
    otlp_endpoint: str | None = _option(
        "Send a span for each request to this OpenTelemetry collector (OTLP over gRPC), for example "
        "http://127.0.0.1:4317. Needs the extra otel. Default: none.",
        None,
    )
    drain_withdrawal: float = _duration(
        "How long a drain still takes requests after health checks say NOT_SERVING, for load balancers to notice.", 0.0
    )
    stream_stall_timeout: float = _duration(
        "End a stream whose reader takes nothing for so long. Over HTTP the connection is cut.", 60.0
    )
    grpc_keepalive_time: float = _duration("Ping a gRPC connection that was silent for so long.", 30.0)
    grpc_keepalive_timeout: float = _duration("Close a gRPC connection whose answer to a ping takes longer.", 10.0)
    grpc_min_ping_interval: float = _duration(
        "Close a gRPC connection whose client pings more often while nothing is sent.", 10.0
    )
    channelz: bool = _option("Serve grpc.channelz.v1, which tells of all connections. Needs grpcio-channelz.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_operations()
        if self.env == "":
            raise ValueError("env: must not be empty")
        if self.permission_mode not in _PERMISSION_MODES:
            raise ValueError(f"permission_mode: must be {' or '.join(_PERMISSION_MODES)}, not {self.permission_mode!r}")
        self._check_security()
        self._check_addresses()
        for name in ("drain_timeout", "drain_withdrawal"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must not be negative, not {getattr(self, name)}")
        times = ("stream_stall_timeout", "grpc_keepalive_time", "grpc_keepalive_timeout", "grpc_min_ping_interval")
        for name in times:
            if not 1e-3 <= getattr(self, name) <= TIMEOUT_MAX_S:
                raise ValueError(f"{name}: must be from 1 ms to {TIMEOUT_MAX_S} s, not {getattr(self, name)} s")
        if self.served_model_name == "":
            raise ValueError("served_model_name: must not be empty")

    def apart(self) -> "dict[str | None, ServeConfig]":
        """The options of each model under the name that clients use, in their order. None: a name of its own."""
        if isinstance(self.model, str):
            return {self.served_model_name: self}
        return {name: replace(self, model=source) for name, source in self.model.items()}

    def _check_model(self) -> None:
        if isinstance(self.model, str):
            super()._check_model()
        else:
            self._check_models(self.model)

    def _check_models(self, models: Mapping[str, str]) -> None:
        if not models:
            raise ValueError("model: must not be empty")
        for name, source in models.items():
            if not re.fullmatch(_MODEL_NAME, name):
                raise ValueError(f"model: {name!r} is not a name: write letters, digits and . _ : @ / -")
            if not source:
                raise ValueError(f"model: {name!r} must not be empty")
        if self.served_model_name is not None:
            raise ValueError("served_model_name: cannot be combined with a model that has a name")
        if self.trace_steps is not None and len(models) > 1:
            raise ValueError("trace_steps: cannot be combined with several models: the file is for the steps of one")

    def _check_operations(self) -> None:
        self._check_choices(_SERVE_CHOICES)
        if self.otlp_endpoint is not None and not re.fullmatch(r"https?://[^/\s]+/?", self.otlp_endpoint):
            raise ValueError(
                f"otlp_endpoint: must be http://HOST:PORT or https://HOST:PORT, not {self.otlp_endpoint!r}"
            )
        if self.otlp_endpoint is not None and self.permission_mode == "strict":
            raise ValueError("otlp_endpoint: cannot be combined with permission_mode strict, which connects nowhere")

    @property
    def serves_http(self) -> bool:
        """Whether there is an HTTP listener."""
        return self.http_port is not None or self.http_host.startswith(UNIX_PREFIX)

    @property
    def separates_admin(self) -> bool:
        """Whether administrators have a gRPC listener of their own."""
        return self.admin_port is not None or self.admin_host.startswith(UNIX_PREFIX)

    def _check_addresses(self) -> None:
        for name in ("port", "http_port", "admin_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65535:
                raise ValueError(f"{name}: must be in 0..65535, not {getattr(self, name)}")
        paths: set[str] = set()
        for name in ("host", "http_host", "admin_host"):
            host = getattr(self, name)
            if not host.startswith(UNIX_PREFIX):
                continue
            if host == UNIX_PREFIX:
                raise ValueError(f"{name}: unix: needs a path")
            if host in paths:
                raise ValueError(f"{name}: another listener has the socket {host}")
            paths.add(host)
        for name in ("http", "admin"):
            if getattr(self, f"{name}_port") is not None and getattr(self, f"{name}_host").startswith(UNIX_PREFIX):
                raise ValueError(f"{name}_port: a Unix socket ({name}_host) has no port")
        if self.admin_host != type(self).admin_host and not self.separates_admin:
            raise ValueError("admin_host: needs admin_port")

    def _check_security(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert, tls_key: need each other")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca: needs tls_cert and tls_key")
        parse_origins(self.cors_origins)


def from_values(options: type[T], values: Mapping[str, Any]) -> T:
    """Options made of values that may be written as for the flags: "4GiB" for a size, "auto" for max_model_len."""
    parsers = {each.name: each.metadata["parser"] for each in fields(options) if not each.metadata["repeated"]}
    parsed = dict(values)
    for name, value in values.items():
        if parsers.get(name) and isinstance(value, str | int | float):
            try:
                parsed[name] = parsers[name](str(value))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return options(**parsed)
