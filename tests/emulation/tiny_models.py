"""Tiny random models whose shapes the CUDA kernels take, and runs of them on the CPU and on the emulated device."""

from __future__ import annotations

import contextlib

import harness
import numpy as np

from llmsrv import _core, _emulated, _testing

VOCAB = harness.VOCAB
# What sets the architectures apart, as their checkpoints have it.
LLAMA = {"rope_scaling": _core.RopeScaling(kind="llama3", factor=8.0, original_max_position=32)}
TENSOR_CORES = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64}  # a head size that their kernels have
QWEN2 = {"qkv_bias": True, "tied_embeddings": True, "rope_theta": 1e6}
GEMMA3 = harness.GEMMA3


def tiny_weights(dtype="float32", seed=0, **changes):
    shape = {
        "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "tied_embeddings": False,
    }  # fmt: skip
    return harness.tiny_weights(dtype, seed, **(shape | changes))


@contextlib.contextmanager
def emulated_device(order="late", **options):
    """The table of an idle device with these options."""
    _emulated.set_order("forward")
    _emulated.set_stream_order(order)
    _emulated.leave_out_wait("")
    _emulated.set_device(**options)
    try:
        yield _emulated.plugin_table()
    finally:
        _emulated.set_stream_order("late")
        _emulated.leave_out_wait("")
        _emulated.set_device()


def engine_config(**options):
    return _core.EngineConfig(
        **({"max_model_len": harness.MAX_LEN, "block_size": 8, "kv_cache_memory": 1 << 20, "max_num_seqs": 4,
            "max_num_batched_tokens": 24, "kv_cache_dtype": "float32", "swap_space": 1 << 20} | options)
    )  # fmt: skip


def tight_pool(weights, blocks=13):
    """A cache that cannot hold four requests to their ends."""
    plan = _core.plan_memory(weights.spec, weights_dtype="float32", config=engine_config(), threads=1)
    return {
        "preemption_mode": "swap", "prefix_cache": False, "max_model_len": blocks * 8,
        "kv_cache_memory": plan.kv_block_bytes * blocks,
    }  # fmt: skip


@contextlib.contextmanager
def stopped_at_end(engine):
    try:
        yield engine
    finally:
        engine.shutdown()


def cpu_engine(weights, **options):
    return stopped_at_end(_core.Engine(weights, engine_config(**options), threads=1))


def cuda_engine(weights, plugin, dtype="float32", graphs=True, times_steps=False, library_rows=None, **options):
    """`options` are the engine's, the others the backend's."""
    backend = {"dtype": dtype, "graphs": graphs, "times_steps": times_steps, "library_rows": library_rows}
    return stopped_at_end(_testing.cuda_engine(weights, engine_config(**options), plugin, **backend))


def greedy_requests(count, length, tokens=16, **output):
    """Requests of different prompts and lengths, whose logits can be read off their log-probabilities."""
    return [
        harness.request(
            f"r{i}", harness.prompt(i, length + 5 * i), sampling={"temperature": 0.0},
            stopping={"max_tokens": tokens, "ignore_eos": True},
            output={"logprobs": True, "top_logprobs": 20} | output,
        )
        for i in range(count)
    ]  # fmt: skip


def logits_of(logprobs):
    """Ids and log-probabilities of the likeliest tokens of each step."""
    tops = [dict(top) for _, _, _, top in logprobs]
    return [{token: float.fromhex(value) for token, value in top.items()} for top in tops]


def furthest(ours, theirs):
    """The largest difference of two runs' log-probabilities."""
    return max(
        np.max(np.abs([a[token] - b[token] for token in a.keys() & b.keys()]))
        for a, b in zip(logits_of(ours), logits_of(theirs), strict=True)
    )
