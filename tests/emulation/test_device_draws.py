"""Draws on the emulated device against the core's sampler: lists in pieces, tokens that the host does not know yet."""

import harness
import numpy as np
import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_cases import random_row
from tiny_models import cpu_engine, cuda_engine, emulated_device, furthest, tiny_weights
from waits import waits_of

from llmsrv import _core, _emulated, _testing

ROWS, VOCAB, CONTEXT, TOP = 6, 500, 128, 20


def drawer(plugin, **options):
    limits = {"rows": ROWS, "vocab": VOCAB, "context_len": CONTEXT, "top_logprobs": TOP}
    return _testing.Drawer(plugin=plugin, **(limits | options))


def a_draw(rng, before=(), count=None, long_lists=None):
    """(logits, rows as the device gets them, the same rows with all that they mean).

    `before`: (token, finite) of each row of the draw before. `long_lists`: they name the whole vocabulary, so that a
    piece of a draw has two rows at most.
    """
    count = count or int(rng.integers(1, ROWS + 1))
    logits = (4 * rng.standard_normal((count, VOCAB))).astype(np.float32)
    logits[rng.random(count) < 0.1, 7] = np.nan
    asked, meant = [], []
    for i in range(count):
        _, row = random_row(rng, VOCAB, seed=int(rng.integers(1000)), penalizes=rng.random() < 0.7, drawn=[])
        row["top_logprobs"] = rng.choice([None, 0, 3, TOP])
        if long_lists if long_lists is not None else rng.random() < 0.4:
            row["allowed_token_ids"] = list(range(VOCAB))
            row["logit_bias"] = {token: float(rng.choice([-2, 0.5, 1])) for token in range(VOCAB)}
        known = [j for j, (_, finite) in enumerate(before) if finite]
        j = known[i % len(known)] if known and rng.random() < 0.7 else None
        asked.append(row | {"pending": j})
        meant.append(row if j is None else row | {"output": [*row["output"], before[j][0]]})
    return logits, asked, meant


def made(rows):
    return [_testing.SampleRow(**row) for row in rows]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        (token, logprob, finite), (core_token, core_logprob, core_finite) = ours, theirs
        assert finite == core_finite
        if not finite:
            continue  # its token means nothing
        assert token == core_token
        assert (logprob is None) == (core_logprob is None)
        if logprob is None:
            continue
        assert (logprob["token"], logprob["rank"]) == (core_logprob["token"], core_logprob["rank"])
        assert [token for token, _ in logprob["top"]] == [token for token, _ in core_logprob["top"]]
        values = [logprob["logprob"], *(value for _, value in logprob["top"])]
        core_values = [core_logprob["logprob"], *(value for _, value in core_logprob["top"])]
        assert np.allclose(values, core_values, rtol=2e-7, atol=3e-8)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), asks=st.lists(st.booleans(), min_size=4, max_size=9))
def test_each_draw_has_the_tokens_of_the_core(seed, asks):
    rng = np.random.default_rng(seed)
    with emulated_device() as plugin:
        backend = drawer(plugin)
        waiting, before = [], []
        for asks_next in asks:
            if asks_next and len(waiting) < 2:
                logits, asked, meant = a_draw(rng, before)
                backend.draw(logits, made(asked))
                waiting.append(_testing.sample(logits, made(meant)))
                before = [(token, finite) for token, _, finite in waiting[-1]]
            elif waiting:
                assert_same(backend.drawn(), waiting.pop(0))


def test_every_wait_of_draws_is_needed():
    """Two draws are always outstanding. First short ones, then such that have more pieces than there are buffers."""
    rng = np.random.default_rng(5)
    pairs = [[a_draw(rng, count=ROWS, long_lists=is_long)[:2] for _ in range(2)] for is_long in (False, True)]

    def results(plugin):
        backend, drawn = drawer(plugin), []
        for pair in pairs:
            for logits, rows in pair:
                backend.draw(logits, made(rows))
            drawn += [backend.drawn() for _ in pair]
        return repr(drawn)

    waits, unneeded = waits_of(results)
    assert len(waits) == 4
    assert unneeded == []


# Requests that draw in every way there is.
SAMPLINGS = [
    {"temperature": 0.8, "n": 2},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 0.9, "frequency_penalty": 0.7, "presence_penalty": -0.4, "logit_bias": {5: 3.0, 9: -100.0}},
    {"temperature": 1.1, "allowed_token_ids": [*range(3, 60)], "top_p": 0.95},
    {"temperature": 0.0, "repetition_penalty": 1.5},
]


def drawing_requests():
    return [
        harness.request(
            f"r{i}", harness.prompt(i, 12 + 4 * i), sampling={"seed": i} | sampling,
            stopping={"max_tokens": 12, "min_tokens": 6, "stop_token_ids": [*range(20, 24)]},
            output={"logprobs": i % 2 == 0, "top_logprobs": 3 if i % 2 == 0 else 0},
        )
        for i, sampling in enumerate(SAMPLINGS)
    ]  # fmt: skip


def test_requests_of_every_kind_draw_the_tokens_of_the_cpu():
    weights = tiny_weights(**tiny_models.QWEN2)
    with cpu_engine(weights) as engine:
        expected = harness.run(engine, drawing_requests())
    with emulated_device() as plugin, cuda_engine(weights, plugin) as engine:
        actual = harness.run(engine, drawing_requests())
    assert {reason for each in expected for reason in each.reasons.values()} == {"length", "stop"}
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.reasons, ours.finals) == (theirs.token_ids, theirs.reasons, 1)
        assert ours.logprobs.keys() == theirs.logprobs.keys()
        for choice, told in theirs.logprobs.items():
            assert [token for token, *_ in ours.logprobs[choice]] == [token for token, *_ in told]
            assert not told or furthest(ours.logprobs[choice], told) < 1e-4


def test_a_row_without_a_number_fails_its_request_and_no_other():
    weights = harness.weights_with_a_nan_row()
    good = harness.request("good", [3, 4, 5], sampling={"allowed_token_ids": [3, 4, 5], "seed": 1},
                           stopping={"max_tokens": 12, "ignore_eos": True})  # fmt: skip
    bad = harness.request("bad", [3, 50, 4], sampling={"n": 2}, output={"logprobs": True, "top_logprobs": 5})
    with emulated_device() as plugin, cuda_engine(weights, plugin) as engine:
        (alone,) = harness.run(engine, [good])
        beside, failed = harness.run(engine, [good, bad])
    assert beside.token_ids == alone.token_ids
    assert (failed.finals, failed.error.code) == (1, _core.status_codes()["INTERNAL"])


def test_the_plan_has_the_memory_that_is_taken():
    with emulated_device() as plugin:
        before = _emulated.device_counts()["held_bytes"]
        backend = drawer(plugin)
        taken = _emulated.device_counts()["held_bytes"] - before - 3 * 4 * ROWS * VOCAB  # without the logits
        assert backend.workspace_bytes - 2048 < taken <= backend.workspace_bytes  # sizes are rounded up


def test_what_the_kernels_cannot_draw_is_refused_at_the_start():
    with emulated_device() as plugin:
        with pytest.raises(ValueError, match="max_logprobs is at most 512 on CUDA"):
            drawer(plugin, vocab=600, top_logprobs=513)
        with pytest.raises(ValueError, match="CUDA draws from at most 524288 tokens"):
            drawer(plugin, vocab=(1 << 19) + 1)
