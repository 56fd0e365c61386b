"""`llmsrv bench`: options to a run, a run to a table, a file and a picture."""

import json
import shlex
import ssl
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llmsrv
from llmsrv.load.figures import DEFINITIONS, GOODPUT_DEFINITION, SHARES, Figures, Sample, goodput, summary
from llmsrv.load.jobs import Job, Prompts, poisson_jobs, trace_jobs
from llmsrv.load.loops import Client, closed_loop, open_loop
from llmsrv.load.progress import Progress

OPENAI_IDS = range(1000, 30_000)  # in the vocabulary of every model in use, and past its special tokens


@dataclass(frozen=True)
class BenchOptions:
    """What `llmsrv bench` is asked for. Exactly one of address and base_url is set."""

    address: str | None
    base_url: str | None
    chat: bool
    words: bool
    model: str | None
    concurrency: int
    request_rate: float | None
    trace: Path | None
    time_scale: float
    requests: int | None
    input_tokens: int
    output_tokens: int
    tokens_max: int | None
    vocab_size: int | None
    ignore_eos: bool
    extra_body: dict[str, Any]
    warmup: int
    timeout_s: float
    seed: int
    goodput: dict[str, float]
    json: Path | None
    plot: Path | None
    api_key: str
    tls: bool
    ca: Path | None

    @property
    def jobs(self) -> list[Job]:
        """What is sent. Raises OSError or ValueError."""
        if self.trace is not None:
            return trace_jobs(self.trace, time_scale=self.time_scale, limit=self.requests, tokens_max=self.tokens_max)
        count = self.requests or 64
        job = Job(0.0, self.input_tokens, self.output_tokens)
        return [job] * count if self.request_rate is None else poisson_jobs(job, count, self.request_rate, self.seed)

    @property
    def load(self) -> str:
        """In words."""
        if self.trace is not None:
            scale = "" if self.time_scale == 1 else f" at {self.time_scale:g} of its times"
            return f"trace {self.trace.name}{scale}"
        if self.request_rate is not None:
            return f"Poisson, {self.request_rate:g} requests/s"
        return f"closed loop of {self.concurrency}"


async def bench(options: BenchOptions) -> bool:
    """Runs it and prints what came of it; whether any request ended well. Raises OSError or ValueError."""
    jobs = options.jobs
    client, model = await _connected(options)
    try:
        if options.warmup:
            with Progress("warm-up", options.warmup) as progress:
                warm = [Job(0.0, jobs[0].input_tokens, jobs[0].output_tokens)] * options.warmup
                # Prompts of their own: the run must not find them cached.
                await closed_loop(client, warm, options.warmup, progress, first_index=-options.warmup)
        with Progress(options.load, len(jobs)) as progress:
            samples = await _run(options, client, jobs, progress)
    finally:
        await client.close()
    figures = summary(samples)
    if options.goodput:
        figures["goodput"] = goodput(samples, options.goodput, figures["seconds"])
    title = f"{model}, {options.load}, {len(samples)} requests"
    if options.json is not None:
        options.json.write_text(json.dumps(_record(options, model, figures, samples), indent=1) + "\n")
    if options.plot is not None:
        from llmsrv.load.plot import plot

        options.plot.write_text(plot(samples, title, options.goodput))
    print(report(title, figures, samples))
    return bool(figures["ok"])


async def _run(options: BenchOptions, client: Client, jobs: list[Job], progress: Progress) -> list[Sample]:
    if options.trace is None and options.request_rate is None:
        return await closed_loop(client, jobs, options.concurrency, progress)
    return await open_loop(client, jobs, progress)


async def _connected(options: BenchOptions) -> tuple[Client, str]:
    """A client, and the name of the model that it asks for. Raises OSError or ValueError."""
    if options.base_url is not None:
        return await _openai(options, options.base_url)
    import grpc.aio

    from llmsrv.load.grpc_client import GrpcClient
    from llmsrv.remote import DEFAULT_ADDRESS, Remote, open_channel
    from llmsrv.v1 import model_pb2, model_pb2_grpc

    remote = Remote(options.address or DEFAULT_ADDRESS, options.api_key, options.tls, options.ca)
    try:
        async with open_channel(remote) as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            request = model_pb2.GetModelRequest(name=options.model or "")
            answer = await stub.GetModel(request, timeout=10, metadata=remote.metadata)
    except grpc.aio.AioRpcError as error:
        raise OSError(f"{remote.address}: {error.code().name}: {error.details()}") from None
    prompts = Prompts(options.seed, options.vocab_size or answer.model.vocab_size)
    client = GrpcClient(
        remote, prompts, ignore_eos=options.ignore_eos, timeout_s=options.timeout_s, model=options.model or ""
    )
    return client, answer.model.name


async def _openai(options: BenchOptions, url: str) -> tuple[Client, str]:
    from llmsrv.load.http_client import OpenAIClient

    prompts = Prompts(options.seed, options.vocab_size or OPENAI_IDS.stop, OPENAI_IDS.start)
    if options.vocab_size:
        prompts = Prompts(options.seed, options.vocab_size)
    body: dict[str, Any] = {"ignore_eos": True, **options.extra_body} if options.ignore_eos else options.extra_body
    tls = None if options.ca is None else ssl.create_default_context(cafile=options.ca)
    fields: dict[str, Any] = {"api_key": options.api_key, "tls": tls, "timeout_s": options.timeout_s}
    fields |= {"chat": options.chat, "words": options.words}
    model = options.model
    if model is None:
        asking = OpenAIClient(url, prompts, **fields)
        names = await asking.models()
        await asking.close()
        if not names:
            raise ValueError(f"{url}: serves no model; name one with --model")
        model = names[0]
    fields["fields"] = {"model": model, **body}
    return OpenAIClient(url, prompts, **fields), model


def report(title: str, figures: Figures, samples: list[Sample]) -> str:
    """The figures as a table, with what they mean."""
    columns = ("mean", *SHARES, "max")
    lines = [
        title,
        "",
        f"{figures['output_tokens_per_s']:,.1f} output tokens/s, {figures['input_tokens_per_s']:,.1f} input tokens/s, "
        f"{figures['requests_per_s']:,.2f} requests/s over {figures['seconds']:,.1f} s; "
        f"{figures['ok']} of {figures['requests']} requests ended well",
        "",
        f"{'ms':6}" + "".join(f"{name:>11}" for name in columns),
    ]
    for name in DEFINITIONS:
        found = figures[name]
        if found is not None:
            shown = "".join(f"{found[each]:>11,.1f}" for each in columns)
            lines.append(f"{name.removesuffix('_ms').upper():6}{shown}")
    lines += ["", *(f"{name.removesuffix('_ms').upper():6}{words}" for name, words in DEFINITIONS.items())]
    if "goodput" in figures:
        lines += ["", *_goodput_lines(figures["goodput"])]
    if figures["errors"]:
        lines += ["", *_error_lines(figures["errors"], samples)]
    return "\n".join(lines)


def _goodput_lines(found: Figures) -> list[str]:
    limits = ", ".join(f"{name.upper()} <= {limit:g} ms" for name, limit in found["limits_ms"].items())
    kept = f"{found['requests_per_s']:,.2f} requests/s ({100 * found['share']:.1f} % of all) with {limits}"
    return [f"goodput: {kept}", f"      {GOODPUT_DEFINITION}"]


def _error_lines(errors: dict[str, int], samples: list[Sample]) -> list[str]:
    """Each kind with how often, and the first one's words."""
    lines = []
    for kind, count in errors.items():
        words = next((each.message for each in samples if each.error == kind and each.message), "")
        lines.append(f"failed: {count} x {kind}" + (f", for example: {words[:200]}" if words else ""))
    return lines


def _record(options: BenchOptions, model: str, figures: Figures, samples: list[Sample]) -> Figures:
    """All that is needed to compare the run with another one."""
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    del asked["api_key"]
    began = min(sample.sent for sample in samples)
    return {
        "llmsrv": llmsrv.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["llmsrv", *sys.argv[1:]]),
        "options": asked,
        "model": model,
        "load": options.load,
        "figures": figures,
        "definitions": {**DEFINITIONS, "goodput": GOODPUT_DEFINITION},
        "requests": [_request_record(each, began) for each in samples],
    }


def _request_record(sample: Sample, began: float) -> Figures:
    record: Figures = {"sent_s": round(sample.sent - began, 4), "input_tokens": sample.input_tokens}
    if not sample.is_good:
        return {**record, "error": sample.error or "EMPTY", "message": sample.message}
    record |= {"output_tokens": sample.tokens, "ttft_ms": round(sample.ttft_ms, 3), "e2e_ms": round(sample.e2e_ms, 3)}
    return record if sample.tpot_ms is None else {**record, "tpot_ms": round(sample.tpot_ms, 3)}


def run_bench(options: BenchOptions) -> bool:
    """Runs it to its end on a loop of its own."""
    import uvloop

    return uvloop.run(bench(options))
