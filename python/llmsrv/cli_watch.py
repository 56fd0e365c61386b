"""Commands that look at a running server: `llmsrv top` and `llmsrv bench`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from llmsrv.remote import API_KEY_VARIABLE, DEFAULT_ADDRESS, Remote

# Parts of the help.
SERVER, LOAD, RESULTS = "The server", "The load", "The results"

ApiKey = Annotated[
    str, typer.Option("--api-key", envvar=API_KEY_VARIABLE, help="Sent as a bearer token.", rich_help_panel=SERVER)
]
Tls = Annotated[
    bool, typer.Option("--tls", help="Encrypt gRPC, with the system's certificates.", rich_help_panel=SERVER)
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca", help="File of certificates to trust instead; implies --tls.", rich_help_panel=SERVER),
]


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
    api_key: ApiKey = "",
    tls: Tls = False,
    ca: CaFile = None,
) -> None:
    """Watch a running server in the terminal: requests, rates, latencies, KV blocks, tenants. Ctrl-C ends it.

    Without a terminal it prints one sample.
    """
    from llmsrv.top import run_top

    try:
        run_top(Remote(address, api_key, tls, ca), interval, once=once or not sys.stdout.isatty())
    except OSError as error:
        _fail(error)
    except KeyboardInterrupt:
        raise typer.Exit from None


def bench(
    address: Annotated[
        str | None,
        typer.Option(
            help=f"HOST:PORT of an llmsrv.v1 (gRPC) server. Default: {DEFAULT_ADDRESS}.", rich_help_panel=SERVER
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="An OpenAI server instead, for example http://127.0.0.1:8000/v1.", rich_help_panel=SERVER),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="OpenAI: chat completions of words.", rich_help_panel=SERVER)
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="OpenAI: prompts of words instead of token ids.", rich_help_panel=SERVER)
    ] = False,
    model: Annotated[str | None, typer.Option(help="Default: the server's first.", rich_help_panel=SERVER)] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Closed loop: so many clients, each waits.", rich_help_panel=LOAD)
    ] = 8,
    request_rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second, Poisson.", rich_help_panel=LOAD)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Open loop: the times and sizes of this file.", rich_help_panel=LOAD)
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Of a trace; 0.5 sends it twice as fast.", rich_help_panel=LOAD)
    ] = 1.0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many. Default: 64, or the whole trace.", rich_help_panel=LOAD)
    ] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Of each prompt.", rich_help_panel=LOAD)] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.", rich_help_panel=LOAD)] = 128,
    max_tokens: Annotated[
        int | None, typer.Option(help="Leave out what is longer in a trace, in and out.", rich_help_panel=LOAD)
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Token ids are below it. Default: asked for.", rich_help_panel=SERVER)
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Generate exactly --output-tokens.", rich_help_panel=LOAD)] = True,
    extra_body: Annotated[
        str, typer.Option(help="OpenAI: more fields of the body, as a JSON object.", rich_help_panel=SERVER)
    ] = "{}",
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests before the run, which do not count.", rich_help_panel=LOAD)
    ] = 2,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that one request gets.", rich_help_panel=SERVER)
    ] = 600.0,
    seed: Annotated[int, typer.Option(help="Same seed, same prompts and times.", rich_help_panel=LOAD)] = 0,
    goodput: Annotated[
        str | None, typer.Option(help="Limits in ms, of ttft, tpot and e2e: ttft:200,tpot:50.", rich_help_panel=RESULTS)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write figures and requests to it.", rich_help_panel=RESULTS)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (SVG) to it.", rich_help_panel=RESULTS)] = None,
    api_key: ApiKey = "",
    tls: Tls = False,
    ca: CaFile = None,
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
