"""Whole models on the emulated device, each step launched before the tokens of the one before are there."""

import random

import harness
import pytest
import tiny_models
from tiny_models import cpu_engine, cuda_engine, emulated_device, tight_pool, tiny_weights

ORDERS = ["late", "others first"]
SAMPLING = [{"temperature": 0.0}, {"seed": 1, "n": 3}, {"seed": 2, "repetition_penalty": 1.4, "top_k": 20}]


def requests_of(count, tokens=14):
    """Most end by a stop id, when a row of theirs is already in the next step."""
    return [
        harness.request(
            f"r{i}", harness.prompt(i % 3, 9 + 7 * i), sampling=SAMPLING[i % 3],
            stopping={"max_tokens": tokens + i, "min_tokens": i % 3, "stop_token_ids": list(range(10 * i, 10 * i + 9)),
                      "ignore_eos": True},
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "order"), [("swap", "late"), ("recompute", "others first")])
def test_the_tokens_are_those_of_the_cpu(mode, order):
    weights = tiny_weights(num_layers=1, **tiny_models.LLAMA)
    options = tight_pool(weights) | {"preemption_mode": mode, "prefix_cache": True}
    requests = requests_of(6)
    with cpu_engine(weights) as engine:
        expected = harness.run(engine, requests)
    with emulated_device(order) as plugin, cuda_engine(weights, plugin, **options) as engine:
        actual = harness.run(engine, requests)
        stats = engine.stats()
    assert stats.preemptions > 0
    assert (stats.swap_outs > 0) == (mode == "swap")
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.reasons, ours.finals, ours.error) == (theirs.token_ids, theirs.reasons, 1, None)
    assert {reason for each in expected for reason in each.reasons.values()} == {"stop", "length"}


def test_aborts_at_random_moments_change_nothing_for_the_others():
    weights = tiny_weights(num_layers=1)
    choose = random.Random(3)
    requests = requests_of(9)
    with cpu_engine(weights) as engine:
        expected = harness.run(engine, requests)
    with emulated_device() as plugin, cuda_engine(weights, plugin, **tight_pool(weights)) as engine:
        keys, aborted = [engine.submit(each) for each in requests], set()
        results = {key: harness.Result() for key in keys}
        while not all(result.finals for result in results.values()):
            outputs = engine.wait_outputs(100)
            harness.absorb(results, outputs)
            if outputs and choose.random() < 0.3:
                victim = choose.choice(keys)
                if engine.abort(victim):
                    aborted.add(victim)
        stats = engine.stats()
    assert all(result.finals == 1 for result in results.values())
    assert stats.running == stats.waiting == stats.kv_blocks_held == 0
    assert 0 < len(aborted) < len(keys)
    for key, theirs in zip(keys, expected, strict=True):
        if key not in aborted:
            assert results[key].token_ids == theirs.token_ids
