"""Commands that look at a running server: `llmsrv top` and `llmsrv bench`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from llmsrv.remote import API_KEY_VARIABLE, DEFAULT_ADDRESS, Remote


def _option(part: str) -> Callable[..., Any]:
    """Makes options that stand together in the help."""

    def option(text: str, *names: str, **rules: Any) -> Any:  # noqa: ANN401
        return typer.Option(*names, help=text, rich_help_panel=part, **rules)

    return option


_server, _load, _results = _option("The server"), _option("The load"), _option("The results")

ApiKey = Annotated[str, _server("Sent as a bearer token.", "--api-key", envvar=API_KEY_VARIABLE)]
Tls = Annotated[bool, _server("Encrypt gRPC, with the system's certificates.", "--tls")]
CaFile = Annotated[Path | None, _server("File of certificates to trust instead; implies --tls.", "--ca")]
# One line for a paragraph: typer keeps the line ends of a docstring.
BENCH_HELP = (
    "Put load on a server and print how fast it was, as its clients saw it. Status 1 when no request ended well.\n\n"
    "Closed loop (--concurrency): each client sends its next request when it has its answer. Open loop (--request-rate "
    "or --trace): requests are sent at their time, however many are under way; only this is fair to latency, because a "
    "slow server does not slow its clients down. Prompts are random token ids from the seed, greedy.\n\n"
    "A trace is JSON lines with timestamp (ms), input_length, output_length and maybe hash_ids (equal ids, equal "
    "tokens), as Mooncake publishes, or CSV with TIMESTAMP, ContextTokens and GeneratedTokens, as Azure does."
)


def add_commands(app: typer.Typer) -> None:
    """Adds both."""
    app.command()(top)
    app.command(help=BENCH_HELP)(bench)


def top(
    address: Annotated[str, typer.Option(help="HOST:PORT of the server's gRPC listener.")] = DEFAULT_ADDRESS,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two samples.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one sample and end.")] = False,
    model: Annotated[str, typer.Option(help="Which one to look at. Default: the server's first.")] = "",
    api_key: ApiKey = "",
    tls: Tls = False,
    ca: CaFile = None,
) -> None:
    """Watch a running server in the terminal: requests, rates, latencies, KV blocks, tenants. Ctrl-C ends it.

    Without a terminal it prints one sample.
    """
    from llmsrv.top import run_top

    try:
        run_top(Remote(address, api_key, tls, ca), interval, once=once or not sys.stdout.isatty(), model=model)
    except OSError as error:
        _fail(error)
    except KeyboardInterrupt:
        raise typer.Exit from None


def bench(
    address: Annotated[str | None, _server(f"HOST:PORT of a gRPC server. Default: {DEFAULT_ADDRESS}.")] = None,
    base_url: Annotated[str | None, _server("An OpenAI server instead: http://127.0.0.1:8000/v1.")] = None,
    chat: Annotated[bool, _server("OpenAI: chat completions of words.", "--chat")] = False,
    words: Annotated[bool, _server("OpenAI: prompts of words instead of token ids.", "--words")] = False,
    model: Annotated[str | None, _server("Default: the server's first.")] = None,
    vocab_size: Annotated[int | None, _server("Token ids are below it. Default: asked for.", min=2)] = None,
    extra_body: Annotated[str, _server("OpenAI: more fields of the body, as a JSON object.")] = "{}",
    timeout: Annotated[float, _server("Seconds that one request gets.", min=0.1)] = 600.0,
    api_key: ApiKey = "",
    tls: Tls = False,
    ca: CaFile = None,
    concurrency: Annotated[int, _load("Closed loop: so many clients, each waits.", min=1)] = 8,
    request_rate: Annotated[float | None, _load("Open loop: requests per second, Poisson.")] = None,
    trace: Annotated[Path | None, _load("Open loop: the times and sizes of this file.")] = None,
    time_scale: Annotated[float, _load("Of a trace; 0.5 sends it twice as fast.")] = 1.0,
    max_tokens: Annotated[int | None, _load("Leave out what is longer in a trace, in and out.")] = None,
    requests: Annotated[int | None, _load("How many. Default: 64, or the whole trace.", min=1)] = None,
    input_tokens: Annotated[int, _load("Of each prompt.", min=1)] = 128,
    output_tokens: Annotated[int, _load("Of each answer.", min=1)] = 128,
    ignore_eos: Annotated[bool, _load("Generate exactly --output-tokens.")] = True,
    warmup: Annotated[int, _load("Requests before the run, which do not count.", min=0)] = 2,
    seed: Annotated[int, _load("Same seed, same prompts and times.")] = 0,
    goodput: Annotated[str | None, _results("Limits in ms, of ttft, tpot and e2e: ttft:200,tpot:50.")] = None,
    json_file: Annotated[Path | None, _results("Write figures and requests to it.", "--json")] = None,
    plot: Annotated[Path | None, _results("Write a picture (SVG) to it.")] = None,
) -> None:
    """Runs load. See BENCH_HELP."""
    values = dict(locals())
    from llmsrv.load.command import BenchOptions, run_bench

    try:
        went_well = run_bench(BenchOptions(**_bench_values(values)))
    except (OSError, ValueError) as error:
        _fail(error)
    except KeyboardInterrupt:
        print("stopped; nothing is reported of a run that did not end", file=sys.stderr)
        raise typer.Exit(130) from None
    if not went_well:
        raise typer.Exit(1)


def _bench_values(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of BenchOptions. Raises ValueError for what contradicts."""
    from llmsrv.load.figures import parse_limits

    if values["address"] is not None and values["base_url"] is not None:
        raise ValueError("--address and --base-url: one server at a time")
    if values["request_rate"] is not None and values["trace"] is not None:
        raise ValueError("--request-rate and --trace: one kind of load at a time")
    if values["request_rate"] is not None and not 0 < values["request_rate"] < float("inf"):
        raise ValueError("--request-rate: must be above 0")
    if not 0 < values["time_scale"] < float("inf"):
        raise ValueError("--time-scale: must be above 0")
    values["extra_body"] = _object(values["extra_body"])
    values["goodput"] = parse_limits(values["goodput"]) if values["goodput"] else {}
    renamed = {"max_tokens": "tokens_max", "timeout": "timeout_s", "json_file": "json"}
    return {renamed.get(name, name): value for name, value in values.items()}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("--extra-body: must be a JSON object")
    return found


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(1) from None
