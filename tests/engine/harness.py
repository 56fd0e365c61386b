"""A tiny random model and a loop that runs requests through a real engine."""

import contextlib
import time
from dataclasses import dataclass, field

import numpy as np

from llmsrv import _core

VOCAB = 101
EOS = 2
MAX_LEN = 96

# What Gemma 3 adds to a tiny model: windows and a RoPE of their own in some layers, more norms, scales, another gate.
GEMMA3 = {
    "sliding_window": 21, "windowed_layers": [True, False], "window_rope_theta": 300.0, "attention_scale": 0.2,
    "embedding_scale": 6.9, "gate": "gelu_tanh", "head_norms": True, "post_norms": True,
}  # fmt: skip


def tiny_spec(**changes):
    shape = {
        "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_layers": 2, "num_heads": 6,
        "num_kv_heads": 2, "head_dim": 16, "max_position": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tied_embeddings": True,
    }  # fmt: skip
    return _core.ModelSpec(**(shape | changes))


def tiny_weights(dtype="bfloat16", seed=0, **changes):
    spec = tiny_spec(**changes)
    weights = _core.Weights(spec, dtype=dtype, threads=1)
    generator = np.random.default_rng(seed)
    for name, shape in _core.expected_weights(spec).items():
        scale = 1.0 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1])
        values = generator.normal(loc=1.0 if name.endswith("norm") else 0.0, scale=scale * 0.9, size=shape)
        weights.set(name, "f32", list(shape), values.astype(np.float32))
    return weights


def weights_with_a_nan_row(**changes):
    """Token 50's embedding is NaN, and the head is another matrix: only a row that sees the token is hurt."""
    spec = tiny_spec(tied_embeddings=False, **changes)
    weights = _core.Weights(spec, dtype="float32", threads=1)
    generator = np.random.default_rng(0)
    for name, shape in _core.expected_weights(spec).items():
        values = generator.normal(scale=1.0 / np.sqrt(shape[-1]), size=shape).astype(np.float32)
        if name == "embed":
            values[50] = np.nan
        weights.set(name, "f32", list(shape), values)
    return weights


def config(**options):
    return _core.EngineConfig(
        **({"max_model_len": MAX_LEN, "kv_cache_memory": 1 << 20, "max_num_seqs": 8, "max_num_batched_tokens": 64,
            "swap_space": 1 << 20, "eos_token_ids": [EOS]} | options)
    )  # fmt: skip


@contextlib.contextmanager
def engine(weights, threads=2, team=None, **options):
    running = _core.Engine(weights, config(**options), team=team or _core.Team(threads))
    try:
        yield running
    finally:
        running.shutdown()


def pool_of(weights, blocks, block_size=8, kv_cache_dtype="bfloat16"):
    """Options for a KV pool of exactly `blocks` blocks."""
    smallest = _core.EngineConfig(
        max_model_len=block_size, max_num_seqs=1, max_num_batched_tokens=1, block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    plan = _core.plan_memory(weights.spec, weights_dtype="bfloat16", config=smallest, threads=1)
    return {"kv_cache_memory": plan.kv_block_bytes * blocks, "block_size": block_size, "kv_cache_dtype": kv_cache_dtype}


def prompt(seed, length):
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCAB, length)]


def request(id, tokens, *, sampling=None, stopping=None, output=None):
    made = _core.Request()
    made.id, made.prompt = id, tokens
    for name, fields in (("sampling", sampling), ("stopping", stopping), ("output", output)):
        part = getattr(made, name)
        for key, value in (fields or {}).items():
            setattr(part, key, value)
        setattr(made, name, part)
    return made


@dataclass
class Result:
    """All that came of one request, by choice where it differs."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[tuple]] = field(default_factory=dict)
    prompt_logprobs: list[tuple] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    error: object = None
    finals: int = 0
    preemptions: int = 0
    usage: tuple = ()
    cached: int = 0  # prompt tokens from the prefix cache


def exact(logprob):
    """Comparable bit by bit."""
    return (logprob.token_id, float(logprob.logprob).hex(), logprob.rank, tuple((t, v.hex()) for t, v in logprob.top))


def absorb(results, outputs):
    for output in outputs:
        result = results[output.request]
        result.token_ids.setdefault(output.index, []).extend(output.token_ids)
        result.logprobs.setdefault(output.index, []).extend(exact(logprob) for logprob in output.logprobs)
        result.prompt_logprobs.extend(exact(logprob) for logprob in output.prompt_logprobs)
        if output.finish is not None:
            assert output.index not in result.reasons, "a choice ended twice"
            result.reasons[output.index] = output.finish.reason
        if output.error is not None:
            result.error = output.error
        if output.final:
            result.finals += 1
            result.preemptions = output.timing.preemptions
            result.usage = (output.usage.prompt_tokens, output.usage.completion_tokens)
            result.cached = output.usage.cached_prompt_tokens


def collect(running, keys, timeout_s=60):
    """Takes outputs until each request had its final one. Result per key."""
    results = {key: Result() for key in keys}
    deadline = time.monotonic() + timeout_s
    while not all(result.finals for result in results.values()):
        assert time.monotonic() < deadline, "requests are left without a final output"
        absorb(results, running.wait_outputs(100))
    return results


def run(running, requests):
    keys = [running.submit(each) for each in requests]
    results = collect(running, keys)
    return [results[key] for key in keys]
