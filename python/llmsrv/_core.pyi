"""Typed face of the compiled core. One class per bound concept; names and units are the core's own."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from typing_extensions import Buffer

class StatusError(RuntimeError):
    """A request that the core refused: `code` is a gRPC status code."""

    code: int
    message: str
    violations: list[tuple[str, str]]  # (field path, description)
    metadata: dict[str, str]  # what a program may read of the message

class RopeScaling:
    """RoPE scaling: `kind` is "linear" (positions divided by factor) or "llama3"."""

    def __init__(
        self,
        *,
        kind: str,
        factor: float,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_max_position: int = 8192,
    ) -> None: ...

class ModelSpec:
    """What a decoder-only transformer is, as data. An impossible shape raises ValueError that names every problem."""

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rms_norm_eps: float,
        rope_theta: float,
        rope_scaling: RopeScaling | None = None,
        qkv_bias: bool = False,
        tied_embeddings: bool = False,
        sliding_window: int | None = None,
        windowed_layers: Sequence[bool] = (),
        window_rope_theta: float | None = None,
        attention_scale: float | None = None,
        embedding_scale: float = 1.0,
        gate: str = "silu",
        head_norms: bool = False,
        post_norms: bool = False,
    ) -> None: ...
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    tied_embeddings: bool
    sliding_window: int | None
    windowed_layers: list[bool]
    window_rope_theta: float | None
    attention_scale: float | None
    embedding_scale: float
    gate: str
    head_norms: bool
    post_norms: bool

def expected_weights(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes ([out, in] for matrices, [n] for vectors) of all weights of a model, in the core's names."""

class MappedFile:
    """A read-only mapping of one whole file, kept for as long as somebody holds it. Raises OSError."""

    def __init__(self, path: str) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def populate(self, offset: int, nbytes: int) -> None:
        """Brings the pages of a range into memory, without the GIL. Raises OSError, ValueError outside the file."""

class Weights:
    """All weights of a model, packed for the kernels. Fill with set(); the engine refuses it while any is missing."""

    def __init__(self, spec: ModelSpec, *, dtype: str, threads: int, sources: Mapping[str, str] = {}) -> None:
        """Takes the memory for all weights.

        `dtype` of the matrices: "auto" (what the file holds: block formats as they are, floats as bfloat16),
        "bfloat16", "float32", or "int8" and "int4": as auto, but floats are quantized in groups of 32; vectors are
        float32. `sources`: weight name -> format of the file, as for set();
        a weight that is not named is taken for float32.
        """
    def set(self, name: str, source_format: str, shape: Sequence[int], data: Buffer) -> None:
        """Unpacks and packs one weight, in parallel, without the GIL.

        `source_format`: "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k" or "q6_k".
        Raises ValueError for an unknown name, a wrong shape, a wrong number of bytes, a name that is already set, or
        a format other than announced when the matrix is to be held as it is.
        """
    def missing(self) -> list[str]: ...
    def packed_text(self, key: str) -> str:
        """What decides where each byte of a packed file stands and what it means; `key`: what the weights come from."""
    def write_packed(self, key: str, file_number: int) -> str | None:
        """Writes all weights as they stand in memory to an open, empty file, without the GIL. What went wrong, or None.

        Raises ValueError while a weight is missing.
        """
    def map_packed(self, key: str, file: MappedFile) -> str | None:
        """Has all weights stand in the file, which write_packed() made for the same text. Why not, or None.

        REQUIRES: no weight is set.
        """
    @property
    def bytes(self) -> int: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def formats(self) -> dict[str, str]:
        """Of each matrix in memory: "f32", "bf16", or a block format of files, whose values it holds exactly."""

class EngineConfig:
    """Limits and sizes of an engine. The single declaration of these options is cpp/engine/config.h."""

    def __init__(
        self,
        *,
        max_model_len: int,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        kv_cache_memory: int = 536870912,
        kv_cache_dtype: str = "bfloat16",
        swap_space: int = 134217728,
        preemption_mode: str = "auto",
        scheduling_policy: str = "fcfs",
        tenant_weights: Mapping[str, float] = {},
        idle_timeout: float | None = None,
        trace_steps: str | None = None,
        max_queued_requests: int = 1024,
        max_queued_tokens: int = 1048576,
        max_logprobs: int = 20,
        max_choices: int = 128,
        prefix_cache: bool = True,
        prefix_hash_bits: int = 128,
        deterministic: bool = True,
        eos_token_ids: Sequence[int] = (),
    ) -> None: ...
    max_model_len: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory: int
    kv_cache_dtype: str
    swap_space: int
    preemption_mode: str  # "auto", "swap" or "recompute"
    scheduling_policy: str  # "fcfs", "priority" or "fair"
    tenant_weights: dict[str, float]
    idle_timeout: float | None
    trace_steps: str | None
    max_queued_requests: int
    max_queued_tokens: int
    max_logprobs: int
    max_choices: int
    prefix_cache: bool
    prefix_hash_bits: int
    deterministic: bool
    eos_token_ids: list[int]

class MemoryPlan:
    """Bytes by arithmetic, before anything is loaded."""

    weight_formats: dict[str, str]  # as Weights.formats
    weights_bytes: int
    workspace_bytes: int
    kv_cache_bytes: int
    kv_block_bytes: int
    kv_blocks: int
    swap_bytes: int
    swap_blocks: int
    @property
    def total_bytes(self) -> int: ...

def plan_memory(
    spec: ModelSpec,
    *,
    weights_dtype: str,
    config: EngineConfig,
    threads: int,
    sources: Mapping[str, str] = {},
    device: str = "cpu",
) -> MemoryPlan:
    """`weights_dtype` and `sources` as for Weights, `device` as for Engine.

    Raises ValueError with needed, available and the largest max_model_len when the KV budget is too small.
    """

def cuda_unavailable() -> str | None:
    """Why the CUDA backend cannot be used, as the rest of a sentence; None when it can."""

def cuda_memory() -> tuple[int, int]:
    """Bytes of the CUDA device's memory: all, and those that are free now. Raises ValueError without a device."""

def cpu_isas() -> list[str]:
    """Instruction sets that this machine can run, best first."""

def physical_cores() -> int: ...
def core_processors() -> list[int]:
    """One processor of each physical core that this thread may run on."""

class SamplingParams:
    """How the next token is drawn. Unset optionals are off."""

    def __init__(self) -> None: ...
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int | None
    n: int
    logit_bias: dict[int, float]
    allowed_token_ids: list[int]

class StoppingParams:
    """When generation ends. Stop strings are matched by the caller's detokenizer; they are here to be validated."""

    def __init__(self) -> None: ...
    max_tokens: int | None
    min_tokens: int
    stop_token_ids: list[int]
    stop_strings: list[str]
    ignore_eos: bool
    time_limit_s: float | None  # from submission

class OutputOptions:
    """What comes back beside token ids."""

    def __init__(self) -> None: ...
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: bool

class Request:
    """One generation as the core sees it."""

    def __init__(self) -> None: ...
    id: str
    prompt: list[int]
    sampling: SamplingParams
    stopping: StoppingParams
    output: OutputOptions
    cache_salt: str
    bypass_prefix_cache: bool
    priority: int
    tenant: str
    queue_timeout_s: float | None  # this and the next: from submission
    deadline_s: float | None

class TokenLogprob:
    """Log-probability of a token in the model's raw distribution; `top` holds (token id, logprob), likeliest first."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]

class Finish:
    """How one sequence ended: `reason` is "stop", "length", "time_limit" or "aborted".

    `stop_token` is set when reason is "stop".
    """

    reason: str
    stop_token: int | None
    stopped_by_eos: bool

class Usage:
    """What the request cost so far."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int

class Timing:
    """Seconds by the core's monotonic clock."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int

class Output:
    """News of one sequence. `final` marks the last output of the whole request; only it has usage and timing.

    `error` is set instead of `finish` when the request failed; it is then the final output too.
    """

    request: int
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob]
    finish: Finish | None
    error: StatusError | None
    final: bool
    usage: Usage
    timing: Timing

class StateStats:
    """The sequences in one state: in it now, how often one came into it, time spent in it by those that left it."""

    current: int
    entered: int
    seconds: float

class StepTimes:
    """A step: time of the device from its begin to its end, and since the end of the step before; time of the host up
    to the next step, without what it waited for the device.
    """

    device_s: float
    gap_s: float
    host_s: float

class EngineStats:
    """One consistent sample. Counters only grow."""

    healthy: bool
    failure: str
    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_held: int
    kv_blocks_cached: int
    swap_blocks_total: int
    swap_blocks_held: int
    utilization: float  # token slots filled / token slots held
    oldest_wait_s: float
    states: dict[str, StateStats]  # pending, running, swapped, preempted, finished
    steps: int
    prompt_tokens: int
    generation_tokens: int
    recomputed_tokens: int
    preemptions: int
    swap_outs: int
    swap_ins: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    swap_bytes_per_second: float
    step_seconds_per_token: float
    prefix_queries: int
    prefix_hits: int
    copied_prefix_tokens: int
    deadline_drops: int
    seconds_since_progress: float
    requests: dict[str, int]  # by outcome: a finish reason or a status code's name

class Team:
    """Compute threads. Engines that share them have them by turns, a step each."""

    def __init__(self, threads: int, processors: Sequence[int] = ()) -> None:
        """`processors`: where the threads run, one for each, all engine threads on the first; empty: anywhere."""
    @property
    def asking(self) -> int:
        """How many engines have the turn or wait for it, now."""

class Engine:
    """Owns the engine thread. All methods may be called from any thread; none needs the event loop."""

    @overload
    def __init__(
        self, weights: Weights, config: EngineConfig, *, team: Team, isa: str = "", device: str = "cpu"
    ) -> None: ...
    @overload
    def __init__(
        self,
        weights: Weights,
        config: EngineConfig,
        *,
        threads: int,
        isa: str = "",
        processors: Sequence[int] = (),
        device: str = "cpu",
        times_steps: bool = False,
    ) -> None:
        """With a team of its own. `device`: "cpu" or "cuda"; `isa` forces a kernel table of the CPU. `times_steps`: of
        a GPU, for step_times().
        """
    def submit(self, request: Request) -> int:
        """Checks a request and puts it into the inbox, or raises StatusError now. Returns the request's key."""
    def validate(self, request: Request) -> list[tuple[str, str]]:
        """All violations that submit() would report, without submitting."""
    def abort(self, request: int) -> bool:
        """Ends a request; its final output has finish reason "aborted". False when it is not in flight."""
    def stop(self, request: int) -> bool:
        """Ends a request whose text reached a stop string: as abort(), but it counts as "stop"."""
    def abort_id(self, request_id: str) -> bool:
        """The same, by the id that the client chose."""
    def abort_all(self) -> list[str]:
        """Ends everything in flight; the ids of what was."""
    def clear_prefix_cache(self) -> int:
        """Forgets all cached prefixes at the next step, without the GIL; how many blocks became free."""
    def wait_outputs(self, timeout_ms: int) -> list[Output]:
        """Waits, without the GIL, for outputs and takes all of them. An empty list means time-out or shutdown."""
    def stats(self) -> EngineStats: ...
    def step_times(self) -> list[StepTimes]:
        """Of recent steps, oldest first; only where they are measured."""
    @property
    def queued(self) -> int:
        """Requests that were accepted and do not run yet, now: stats() is as old as the last step."""
    def shutdown(self) -> None:
        """Ends all requests as aborted and joins the engine thread. Idempotent."""
    @property
    def plan(self) -> MemoryPlan: ...
    @property
    def device(self) -> str: ...

class SchedulerStats:
    """Counters only grow."""

    running: int
    waiting: int  # in any state that waits
    swapped: int
    preemptions: int
    swap_outs: int
    swap_ins: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    recomputed_tokens: int
    prefix_queries: int
    prefix_hits: int
    copied_tokens: int

class Scheduler:
    """The engine's scheduler without a model, for replay and tests. One thread only.

    What breaks a rule of the scheduler raises RuntimeError; it must not be used after that.
    """

    def __init__(
        self,
        *,
        block_size: int,
        blocks: int,
        swap_blocks: int = 0,
        max_sequences: int,
        max_step_tokens: int,
        prefix_cache: bool = True,
        prefix_hash_bits: int = 128,
        prefix_hash_key: Sequence[int] | None = None,  # two numbers of 64 bits; None: random ones
        once_first: bool = True,  # evict first what was used only once
        preemption_mode: str = "auto",
        scheduling_policy: str = "fcfs",
        tenant_weights: Mapping[str, float] = {},
    ) -> None: ...
    def add(
        self,
        id: int,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
        salt: str = "",
        reads: bool = True,
        fills: bool = True,
        sibling: int | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> None: ...
    def remove(self, id: int) -> bool:
        """Ends a sequence. False when it is not there."""
    def plan(self) -> dict[str, Any]:
        """The next step, with the names of a recorded one: lists of numbers and of tuples, and the token count."""
    def commit(self, tokens: Sequence[int]) -> list[tuple[int, int, int, str | None]]:
        """(sequence, row, token, finish reason) of each token drawn: one token for each range that samples."""
    def audit(self) -> None:
        """Checks every invariant; slow."""
    def clear_prefix_cache(self) -> int:
        """How many blocks became free."""
    def set_costs(self, swap_s_per_block: float, recompute_s_per_token: float) -> None: ...
    def stats(self) -> SchedulerStats: ...
    def state(self, id: int) -> str: ...
    def cached_prompt_count(self, id: int) -> int: ...
    def findable_prompt_tokens(self, id: int) -> int: ...
    def blocks(self, id: int) -> list[int]: ...
    def slots(self) -> tuple[int, int]:
        """Token slots of held blocks: (filled, all)."""
    @property
    def idle(self) -> bool: ...
    @property
    def free_count(self) -> int: ...
    @property
    def cached_count(self) -> int: ...
    @property
    def held_count(self) -> int: ...
    @property
    def swap_held_count(self) -> int: ...

def status_codes() -> Mapping[str, int]:
    """The core's status codes by name, for the table's test."""
