"""Whole models on the emulated device against the CPU: chunks, decoding, swapping, and no wait too few."""

from __future__ import annotations

import re
import sys

import harness
import numpy as np
import pytest
import tiny_models
from tiny_models import (
    TENSOR_CORES,
    cpu_engine,
    cuda_engine,
    emulated_device,
    furthest,
    greedy_requests,
    tight_pool,
    tiny_weights,
)
from waits import exit_code_of, waits_of

from llmsrv import _core, _emulated, _testing

MODELS = {"llama": tiny_models.LLAMA, "qwen2": tiny_models.QWEN2, "gemma3": tiny_models.GEMMA3}


@pytest.mark.parametrize("model", MODELS)
def test_logits_of_a_whole_model_are_those_of_the_cpu(model):
    weights = tiny_weights(**MODELS[model])
    tokens = harness.prompt(7, 45)
    expected = _testing.forward_logits(weights, tokens, chunk=20)[-5:]
    with emulated_device() as plugin:
        actual = _testing.cuda_last_logits(weights, tokens, plugin, chunk=20)
    assert np.abs(actual - expected).max() < 1e-4


@pytest.mark.parametrize(("model", "order"), [("llama", "late"), ("qwen2", "others first")])
def test_chunks_decoding_and_swapping_give_the_tokens_of_the_cpu(model, order):
    weights = tiny_weights(**MODELS[model])
    requests = greedy_requests(4, 25)
    with cpu_engine(weights) as engine:
        expected = harness.run(engine, requests)
    with emulated_device(order) as plugin, cuda_engine(weights, plugin, **tight_pool(weights)) as engine:
        actual = harness.run(engine, requests)
        stats = engine.stats()
    assert stats.swap_outs > 0
    assert stats.swap_ins > 0
    assert stats.recomputed_tokens == 0
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.error is None
        assert ours.finals == 1
        assert ours.token_ids == theirs.token_ids
        assert len(ours.token_ids[0]) == 16
        assert furthest(ours.logprobs[0], theirs.logprobs[0]) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_is_the_same_alone_and_among_others(dtype):
    weights = tiny_weights(dtype, **tiny_models.LLAMA, **TENSOR_CORES)
    options = {"dtype": dtype, "kv_cache_dtype": dtype}
    requests = greedy_requests(3, 20, tokens=6)
    with emulated_device() as plugin:
        with cuda_engine(weights, plugin, max_num_batched_tokens=16, **options) as engine:
            together = harness.run(engine, requests)
        for request, result in zip(requests, together, strict=True):
            with cuda_engine(weights, plugin, max_num_batched_tokens=64, **options) as engine:
                alone = harness.run(engine, [request])[0]
            assert (alone.token_ids, alone.logprobs) == (result.token_ids, result.logprobs)


def test_graphs_change_nothing():
    weights = tiny_weights(**tiny_models.QWEN2)
    requests = greedy_requests(3, 20, tokens=12)
    results, launched = [], []
    for graphs in (False, True):
        with emulated_device() as plugin, cuda_engine(weights, plugin, graphs=graphs) as engine:
            before = _emulated.device_counts()["graph_launches"]
            results.append([(each.token_ids, each.logprobs) for each in harness.run(engine, requests)])
            launched.append(_emulated.device_counts()["graph_launches"] - before)
    assert results[0] == results[1]
    assert launched[0] == 0
    assert launched[1] > 0


def test_a_step_waits_once_and_takes_no_memory():
    weights = tiny_weights()
    with emulated_device() as plugin, cuda_engine(weights, plugin, prefix_cache=False) as engine:
        harness.run(engine, greedy_requests(1, 8, tokens=2))
        before, steps = _emulated.device_counts(), engine.stats().steps
        harness.run(engine, greedy_requests(2, 8, tokens=10))
        after, steps = _emulated.device_counts(), engine.stats().steps - steps
    assert after["allocations"] == before["allocations"]
    assert after["synchronizations"] - before["synchronizations"] == steps > 8


@pytest.mark.parametrize("dtype", ["int4-g64", "int4-g128", "int8-g128"])
def test_weights_in_larger_groups_are_multiplied(dtype):
    """The CPU rounds activations to 8 bits, the device in float32 mode does not."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32}
    weights = tiny_weights(dtype, num_layers=1, **sizes)
    tokens = harness.prompt(7, 9)
    expected = _testing.forward_logits(weights, tokens, chunk=9)
    with emulated_device() as plugin:
        actual = _testing.cuda_last_logits(weights, tokens, plugin, chunk=9)
    assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize("graphs", [False, True])
def test_steps_are_timed_by_the_device_and_by_the_host(graphs):
    weights = tiny_weights()
    options = {"prefix_cache": False, "times_steps": True, "graphs": graphs}
    with emulated_device() as plugin, cuda_engine(weights, plugin, **options) as engine:
        assert engine.step_times() == []
        before = _emulated.device_counts()["copies"]
        harness.run(engine, greedy_requests(1, 8, tokens=8))
        times = engine.step_times()
        copies = _emulated.device_counts()["copies"] - before
    assert len(times) == 8 - 3  # the first has no gap, the last two were not told yet
    # The emulated clock counts pieces of work: launches and copies. Decode steps are alike, and have nothing between.
    work = [round(each.device_s * 1e6) for each in times]
    assert len(set(work)) == 1
    assert work[0] > copies / 8 > 1
    assert all(each.gap_s == 0.0 for each in times)
    assert all(each.host_s > 0.0 for each in times)


def test_what_is_done_between_steps_is_a_gap():
    weights = tiny_weights()
    requests = greedy_requests(4, 25)
    options = tight_pool(weights) | {"times_steps": True}
    with emulated_device() as plugin, cuda_engine(weights, plugin, **options) as engine:
        harness.run(engine, requests)
        assert engine.stats().swap_outs > 0
        assert max(each.gap_s for each in engine.step_times()) > 0.0


def test_no_time_is_taken_of_a_step_that_is_not_done():
    weights = tiny_weights(num_layers=1)
    tokens = harness.prompt(3, 60)

    def logits(left_out=""):
        with emulated_device("late") as plugin:
            _emulated.leave_out_wait(left_out)
            return _testing.cuda_last_logits(weights, tokens, plugin, chunk=9, times_steps=True)

    _emulated.forget_waits()
    assert logits().size
    of_events = [wait for wait in _emulated.reached_waits() if wait.startswith("the host waits for event")]
    refusal = 3

    def is_refused(wait):
        try:
            logits(wait)
        except RuntimeError:
            sys.exit(refusal)

    refused = [wait for wait in of_events if exit_code_of(is_refused, wait) == refusal]
    assert len(refused) == 4  # the ends of the steps that are under way or told


def test_only_a_gpu_times_steps():
    with pytest.raises(ValueError, match="times_steps is for a GPU"):
        _core.Engine(tiny_weights(), tiny_models.engine_config(), threads=1, times_steps=True)


def test_every_wait_of_the_host_code_is_needed():
    weights = tiny_weights(num_layers=1)
    tokens = harness.prompt(3, 60)
    table, picks = np.arange(80, dtype=np.float32).reshape(10, 8), [[7, 1, 4], [2, 9, 0], [3, 3, 8], [5, 6, 1]]

    def results(plugin):
        logits = _testing.cuda_last_logits(weights, tokens, plugin, chunk=9, swaps=True)
        rows = _testing.cuda_gathered_rows(table, picks, plugin)
        assert len(rows) == len(picks)
        return np.concatenate([logits, *rows], axis=None).tobytes()

    waits, unneeded = waits_of(results)
    assert len(waits) >= 7
    assert unneeded == []


def test_an_engine_gives_all_of_its_memory_back():
    with emulated_device() as plugin:
        engine = _testing.cuda_engine(tiny_weights(), tiny_models.engine_config(), plugin)
        harness.run(engine, greedy_requests(1, 8, tokens=2))
        engine.shutdown()
        assert _emulated.device_counts()["held_bytes"] > 0
        del engine
        assert _emulated.device_counts()["held_bytes"] == 0


def test_a_device_that_fails_ends_all_requests_and_the_engine():
    weights = tiny_weights()
    with emulated_device() as plugin, cuda_engine(weights, plugin) as engine:
        _emulated.set_device(good_synchronizations=3)  # from now on
        results = harness.run(engine, greedy_requests(3, 20))
        assert not engine.stats().healthy
        assert "it is gone" in engine.stats().failure
    for result in results:
        assert result.finals == 1
        assert "it is gone" in str(result.error)


def test_too_little_memory_is_told_at_the_start():
    weights = tiny_weights()
    with emulated_device(memory_bytes=1 << 19) as plugin, pytest.raises(ValueError, match="out of memory"):
        _testing.cuda_engine(weights, tiny_models.engine_config(), plugin)


HEAD_SIZES = "head size 48 (only 64, 80, 96, 128, 256; with weights of float32 any)"
FLOAT_CACHE = "kv_cache_dtype float32 beside weights of other types"


@pytest.mark.parametrize(
    ("shape", "options", "says"),
    [
        ({}, {"kv_cache_dtype": "float32"}, f"this device has no kernels for {FLOAT_CACHE}"),
        ({"head_dim": 48}, {}, f"this device has no kernels for {HEAD_SIZES}"),
        (
            {"head_dim": 48, "intermediate_size": 80, "hidden_size": 24}, {"kv_cache_dtype": "float32"},
            "this device has no kernels for linear layers of 24, 80 columns (only multiples of 32); "
            f"{HEAD_SIZES}; {FLOAT_CACHE}",
        ),
        ({}, {"idle_timeout": 60.0}, "idle_timeout cannot be used with this device"),
    ],
)  # fmt: skip
def test_what_the_device_cannot_do_is_refused_at_the_start(shape, options, says):
    weights = tiny_weights("bfloat16", **(TENSOR_CORES | shape))
    config = tiny_models.engine_config(**({"kv_cache_dtype": "bfloat16"} | options))
    with emulated_device() as plugin, pytest.raises(ValueError, match=re.escape(says)):
        _testing.cuda_engine(weights, config, plugin, dtype="bfloat16")


def test_float_weights_beside_others_are_refused_at_the_start():
    weights = tiny_weights("float32", **TENSOR_CORES)
    config = tiny_models.engine_config(kv_cache_dtype="bfloat16")
    with emulated_device() as plugin, pytest.raises(ValueError, match="weights of float32 beside others"):
        _testing.cuda_engine(weights, config, plugin, dtype="bfloat16")


def test_in_float_a_column_count_without_kernels_is_refused_at_the_start():
    weights = tiny_weights(intermediate_size=100)
    with emulated_device() as plugin, pytest.raises(ValueError, match="linear layers of 100 columns"):
        _testing.cuda_engine(weights, tiny_models.engine_config(), plugin)
