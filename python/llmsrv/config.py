"""Options of an engine and of a server. One field = one flag of the same name (`max_model_len` is `--max-model-len`).

The fields that the core also has equal cpp/engine/config.h in name and default (tests/unit/test_config.py); None
stands where the core needs a figure that is worked out from the model (engine.py).
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes from "4GiB", "512MiB" or a plain number of bytes. Raises ValueError that says what is accepted."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|)\s*", str(text))
    if match is None:
        raise ValueError(
            f"{text!r} is not a size: write bytes, or a number with KiB, MiB, GiB or TiB, for example 4GiB"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _option(help_text: str, default: Any = MISSING, *, parser: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401
    """A dataclass field that is also a flag."""
    return field(default=default, metadata={"help": help_text, "parser": parser})


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What to load and within which limits. Raises ValueError when a value is impossible whatever the model."""

    model: str = _option("GGUF file, Hugging Face folder, hub id, or a demo model: smollm2-135m.")
    dtype: str = _option("Type of the weight matrices in memory: bfloat16 or float32.", "bfloat16")
    threads: int | None = _option("Compute threads. Default: physical cores.", None)
    max_model_len: int | None = _option(
        "Longest prompt plus output in tokens. Default: the model's own, or less if the KV cache is too small for it.",
        None,
    )
    block_size: int = _option("Tokens per KV block: 8, 16 or 32.", 16)
    max_num_seqs: int = _option("Most sequences that run at once.", 64)
    max_num_batched_tokens: int = _option("Most tokens computed in one step.", 512)
    kv_cache_memory: int | None = _option(
        "Memory for the KV cache, for example 4GiB. Default: 512MiB, or what one sequence of max_model_len needs.",
        None,
        parser=parse_size,
    )
    kv_cache_dtype: str = _option("Type of the KV cache: bfloat16 or float32.", "bfloat16")
    max_queued_requests: int = _option("Most waiting requests; the next one gets RESOURCE_EXHAUSTED.", 1024)
    max_queued_tokens: int = _option("Most prompt tokens of waiting requests together.", 1048576)
    max_logprobs: int = _option("Most top_logprobs that a request may ask for.", 20)
    max_choices: int = _option("Most sequences (n) that a request may ask for.", 128)
    prefix_cache: bool = _option("Share the keys and values of equal prompt beginnings between requests.", True)
    prefix_hash_bits: int = _option("Bits of the prefix cache's hash. Fewer only test what collisions do.", 128)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: must not be empty")
        for name in ("dtype", "kv_cache_dtype"):
            if getattr(self, name) not in ("bfloat16", "float32"):
                raise ValueError(f"{name}: must be bfloat16 or float32, not {getattr(self, name)!r}")
        for name in ("threads", "max_model_len", "kv_cache_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1, not {value}")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(EngineOptions):
    """The options of a daemon."""

    served_model_name: str | None = _option("Name that clients use. Default: the model's file or folder name.", None)
    host: str = _option("Address to listen on.", "127.0.0.1")
    port: int = _option("gRPC port; 0 picks a free one and prints it.", 50051)
    drain_timeout: float = _option(
        "Seconds that running requests get to finish after SIGTERM; then they are aborted.", 30.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: must be in 0..65535, not {self.port}")
        if self.drain_timeout < 0:
            raise ValueError(f"drain_timeout: must not be negative, not {self.drain_timeout}")
        if self.served_model_name == "":
            raise ValueError("served_model_name: must not be empty")


def flags_of(options: type[EngineOptions]) -> Signature:
    """A signature with one typer option for each field, for a command that takes them as keyword arguments."""
    import typer

    hints = get_type_hints(options)
    parameters = []
    for each in fields(options):
        option = typer.Option(
            help=each.metadata["help"], parser=each.metadata["parser"], show_default=each.default is not None
        )
        parameters.append(
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if each.default is MISSING else each.default,
                annotation=Annotated[hints[each.name], option],
            )
        )
    return Signature(parameters)
