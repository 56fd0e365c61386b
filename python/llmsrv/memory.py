"""The memory plan (promise P8): what an engine will take, by arithmetic, before anything is loaded.

Nothing here touches weights: a model's headers are enough.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmsrv.config import EngineOptions, write_size
from llmsrv.team import choose_team

if TYPE_CHECKING:
    from llmsrv import _core

DEFAULT_KV_CACHE_BYTES = 512 << 20
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
# The options that go to the core under the same name.
CORE_FIELDS = (
    "max_model_len",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory",
    "kv_cache_dtype",
    "swap_space",
    "preemption_mode",
    "scheduling_policy",
    "tenant_weights",
    "idle_timeout",
    "trace_steps",
    "max_queued_requests",
    "max_queued_tokens",
    "max_logprobs",
    "max_choices",
    "prefix_cache",
    "prefix_hash_bits",
    "deterministic",
)
_PLAIN_TYPES = {"bf16": "bfloat16", "f32": "float32"}  # as the options have them
_PROBE_BYTES = 1 << 40  # a KV cache that every model fits into
_PROCESS_NOTE = "measured before loading"
_USUAL_TOKENS = 1024  # of a sequence, when the plan says how many fit
_CGROUPS = (  # limit, used, statistics and their count of pages that could be dropped; version 2, then version 1
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


class PlannedModel(Protocol):
    """What a plan needs to know of a model."""

    @property
    def spec(self) -> "_core.ModelSpec":
        """The model as data."""

    @property
    def weight_sources(self) -> Mapping[str, str]:
        """Formats of the weights in the file, by the core's names."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One of the models of a process, and what it will take. `notes`: what was chosen that nobody may expect."""

    name: str
    model: PlannedModel
    config: EngineOptions
    plan: "_core.MemoryPlan"
    notes: Sequence[str] = ()


@contextmanager
def blamed(name: str | None) -> Iterator[None]:
    """Puts the model's name before what is wrong with it; None where there is no other model."""
    try:
        yield
    except (ValueError, OSError) as error:
        if name is None:
            raise
        kind = ValueError if isinstance(error, ValueError) else OSError
        raise kind(f"model {name}: {error}") from None


def plan_together(models: Mapping[str, tuple[PlannedModel, EngineOptions]], available: int) -> list[Planned]:
    """A plan for each model, by name. If several do not fit into the `available` bytes as they would alone, the KV
    caches whose size is left open get equal shares of what the rest leaves. On a GPU that is the memory which
    gpu_memory_utilization allows, whatever is available.

    Raises ValueError for what does not fit a model. REQUIRES: one device and one gpu_memory_utilization
    """
    planned = []
    for name, (model, options) in models.items():
        with blamed(name if len(models) > 1 else None):
            planned.append(_planned(name, model, options))
    if len(planned) == 1:
        return planned
    return _with_shares(planned, models, _usable(planned[0].config) if _is_on_gpu(planned[0]) else available)


def _with_shares(
    planned: list[Planned], models: Mapping[str, tuple[PlannedModel, EngineOptions]], available: int
) -> list[Planned]:
    """The same plans with shares of what is left, where these help."""
    left_open = [i for i, (_, options) in enumerate(models.values()) if options.kv_cache_memory is None]
    over = sum(_on_device(each) for each in planned) - available
    left = sum(planned[i].plan.kv_cache_bytes for i in left_open) - over
    if over <= 0 or left <= 0:
        return planned
    shared = list(planned)
    left_open.sort(key=lambda i: planned[i].plan.kv_cache_bytes)
    for rank, i in enumerate(left_open):
        share = min(planned[i].plan.kv_cache_bytes, left // (len(left_open) - rank))
        left -= share
        model, options = models[planned[i].name]
        try:
            shared[i] = _planned(planned[i].name, model, replace(options, kv_cache_memory=max(share, 1)))
        except ValueError:  # its share holds no sequence: the plans as they were say what is missing
            return planned
    return shared


def _planned(name: str, model: PlannedModel, options: EngineOptions) -> Planned:
    notes: list[str] = []
    config = fit(model, options, notes.append)
    return Planned(name=name, model=model, config=config, plan=plan_memory(model, config), notes=notes)


def _is_on_gpu(planned: Planned) -> bool:
    return planned.config.device == "cuda"


def _on_device(planned: Planned) -> int:
    """Bytes of the device's memory; the swap space is the host's."""
    return planned.plan.total_bytes - (planned.plan.swap_bytes if _is_on_gpu(planned) else 0)


def _needed(planned: Sequence[Planned]) -> int:
    return sum(each.plan.total_bytes for each in planned)


def fit(model: PlannedModel, options: EngineOptions, report: Callable[[str], None]) -> EngineOptions:
    """Chooses what was left open of max_model_len, kv_cache_memory and threads.

    The context is the model's own unless the KV cache cannot hold one such sequence; the cache is 512 MiB, or more
    where the chosen context needs it and the machine has it; on a GPU it is what gpu_memory_utilization leaves. What
    still does not fit is refused by the core with the figures.
    """
    options = replace(options, threads=choose_team(options).threads, reserve_cpus=0)
    own, block_size = model.spec.max_position, options.block_size
    # Any budget that holds one block does: the size of a block depends on the model and the type alone.
    block_bytes = plan_memory(model, replace(options, max_model_len=2, kv_cache_memory=_PROBE_BYTES)).kv_block_bytes
    memory, max_len = options.kv_cache_memory, options.max_model_len
    if memory is None and options.device == "cuda":
        memory = _device_kv_bytes(model, options)
    if max_len is None:
        fitting = (memory or DEFAULT_KV_CACHE_BYTES) // block_bytes * block_size
        max_len = max(min(own, fitting), 2)
        if max_len < own:
            report(f"max_model_len is {max_len}, not the model's {own}: more does not fit into the KV cache")
    if memory is None:
        needed = -(-max_len // block_size) * block_bytes
        memory = DEFAULT_KV_CACHE_BYTES
        if memory < needed <= available_bytes():
            memory = needed
    return replace(options, max_model_len=max_len, kv_cache_memory=memory)


def plan_memory(model: PlannedModel, config: EngineOptions) -> "_core.MemoryPlan":
    """The core's plan. Raises ValueError for what does not fit the model. REQUIRES: config comes from fit()."""
    from llmsrv import _core

    return _core.plan_memory(
        model.spec,
        weights_dtype=config.weights_dtype,
        sources=model.weight_sources,
        config=core_config(config, ()),
        threads=config.threads or 1,
        device="cuda" if config.device == "cuda" else "cpu",
    )


def device_memory() -> tuple[int, int]:
    """Bytes of the GPU's memory: all, and those that are free now."""
    from llmsrv import _core

    return _core.cuda_memory()


def check_device_plans(plans: Sequence["_core.MemoryPlan"], *, free: int, host: int) -> None:
    """Raises ValueError when the plans take more than the GPU has free, or their swap space more than the host has."""
    swap = sum(plan.swap_bytes for plan in plans)
    needed = sum(plan.total_bytes for plan in plans) - swap
    if needed > free:
        caches = sum(plan.kv_cache_bytes for plan in plans)
        who = "the plan needs" if len(plans) == 1 else f"the plans of {len(plans)} models need"
        raise ValueError(
            f"not enough memory on the GPU: {who} {_mebibytes(needed)}, {_mebibytes(caches)} of it for keys and "
            f"values; free are {_mebibytes(free)}"
        )
    if swap > host:
        raise ValueError(
            f"not enough memory: the swap space needs {_mebibytes(swap)}, available are {_mebibytes(host)}"
        )


def core_config(config: EngineOptions, eos_token_ids: Sequence[int]) -> "_core.EngineConfig":
    """The core's form of the options. REQUIRES: config comes from fit()."""
    from llmsrv import _core

    own = {each: getattr(config, each) for each in CORE_FIELDS}
    own["tenant_weights"] = dict(config.tenant_weights)
    return _core.EngineConfig(**own, eos_token_ids=list(eos_token_ids))


def check_plan(model: PlannedModel, plan: "_core.MemoryPlan", config: EngineOptions, available: int) -> None:
    """Raises ValueError when the plan takes more than the `available` bytes; it says what would fit instead."""
    if plan.total_bytes <= available:
        return
    message = (
        f"not enough memory: the plan needs {_mebibytes(plan.total_bytes)}, available are {_mebibytes(available)}; "
    )
    largest = _largest_that_fits(model, config, available)
    if largest is None:
        rest = plan.total_bytes - plan.kv_cache_bytes
        raise ValueError(
            f"{message}no KV cache fits, the rest alone needs {_mebibytes(rest)}"
            f" (swap space {_mebibytes(plan.swap_bytes)})"
        )
    max_len, memory = largest
    raise ValueError(
        f"{message}the largest kv_cache_memory that fits is {write_size(memory)}, the largest max_model_len {max_len}"
    )


def check_plans(planned: Sequence[Planned], available: int) -> None:
    """The same for all models of a process together."""
    needed = _needed(planned)
    if len(planned) == 1:
        check_plan(planned[0].model, planned[0].plan, planned[0].config, available)
    elif needed > available:
        caches = sum(each.plan.kv_cache_bytes for each in planned)
        each_may = max(available - (needed - caches), 0) // len(planned) >> 20 << 20
        listed = ", ".join(f"{each.name} {_mebibytes(each.plan.total_bytes)}" for each in planned)
        fits = all(each_may >= _smallest_cache(each) for each in planned)
        raise ValueError(
            f"not enough memory: the plans of {len(planned)} models need {_mebibytes(needed)} ({listed}), available "
            f"are {_mebibytes(available)}; without their KV caches they need {_mebibytes(needed - caches)}, "
            + (f"so that a kv_cache_memory of {write_size(each_may)} fits" if fits else "and no KV caches fit")
        )


def _smallest_cache(planned: Planned) -> int:
    """Bytes for one sequence of max_model_len."""
    return -(-(planned.config.max_model_len or 0) // planned.config.block_size) * planned.plan.kv_block_bytes


def matrix_formats(plan: "_core.MemoryPlan") -> str:
    """The formats of the weight matrices, those of most matrices first: "bfloat16", "q4_k, q6_k"."""
    by_count = [name for name, _ in Counter(plan.weight_formats.values()).most_common()]
    return ", ".join(_PLAIN_TYPES.get(name, name) for name in by_count)


def describe_plan(plan: "_core.MemoryPlan", config: EngineOptions, *, process_bytes: int | None) -> str:
    """The memory plan as printed at start-up. `process_bytes`: what this process holds before anything is loaded; None
    where that stands elsewhere.
    """
    token_bytes = plan.kv_block_bytes / config.block_size
    rows = [
        ("weights", plan.weights_bytes, f"{matrix_formats(plan)}; float32 norms"),
        ("workspace", plan.workspace_bytes, f"{config.max_num_batched_tokens} tokens per step"),
        (
            "KV cache",
            plan.kv_cache_bytes,
            f"{plan.kv_blocks} blocks of {config.block_size} tokens, {token_bytes:.0f} B/token",
        ),
        ("swap", plan.swap_bytes, f"{plan.swap_blocks} blocks, preemption {config.preemption_mode}"),
        *([] if process_bytes is None else [("process", process_bytes, _PROCESS_NOTE)]),
        ("total", plan.total_bytes + (process_bytes or 0), ""),
    ]
    return "\n".join(["memory plan:", *_table(rows)])


def describe_sum(planned: Sequence[Planned], *, process_bytes: int) -> str:
    """What all models take together."""
    rows = [(each.name, each.plan.total_bytes, "") for each in planned]
    rows += [("process", process_bytes, _PROCESS_NOTE), ("total", _needed(planned) + process_bytes, "")]
    return "\n".join([f"memory plan of {len(planned)} models:", *_table(rows)])


def _table(rows: Sequence[tuple[str, int, str]]) -> list[str]:
    width = max(10, *(len(label) for label, _, _ in rows))
    return [f"  {label:<{width}} {size / (1 << 20):9.1f} MiB  {note}".rstrip() for label, size, note in rows]


def describe_room(plan: "_core.MemoryPlan", config: EngineOptions) -> str:
    """How many sequences the KV cache holds at once. REQUIRES: config comes from fit()."""
    max_len = config.max_model_len or 0
    lengths = {max_len: f"max_model_len {max_len:,}", _USUAL_TOKENS: f"{_USUAL_TOKENS:,} tokens"}
    room = [
        f"{plan.kv_blocks // -(-length // config.block_size)} of {text}"
        for length, text in lengths.items()
        if length <= max_len
    ]
    return f"sequences that fit at once: {', '.join(room)} (max_num_seqs is {config.max_num_seqs})"


def resident_bytes() -> int:
    """Memory that this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Memory that the machine, or the container around this process, could give without swapping."""
    return min([_number_after("MemAvailable:", Path("/proc/meminfo")) << 10, *_left_in_container()])


def _usable(options: EngineOptions) -> int:
    """Bytes of the GPU that gpu_memory_utilization allows and that are free."""
    total, free = device_memory()
    return min(int(total * (options.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION)), free)


def _device_kv_bytes(model: PlannedModel, options: EngineOptions) -> int:
    """What gpu_memory_utilization leaves for the KV cache beside weights and workspace; at least a byte."""
    longest = options.max_model_len or model.spec.max_position
    plan = plan_memory(model, replace(options, max_model_len=longest, kv_cache_memory=_PROBE_BYTES))
    return max(_usable(options) - plan.weights_bytes - plan.workspace_bytes, 1)


def _largest_that_fits(model: PlannedModel, config: EngineOptions, available: int) -> tuple[int, int] | None:
    """The largest max_model_len, at most the config's, and the largest kv_cache_memory beside it."""
    block_size, longest = config.block_size, config.max_model_len or 2

    def free_for_kv(blocks: int) -> tuple[int, int]:
        """Bytes left for a KV cache when max_model_len is so many blocks; bytes of one block."""
        length = min(blocks * block_size, longest)
        plan = plan_memory(model, replace(config, max_model_len=length, kv_cache_memory=_PROBE_BYTES))
        return available - (plan.total_bytes - plan.kv_cache_bytes), plan.kv_block_bytes

    def too_long(blocks: int) -> bool:
        free, block_bytes = free_for_kv(blocks)
        return blocks * block_bytes > free

    blocks = bisect_left(range(1, -(-longest // block_size) + 1), True, key=too_long)
    if blocks == 0:
        return None
    free, block_bytes = free_for_kv(blocks)
    return min(blocks * block_size, longest), free // block_bytes * block_bytes


def _left_in_container(root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    for limit, used, statistics, droppable in _CGROUPS:
        try:
            allowed = (root / limit).read_text(encoding="ascii").strip()
            if allowed != "max":
                taken = int((root / used).read_text(encoding="ascii")) - _number_after(droppable, root / statistics)
                yield max(int(allowed) - taken, 0)
        except FileNotFoundError:
            continue


def _number_after(name: str, path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    raise OSError(f"{path} has no {name}")


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
