"""The typed face of the core for the service, and loading: from a model's name to an engine that steps.

Nothing above this module and memory.py touches `_core`. The core's library, numpy and the tokenizer library are
imported only when something is loaded, so that `import llmsrv` and a command's --help stay quick.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llmsrv.config import EngineOptions
from llmsrv.errors import Code, ServiceError, Violation
from llmsrv.memory import (
    Planned,
    available_bytes,
    blamed,
    check_device_plans,
    check_plans,
    core_config,
    describe_plan,
    describe_room,
    describe_sum,
    device_memory,
    matrix_formats,
    plan_together,
    resident_bytes,
)
from llmsrv.params import SamplingParams
from llmsrv.team import Team, choose_team

if TYPE_CHECKING:
    from llmsrv import _core
    from llmsrv.text.chat_template import ChatTemplate
    from llmsrv.text.tokenizer import Tokenizer
    from llmsrv.weights.load import ModelFiles, PackedCache
    from llmsrv.weights.progress import ProgressCallback

_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
SERVER_DEFAULTS = SamplingParams(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    repetition_penalty=1.0,
)
_DEFAULTED = tuple(each.name for each in fields(SamplingParams) if getattr(SERVER_DEFAULTS, each.name) is not None)


class Engine:
    """The core's engine with our exceptions. All methods may be called from any thread."""

    def __init__(self, core: "_core.Engine") -> None:
        self._core = core

    def build(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        cache_salt: str = "",
        bypass_prefix_cache: bool = False,
        priority: int = 0,
        tenant: str = "",
        queue_timeout_s: float | None = None,
    ) -> "tuple[_core.Request, list[Violation]]":
        """A request in the core's own type, and what its integers could not hold (zero stands there instead).

        REQUIRES: params went through LoadedModel.resolve.
        """
        from llmsrv import _core

        narrow = _Narrow()
        request = _core.Request()
        request.id = request_id
        request.prompt = narrow.ids("input.token_ids", prompt_ids)
        request.sampling = _sampling(params, narrow)
        request.stopping = _stopping(params, narrow)
        request.output = _output(params, narrow)
        request.cache_salt = cache_salt
        request.bypass_prefix_cache = bypass_prefix_cache
        request.priority = narrow.integer("priority", priority)
        request.tenant = tenant
        request.queue_timeout_s = queue_timeout_s
        return request, narrow.violations

    def validate(self, request: "_core.Request") -> list[Violation]:
        """All violations that submit() would report."""
        return [Violation(field, text) for field, text in self._core.validate(request)]

    def submit(self, request: "_core.Request", *, deadline_s: float | None = None) -> int:
        """Hands a request to the core and returns its key. Raises ServiceError when the core refuses it.

        `deadline_s`: seconds from now, after which nobody reads the answer.
        """
        from llmsrv import _core

        request.deadline_s = deadline_s
        try:
            return self._core.submit(request)
        except _core.StatusError as error:
            raise service_error(error) from None

    def abort(self, key: int) -> bool:
        """Ends a request by its key. False when it is not in flight."""
        return self._core.abort(key)

    def stop(self, key: int) -> bool:
        """The same, for a request whose text reached a stop string: it counts as stopped."""
        return self._core.stop(key)

    def abort_id(self, request_id: str) -> bool:
        """Ends a request by its client's id."""
        return self._core.abort_id(request_id)

    def abort_all(self) -> list[str]:
        """Ends everything; the ids of what was in flight."""
        return self._core.abort_all()

    def clear_prefix_cache(self) -> int:
        """Forgets all cached prefixes; waits for the engine's next step. How many blocks became free."""
        return self._core.clear_prefix_cache()

    def wait_outputs(self, timeout_ms: int) -> "list[_core.Output]":
        """Waits for outputs, without the GIL, and takes all of them."""
        return self._core.wait_outputs(timeout_ms)

    def stats(self) -> "_core.EngineStats":
        """One consistent sample."""
        return self._core.stats()

    @property
    def queued(self) -> int:
        """Requests that the core has accepted and that do not run yet, now: stats() is as old as the last step."""
        return self._core.queued

    def shutdown(self) -> None:
        """Ends all requests as aborted and joins the engine thread. Idempotent."""
        self._core.shutdown()

    @property
    def device(self) -> str:
        """What it computes on."""
        return self._core.device


def service_error(error: "_core.StatusError") -> ServiceError:
    """The core's refusal, or the end of a request in flight, as the service's exception."""
    return ServiceError(
        Code(error.code),
        error.message,
        violations=[Violation(field, text) for field, text in error.violations],
        metadata=error.metadata,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that can generate, and everything that is known of it."""

    name: str  # what clients call it
    architecture: str
    quantization: str  # of the file; empty for none
    engine: Engine
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    defaults: SamplingParams  # its generation_config; None where that is silent
    eos_token_ids: Sequence[int]
    vocab_size: int
    max_model_len: int
    max_position: int  # tokens that the model itself could read
    config: EngineOptions  # with every None filled in
    plan: "_core.MemoryPlan"

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token: more text than so many of these as fit cannot be a prompt."""
        return max(len(self.tokenizer.token_bytes(token_id)) for token_id in range(self.vocab_size))

    @property
    def weight_dtype(self) -> str:
        """What the weight matrices are held in."""
        return matrix_formats(self.plan)

    @property
    def longest_counted_prompt(self) -> int:
        """Tokens of the longest prompt whose refusal depends on how long it is exactly.

        A prompt that the model could read, but the whole KV cache could not hold, is refused for another reason.
        """
        pool_tokens = self.plan.kv_blocks * self.config.block_size
        return self.max_position if pool_tokens < self.max_position else self.max_model_len

    def resolve(self, params: SamplingParams) -> SamplingParams:
        """Fills what the caller left open: from the model's generation_config, then from the server."""
        filled = {}
        for name in _DEFAULTED:
            if getattr(params, name) is None:
                own = getattr(self.defaults, name)
                filled[name] = getattr(SERVER_DEFAULTS, name) if own is None else own
        return replace(params, **filled) if filled else params


Report = Callable[[str], None]


def load_engine(options: EngineOptions, *, report: Report | None = None, name: str | None = None) -> LoadedModel:
    """Loads a model and starts its engine. Raises ValueError or OSError with one clear sentence.

    `report` takes one line at a time; without it nothing is printed, a progress bar neither.
    """
    return load_engines({name: options}, report=report)[0]


def load_engines(options: Mapping[str | None, EngineOptions], *, report: Report | None = None) -> list[LoadedModel]:
    """The same for several models, by the names that clients use: one plan of memory, one team of compute threads.

    None stands for a model's own name. REQUIRES: the options differ in the model alone.
    """
    from llmsrv import _core

    sources = _inspect_all(options, report)
    # The tokenizer is built beside the weights: both spend most of their time without the GIL.
    with ThreadPoolExecutor(1, thread_name_prefix="llmsrv-load") as pool, ExitStack() as started:
        texts = [pool.submit(_load_text, each.files) for each in sources]
        planned = _plan(sources, report or _silent)
        _check_plans(planned)
        team = choose_team(sources[0].options)
        threads = _core.Team(team.threads, team.processors)
        models: list[LoadedModel] = []
        for source, plan, text in zip(sources, planned, texts, strict=True):
            with source.blamed():
                models.append(_load(source, plan, text, threads, team))
            started.callback(models[-1].engine.shutdown)
        started.pop_all()  # all are there
    return models


def _load(
    source: "_Source",
    planned: Planned,
    text: "Future[tuple[Tokenizer, ChatTemplate | None]]",
    threads: "_core.Team",
    team: Team,
) -> LoadedModel:
    """Loads what was planned and starts its engine."""
    from llmsrv import _core
    from llmsrv.weights.load import load_weights

    files, config, clock = source.files, planned.config, _Clock(source.tell)
    cache = _packed_cache(config, files, source.tell)
    with _weights_progress(source) as progress:
        weights = load_weights(files, dtype=config.weights_dtype, threads=team.threads, progress=progress, cache=cache)
    clock.lap(f"mapped the weights from {cache.path}" if cache and cache.was_used else "loaded the weights")
    tokenizer, template = text.result()
    clock.lap("waited for the tokenizer")
    eos_token_ids = sorted({*files.eos_token_ids, *tokenizer.eos_token_ids})
    own_config = core_config(config, eos_token_ids)
    core = _core.Engine(weights, own_config, team=threads, device=config.device)
    clock.lap(f"started the engine on {core.device}, {team.placement},")
    return LoadedModel(
        name=source.name,
        architecture=files.architecture,
        quantization=files.quantization or config.quantization or "",
        engine=Engine(core),
        tokenizer=tokenizer,
        chat_template=template,
        defaults=_defaults(files, source.tell) if config.generation_config == "auto" else SamplingParams(),
        eos_token_ids=eos_token_ids,
        vocab_size=files.spec.vocab_size,
        max_model_len=own_config.max_model_len,
        max_position=files.spec.max_position,
        config=config,
        plan=planned.plan,
    )


def plan_engines(options: Mapping[str | None, EngineOptions], *, report: Report) -> None:
    """Reports what load_engines() would take, from the models' headers alone. Raises ValueError or OSError likewise."""
    sources = _inspect_all(options, report)
    planned = _plan(sources, report)
    for source, each in zip(sources, planned, strict=True):
        source.tell(describe_room(each.plan, each.config))
    _check_plans(planned)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A model whose headers are read."""

    name: str
    options: EngineOptions
    files: "ModelFiles"
    report: Report | None
    is_one_of_several: bool

    def tell(self, line: str) -> None:
        """Reports a line, with the model's name if there are others."""
        if self.report is not None:
            self.report(f"{self.name}: {line}" if self.is_one_of_several else line)

    def blamed(self) -> AbstractContextManager[None]:
        """What is raised names the model if there are others."""
        return blamed(self.name if self.is_one_of_several else None)


def _inspect_all(options: Mapping[str | None, EngineOptions], report: Report | None) -> list[_Source]:
    several = len(options) > 1
    sources = []
    for name, each in options.items():
        clock = _Clock(report or _silent)
        with blamed(name if several else None):
            chosen = _with_device(each)
            files = _inspect(chosen, report)
        source = _Source(
            name=name or _default_name(each.model_source, files.path),
            options=chosen,
            files=files,
            report=report,
            is_one_of_several=several,
        )
        clock.lap(f"read {files.path.name}: {files.architecture} {files.quantization}".rstrip())
        sources.append(source)
    return sources


def _with_device(options: EngineOptions) -> EngineOptions:
    """Chooses what auto leaves open. Raises ValueError, which says why, for a device that cannot be used here."""
    from llmsrv import _core

    if options.device == "cpu":
        return options
    why = _core.cuda_unavailable()
    if options.device == "cuda" and why is not None:
        raise ValueError(f"device cuda cannot be used: {why}")
    return replace(options, device="cuda" if why is None else "cpu")


def _check_plans(planned: Sequence[Planned]) -> None:
    """Raises ValueError when the plans take more memory than there is."""
    if planned[0].config.device == "cuda":
        check_device_plans([each.plan for each in planned], free=device_memory()[1], host=available_bytes())
    else:
        check_plans(planned, available_bytes())


class _Clock:
    """Reports the time between two points."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = time.monotonic()

    def lap(self, what: str) -> None:
        now = time.monotonic()
        self._report(f"{what} in {now - self._last:.2f} s")
        self._last = now


def _silent(line: str) -> None:
    """Reports nothing."""


def _inspect(options: EngineOptions, report: Report | None) -> "ModelFiles":
    from llmsrv.weights.fetch import resolve_model
    from llmsrv.weights.model_files import inspect_model
    from llmsrv.weights.progress import FetchProgress, no_progress

    with nullcontext(no_progress) if report is None else FetchProgress() as fetching:
        path = resolve_model(options.model_source, progress=fetching)
    return inspect_model(path)


def _plan(sources: Sequence[_Source], report: Report) -> list[Planned]:
    """Plans and reports them. Raises ValueError for a model that does not fit into its own limits."""
    if sources[0].options.gpu_memory_utilization is not None and sources[0].options.device == "cpu":
        report("gpu_memory_utilization is of no use on a CPU: kv_cache_memory says how much the KV cache gets")
    if not sources[0].options.deterministic and sources[0].options.device == "cpu":
        report("deterministic off changes nothing on a CPU, which always is deterministic")
    process_bytes, several = resident_bytes(), len(sources) > 1
    planned = plan_together({each.name: (each.files, each.options) for each in sources}, available_bytes())
    for source, each in zip(sources, planned, strict=True):
        for note in each.notes:
            source.tell(note)
        source.tell(describe_plan(each.plan, each.config, process_bytes=None if several else process_bytes))
    if several:
        report(describe_sum(planned, process_bytes=process_bytes))
    return planned


def _weights_progress(source: _Source) -> "AbstractContextManager[ProgressCallback]":
    from llmsrv.weights.progress import no_progress, show_progress

    if source.report is None:
        return nullcontext(no_progress)
    return show_progress(f"weights of {source.name}" if source.is_one_of_several else "weights")


def _packed_cache(options: EngineOptions, files: "ModelFiles", report: Report) -> "PackedCache | None":
    from llmsrv.weights.load import PackedCache
    from llmsrv.weights.packed_folder import DEFAULT_BYTES_MAX

    if options.packed_cache is None:
        return None
    size = options.packed_cache_size
    return PackedCache(options.packed_cache, files, report, DEFAULT_BYTES_MAX if size is None else size)


def _load_text(files: "ModelFiles") -> "tuple[Tokenizer, ChatTemplate | None]":
    from llmsrv.text.chat_template import ChatTemplate
    from llmsrv.text.tokenizer import Tokenizer
    from llmsrv.weights.json_file import read_json_object

    if files.tokenizer is None:
        raise ValueError(f"{files.path}: there is no tokenizer.json")
    if isinstance(files.tokenizer, Path):
        config_path = files.tokenizer.with_name("tokenizer_config.json")
        tokenizer = Tokenizer.from_file(
            files.tokenizer, read_json_object(config_path) if config_path.exists() else None
        )
    else:
        tokenizer = Tokenizer.from_gguf(files.tokenizer)
    if not files.chat_template:
        return tokenizer, None
    return tokenizer, ChatTemplate(files.chat_template, tokenizer.bos_token, tokenizer.eos_token)


def _default_name(model: str, path: Path) -> str:
    """The demo model's name or hub id as it was given; the file's or folder's name for a path."""
    given_as_path = model.endswith(".gguf") or Path(model).exists()
    return path.name.removesuffix(".gguf") if given_as_path else model


def _defaults(files: "ModelFiles", report: Report) -> SamplingParams:
    own = files.generation
    not_applied = list(own.not_applied)
    if own.max_new_tokens is not None:
        not_applied.append(f"max_new_tokens = {own.max_new_tokens}")
    for item in not_applied:
        report(f"generation_config: {item} is not applied")
    return SamplingParams(
        temperature=own.temperature,
        top_p=own.top_p,
        top_k=own.top_k,
        min_p=own.min_p,
        repetition_penalty=own.repetition_penalty,
    )


class _Narrow:
    """Makes the core's 32-bit integers of Python's, and lists those that do not fit."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def integer(self, field: str, value: int) -> int:
        if _INT32_MIN <= value <= _INT32_MAX:
            return value
        self.violations.append(Violation(field, f"{value} is out of range"))
        return 0

    def ids(self, field: str, values: Sequence[int]) -> list[int]:
        if not values or (min(values) >= _INT32_MIN and max(values) <= _INT32_MAX):
            return list(values)
        return [self.integer(f"{field}[{i}]", value) for i, value in enumerate(values)]


def _sampling(params: SamplingParams, narrow: _Narrow) -> "_core.SamplingParams":
    from llmsrv import _core

    made = _core.SamplingParams()
    for name in ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"):
        setattr(made, name, getattr(params, name))
    made.top_k = narrow.integer("sampling.top_k", params.top_k or 0)
    made.n = narrow.integer("sampling.n", params.n)
    if params.seed is not None and not 0 <= params.seed < 1 << 64:
        narrow.violations.append(Violation("sampling.seed", f"{params.seed} is out of range"))
    else:
        made.seed = params.seed
    made.logit_bias = {
        narrow.integer(f"sampling.logit_bias[{token_id}]", token_id): bias
        for token_id, bias in params.logit_bias.items()
    }
    made.allowed_token_ids = narrow.ids("sampling.allowed_token_ids", params.allowed_token_ids)
    return made


def _stopping(params: SamplingParams, narrow: _Narrow) -> "_core.StoppingParams":
    from llmsrv import _core

    made = _core.StoppingParams()
    if params.max_tokens is not None:
        made.max_tokens = narrow.integer("stopping.max_tokens", params.max_tokens)
    made.min_tokens = narrow.integer("stopping.min_tokens", params.min_tokens)
    made.stop_token_ids = narrow.ids("stopping.stop_token_ids", params.stop_token_ids)
    made.stop_strings = list(params.stop_strings)
    made.ignore_eos = params.ignore_eos
    made.time_limit_s = params.time_limit_s
    return made


def _output(params: SamplingParams, narrow: _Narrow) -> "_core.OutputOptions":
    from llmsrv import _core

    made = _core.OutputOptions()
    made.logprobs = params.logprobs
    made.top_logprobs = narrow.integer("output.top_logprobs", params.top_logprobs)
    made.prompt_logprobs = params.prompt_logprobs
    return made
