"""What the benchmarks of the engine share: requests to a `_core.Engine` in this process, and its outputs."""

from __future__ import annotations

import time

import numpy as np

from llmsrv import _core

BLOCK_SIZE = 16


def open_weights(model, dtype, threads):
    """(weights, size of the vocabulary)"""
    from llmsrv.weights.fetch import resolve_model
    from llmsrv.weights.load import inspect_model, load_weights

    files = inspect_model(resolve_model(model))
    return load_weights(files, dtype=dtype, threads=threads), files.spec.vocab_size


def make_engine(weights, threads, batch, context):
    """An engine whose KV cache holds `batch` sequences of `context` tokens."""
    spec = weights.spec
    keys_and_values_bytes = 2 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim  # bfloat16
    blocks = batch * (-(-context // BLOCK_SIZE) + 1)
    config = _core.EngineConfig(
        max_model_len=context,
        max_num_seqs=batch,
        max_num_batched_tokens=max(512, batch),
        block_size=BLOCK_SIZE,
        kv_cache_memory=blocks * BLOCK_SIZE * keys_and_values_bytes,
    )
    return _core.Engine(weights, config, threads=threads)


def make_request(name, prompt, max_tokens):
    request = _core.Request()
    request.id, request.prompt = name, prompt
    sampling, stopping = request.sampling, request.stopping
    sampling.temperature = 0.0
    stopping.max_tokens, stopping.ignore_eos = max_tokens, True
    request.sampling, request.stopping = sampling, stopping
    return request


def random_prompts(generator, count, length, vocab_size):
    return [random_prompt(generator, length, vocab_size) for _ in range(count)]


def random_prompt(generator: np.random.Generator, length, vocab_size):
    return generator.integers(0, vocab_size, length).tolist()


def batches(engine, keys):
    """(time, outputs) of every batch that is taken from the engine, until all requests are done."""
    left = set(keys)
    while left:
        outputs = engine.wait_outputs(1000)
        if outputs:
            yield time.perf_counter(), outputs
        left -= {output.request for output in outputs if output.final}
