"""The engine with made-up weights of real shapes: step time of decoding, tokens per second of prompts.

Definitions: a step's time is the batch over rates.steady_rate of its tokens, while the whole batch runs, at contexts of
1k tokens; the prompts were read before and come from the prefix cache. Its floor: the weights that a step reads, and
the batch's keys and values, at this run's copy bandwidth; the share is floor / step. The gap between steps: of the
device's clock, from the end of a step to the begin of the next one, as a share of the time from begin to begin. Host
time: of the engine's thread from begin to begin, without what it waits for the device; both are medians of the same
steps. Processor time: of all threads, waiting included, over the steps. Prompts: one of 2k tokens, its length over the
time to its first token; with `deterministic` off by cuBLASLt, where that is found.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, replace

import numpy as np
from case_runner import module
from rates import steady_rate

MODELS = {
    "Llama-3.1-8B": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_layers": 32, "num_heads": 32,
        "num_kv_heads": 8, "head_dim": 128, "max_position": 8192, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    },
    "Qwen2.5-7B": {
        "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_layers": 28, "num_heads": 28,
        "num_kv_heads": 4, "head_dim": 128, "max_position": 8192, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "qkv_bias": True,
    },
}  # fmt: skip
TOY = {
    "a toy": {
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_layers": 1, "num_heads": 2,
        "num_kv_heads": 1, "head_dim": 64, "max_position": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    }
}  # fmt: skip
SPARE_BYTES = 6 << 30  # of the device, beside weights and cache
NOISE_COUNT = 1 << 22
WANTED_GAP = 0.03
WANTED = {("Llama-3.1-8B", 1): "70% of the floor", ("Llama-3.1-8B", 8): "4.5 ms"}


@dataclass(frozen=True)
class Load:
    """What is run through a model."""

    batches: list[int]
    context: int  # tokens, at the end
    output: int  # of these
    prompt: int  # tokens of the prompt whose reading is measured


REAL_LOAD, TOY_LOAD = Load([1, 8, 32, 64, 128, 256], 1024, 32, 2048), Load([1, 3], 48, 8, 64)


def whole_model(job):
    core = module("_core")
    for name, shape in (TOY if job.device.emulated else MODELS).items():
        if not job.has(40, name):
            continue
        spec = core.ModelSpec(**shape)
        try:
            measure(job, core, name, spec)
        except NoBackendError as error:
            job.not_run(name, error)


class NoBackendError(Exception):
    """Why the engine cannot run on the device."""


def synthetic_weights(core, spec):
    """Weights of ordinary size: the residual stream stays finite, and no product meets zeros."""
    weights = core.Weights(spec, dtype="bfloat16", threads=core.physical_cores())
    shapes = core.expected_weights(spec)
    largest = max(int(np.prod(shape)) for shape in shapes.values())
    rng = np.random.default_rng(1)
    noise = (0.02 * rng.standard_normal(min(NOISE_COUNT, largest), dtype=np.float32)).view(np.uint32) >> 16
    noise = np.resize(noise.astype(np.uint16), largest)
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        if len(shape) == 1:
            values = np.zeros(count, np.float32) if name.endswith("bias") else np.ones(count, np.float32)
            weights.set(name, "f32", shape, values)
        else:
            weights.set(name, "bf16", shape, noise[:count])
    return weights


def open_engine(job, core, weights, load, *, deterministic=True):
    from in_process import BLOCK_SIZE

    batch, longest = max(load.batches), max(load.context, load.prompt)
    blocks = batch * (-(-load.context // BLOCK_SIZE) + 1) + 4 * -(-longest // BLOCK_SIZE)
    config = core.EngineConfig(
        max_model_len=longest + 1, max_num_seqs=batch, max_num_batched_tokens=max(2048, batch),
        block_size=BLOCK_SIZE, kv_cache_memory=blocks * BLOCK_SIZE * token_bytes(weights.spec),
        deterministic=deterministic,
    )  # fmt: skip
    if job.device.emulated:
        plugin = job.device.module.plugin_table()
        return module("_testing").cuda_engine(weights, config, plugin, dtype="bfloat16", times_steps=True)
    try:
        return core.Engine(weights, config, threads=core.physical_cores(), device="cuda", times_steps=True)
    except ValueError as error:
        raise NoBackendError(str(error)) from error


def token_bytes(spec):
    return 2 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim


def read_bytes(weights):
    """What a step reads of the weights: all but the table of embeddings, of which it takes rows."""
    spec = weights.spec
    return weights.bytes - (0 if spec.tied_embeddings else 2 * spec.vocab_size * spec.hidden_size)


def measure(job, core, name, spec):
    load = TOY_LOAD if job.device.emulated else REAL_LOAD
    weights = synthetic_weights(core, spec)
    room = job.device.description.get("memory_bytes", 1 << 40) - weights.bytes - SPARE_BYTES
    fitting = [batch for batch in load.batches if batch * (load.context + 16) * token_bytes(spec) <= room]
    for batch in load.batches[len(fitting) :]:
        job.not_run(f"{name}, batch {batch}", "too little memory on the device")
    if not fitting:
        return
    engine = open_engine(job, core, weights, replace(load, batches=fitting))
    try:
        rng = np.random.default_rng(2)
        rate = prompt_rate(job, engine, name, rng, (load.prompt, spec.vocab_size))
        prompts = rng.integers(0, spec.vocab_size, (fitting[-1], load.context - load.output)).tolist()
        for batch in fitting:
            # Most of the time goes into reading the prompts, of which the batch before has left some in the cache.
            if job.has(2 + batch * load.context / rate, f"{name}, batch {batch}"):
                decode_row(job, engine, weights, name, (prompts[:batch], load.output))
    finally:
        engine.shutdown()
    del engine
    if job.has(15, f"{name}, not deterministic"):
        engine = open_engine(job, core, weights, replace(load, batches=[1]), deterministic=False)
        try:
            prompt_rate(job, engine, f"{name}, not deterministic", rng, (load.prompt, spec.vocab_size))
        finally:
            engine.shutdown()


def arrivals(engine, prompts, count):
    """(time, {request: new tokens}) of every batch of outputs, until `count` tokens of each have come."""
    from in_process import batches, make_request

    keys = [engine.submit(make_request(str(i), prompt, count)) for i, prompt in enumerate(prompts)]
    for moment, outputs in batches(engine, keys):
        yield moment, {output.request: len(output.token_ids) for output in outputs if output.token_ids}


def prompt_rate(job, engine, name, rng, shape):
    """Tokens per second of one prompt, none of it cached; the first is a warm-up. shape: (tokens, vocabulary)."""
    length, vocab_size = shape
    times = []
    for prompt in rng.integers(0, vocab_size, (4, length)).tolist():
        begin = time.perf_counter()
        *_, (end, _) = arrivals(engine, [prompt], 1)
        times.append(end - begin)
    rate = length / statistics.median(times[1:])
    job.row(f"{name}, prompt of {length}", f"{rate:9.0f} tokens/s", tokens=length, tokens_per_s=rate)
    return rate


def decode_row(job, engine, weights, name, load):
    prompts, output = load
    spec, batch = weights.spec, len(prompts)
    what = f"{name}, batch {batch}"
    for _ in arrivals(engine, prompts, 1):
        pass
    before = os.times()
    arrived = list(arrivals(engine, prompts, output))
    after = os.times()
    gap, host_ms, steps = between_steps(engine, output)
    if job.device.emulated:  # a toy may be done before anybody looks
        tokens = sum(sum(new.values()) for _, new in arrived)
        job.row(f"{what}, {steps} gaps and host times", "", batch=batch, tokens=tokens, timed_steps=steps)
        return
    step = batch / steady_rate(arrived, batch, output)
    processor_ms = 1e3 * (after.user + after.system - before.user - before.system) / output
    context = len(prompts[0]) + output / 2
    floor_bytes = read_bytes(weights) + batch * context * token_bytes(spec)
    gb = floor_bytes / step / 1e9
    beside, share = job.share(gb, "gb_per_s")
    if (wanted := WANTED.get((name, batch))) is not None:
        beside += f" (wanted {wanted})"
    beside += f"   gap {gap:.1%} (wanted {WANTED_GAP:.0%})   host {host_ms:.2f} ms, processors {processor_ms:.2f} ms"
    job.row(
        what, f"{step * 1e3:9.3f} ms {batch / step:8.0f} tokens/s", beside,
        batch=batch, context=context, ms=step * 1e3, tokens_per_s=batch / step, gb_per_s=gb, share=share,
        gap_share=gap, host_ms=host_ms, processor_ms=processor_ms,
    )  # fmt: skip


def between_steps(engine, output):
    """(gap as a share of a step, host milliseconds per step, steps) of those that just ran: `output` tokens of each."""
    times = engine.step_times()[-output // 2 :]  # the first half starts the batch
    names = ("gap_s", "device_s", "host_s")
    gap, device, host = (statistics.median(getattr(each, name) for each in times) for name in names)
    return gap / (gap + device), 1e3 * host, len(times)
