"""The `llmsrv` command: config, demo, generate, plan, replay, top, bench, version. The daemon is `llmsrv-grpc`."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from llmsrv.cli_config import AS_A_DAEMON, config_app, settings_of
from llmsrv.cli_watch import add_commands
from llmsrv.config import DEFAULT_DTYPE, EngineOptions, ServeConfig, parse_model_len, parse_size
from llmsrv.errors import ServiceError
from llmsrv.params import SamplingParams

if TYPE_CHECKING:
    from llmsrv.serve.daemon import Daemon

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Serve and try language models. The daemon is a command of its own: llmsrv-grpc --help.",
)
app.add_typer(config_app, name="config")
DEMO_MODEL = "smollm2-135m"
DEMO_QUESTION = "What is a page table in an operating system? Answer in two sentences."


def main() -> None:
    """Entry point of `llmsrv`."""
    app(prog_name="llmsrv")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Holds the options of the command itself."""
    if version:
        show_version()
        raise typer.Exit


@app.command("version")
def show_version() -> None:
    """Print the version, and the commit where the build knew it."""
    import llmsrv
    from llmsrv.commit import built_commit

    commit = built_commit()
    print(f"llmsrv {llmsrv.__version__}" + (f" ({commit})" if commit else ""))


@app.command()
def generate(
    model: Annotated[str, typer.Option(help="GGUF file, Hugging Face folder, hub id, or a demo model.")],
    prompt: Annotated[str, typer.Argument(help="Text to continue, or with --chat what the user says.")],
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass, in (0, 1].")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below min_p times the likeliest.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="In [-2, 2].")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="In [-2, 2].")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 0; 1 is off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of sequence.")] = False,
    time_limit: Annotated[float | None, typer.Option(help="Seconds; what is done by then is the result.")] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the weight matrices: auto (as the file has them), bfloat16 or float32.")
    ] = DEFAULT_DTYPE,
    threads: Annotated[int | None, typer.Option(help="Compute threads. Default: physical cores.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(parser=parse_model_len, help="Longest prompt plus output.")
    ] = None,
    kv_cache_memory: Annotated[int | None, typer.Option(parser=parse_size, help="For example 4GiB.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the generated text only.")] = False,
) -> None:
    """Continue a prompt in this process and print the text as it comes."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        time_limit_s=time_limit,
    )
    try:
        options = EngineOptions(
            model=model, dtype=dtype, threads=threads, max_model_len=max_model_len, kv_cache_memory=kv_cache_memory
        )
        _generate(options, prompt, chat, params, quiet)
    except (ValueError, OSError, ImportError, ServiceError) as error:
        _fail(error)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep serving, and print how to call it.")] = False,
    question: Annotated[str, typer.Option(help="What to ask.")] = DEMO_QUESTION,
    model: Annotated[str, typer.Option(help="What to serve.")] = DEMO_MODEL,
) -> None:
    """Serve a small real model, ask it a question over gRPC, and show how fast the answer came.

    The model (98 MB) is fetched on first use.
    """
    import uvloop

    try:
        uvloop.run(_demo(model, question, keep))
    except (ValueError, OSError, ImportError) as error:
        _fail(error)


@app.command(context_settings=AS_A_DAEMON)
def plan(context: typer.Context) -> None:
    """Print the memory plan, and how many sequences fit, without loading a model. Status 1 when it does not fit.

    Takes every option of llmsrv-grpc.
    """
    from llmsrv.engine import plan_engines

    settings = settings_of(context, "Prints the memory plan, without loading a model.")
    try:
        plan_engines(settings.options.apart(), report=print)
    except (ValueError, OSError, ImportError) as error:
        _fail(error)


add_commands(app)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="What an engine wrote with trace_steps.")],
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Count the differences, do not stop.")] = False,
) -> None:
    """Make the decisions of a recorded run again, without its model, and compare. Status 1 when any is another one."""
    from llmsrv.replay import replay_file

    try:
        same = replay_file(file, keep_going=keep_going, report=print)
    except (ValueError, OSError) as error:
        _fail(error)
    if not same:
        raise typer.Exit(1)


def _generate(options: EngineOptions, prompt: str, chat: bool, params: SamplingParams, quiet: bool) -> None:
    from llmsrv.llm import LLM

    with LLM.from_options(options, quiet=quiet) as llm:
        watch = Stopwatch()
        for delta in llm.stream([{"role": "user", "content": prompt}] if chat else prompt, params):
            watch.note(delta.token_count)
            print(delta.text, end="", flush=True)
        print()
        if not quiet:
            print(watch.summary(), file=sys.stderr)


async def _demo(model: str, question: str, keep: bool) -> None:
    from llmsrv.serve.daemon import Daemon, until_signal

    daemon = Daemon(ServeConfig(model=model, port=0), environment={})  # a key there is for another server
    try:
        await daemon.start()
        await daemon.load()
        print(f"\n> {question}\n")
        print(await _ask(daemon, question))
        if keep:
            print(_how_to_call(daemon.port))
            await until_signal()
    finally:
        await daemon.stop()


async def _ask(daemon: "Daemon", question: str) -> str:
    """Streams one answer over real gRPC; the figures as text."""
    import grpc.aio

    from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2

    message = types_pb2.ChatMessage(role="user", content=question)
    request = inference_pb2.GenerateRequest(
        chat=types_pb2.ChatInput(messages=[message]),
        sampling=types_pb2.SamplingParams(temperature=0.0),
        stopping=types_pb2.StoppingParams(max_tokens=200),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        watch = Stopwatch()
        async for answer in stub.GenerateStream(inference_pb2.GenerateStreamRequest(request=request)):
            for delta in answer.deltas:
                watch.note(delta.token_count)
                print(delta.text, end="", flush=True)
    return f"\n\n{watch.summary()}"


def _how_to_call(port: int) -> str:
    return f"""
Serving on 127.0.0.1:{port} until Ctrl-C. Call it from another terminal:

  grpcurl -plaintext -d '{{"text": "Once upon a time", "stopping": {{"max_tokens": 32}}}}' \\
    127.0.0.1:{port} llmsrv.v1.InferenceService/Generate

  python3 - <<'EOF'
  import grpc
  from llmsrv.v1 import inference_pb2, inference_pb2_grpc
  stub = inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel("127.0.0.1:{port}"))
  print(stub.Generate(inference_pb2.GenerateRequest(text="Once upon a time")).completions[0].text)
  EOF
"""


@dataclass
class Stopwatch:
    """Time to first token and speed of one stream, as its reader sees them."""

    tokens: int = 0
    first_tokens: int = 0  # came together with the first

    def __post_init__(self) -> None:
        self._began = self._first = self._last = time.perf_counter()

    def note(self, tokens: int) -> None:
        """So many tokens came now."""
        self._last = time.perf_counter()
        if self.tokens == 0:
            self._first = self._last
            self.first_tokens = tokens
        self.tokens += tokens

    def summary(self) -> str:
        """One line."""
        first_ms = (self._first - self._began) * 1e3
        decode_s = self._last - self._first
        speed = (self.tokens - self.first_tokens) / decode_s if decode_s > 0 else 0.0
        return f"time to first token {first_ms:.0f} ms, then {speed:.1f} tokens/s ({self.tokens} tokens)"


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(1) from None


if __name__ == "__main__":
    main()
