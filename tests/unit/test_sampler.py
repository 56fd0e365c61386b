"""The sampler against plain NumPy definitions, and the promise that a row depends on nothing but itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsrv import _testing

VOCAB = 50


def random_logits(seed, rows=1, vocab=VOCAB, scale=3.0):
    return np.random.default_rng(seed).normal(scale=scale, size=(rows, vocab)).astype(np.float32)


def sample_one(logits, **params):
    return _testing.sample(np.atleast_2d(logits), [_testing.SampleRow(**params)])[0]


def reference_kept(logits, temperature, top_k, top_p, min_p):
    """Ids and probabilities that the filters keep, likeliest first: min_p, then top_k, then top_p."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = sorted((i for i in range(len(logits)) if weights[i] >= min_p), key=lambda i: (-weights[i], i))
    if top_k:
        order = order[:top_k]
    mass = np.cumsum(weights[order])
    last = int(np.searchsorted(mass, top_p * mass[-1])) if top_p < 1 else len(order) - 1
    order = order[: last + 1]
    kept = weights[order]
    return order, kept / kept.sum()


def test_greedy_takes_the_largest_and_the_lower_id_on_a_tie():
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[7, 31]] = 2.0
    assert sample_one(logits, temperature=0.0)[0] == 7


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1.0, 3e38])
@pytest.mark.parametrize("penalty", [1e-45, 1e-38, 3e38])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_values_still_draw_what_is_allowed(temperature, penalty, sign):
    """The penalty alone would make every allowed logit infinite."""
    logits = sign * (1 + np.abs(random_logits(3)[0]))
    allowed = [4, 9, 30]
    for seed in range(5):
        token, _, finite = sample_one(
            logits, temperature=temperature, repetition_penalty=penalty, allowed_token_ids=allowed, prompt=allowed,
            forbidden=[9], seed=seed,
        )  # fmt: skip
        assert finite
        assert token in (4, 30)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.2, 2.0),
    top_k=st.sampled_from([0, 1, 3, 20, VOCAB, 1000]),
    top_p=st.sampled_from([0.01, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    vocab=st.sampled_from([1, 63, 64, 65, VOCAB, 1025, 3000]),
    scale=st.sampled_from([0.01, 3.0, 40.0]),
)
def test_draws_stay_inside_the_kept_set_and_follow_its_inverse_cdf(
    seed, temperature, top_k, top_p, min_p, vocab, scale
):
    """Flat and steep rows, within one block of the scan and over many."""
    logits = random_logits(seed, vocab=vocab, scale=scale)[0]
    order, probabilities = reference_kept(logits, np.float32(temperature), top_k, top_p, min_p)
    candidates = len(reference_kept(logits, np.float32(temperature), 0, 1.0, max(min_p, 1e-37))[0])
    for draw_seed in range(5):
        token = sample_one(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=draw_seed, prompt=[1, 2]
        )[0]
        # The core's exp is float: what is on the edge of a cut may fall on either side.
        edges = np.flatnonzero(np.abs(logits - logits[order[-1]]) < 1e-4 * temperature)
        assert token in order or token in edges
        if token in order and (0 < top_k < candidates or top_p < 1):
            u = _testing.counter_uniform(draw_seed, 0, 2)
            cumulative = np.cumsum(probabilities)
            expected = order[min(int(np.searchsorted(cumulative, u, side="right")), len(order) - 1)]
            position = order.index(token)
            assert token == expected or min(abs(cumulative[position] - u), abs(cumulative[position - 1] - u)) < 1e-5


@pytest.mark.parametrize("vocab", [4, 1023, 5000])
def test_draws_without_cuts_walk_the_ids(vocab):
    logits = random_logits(7, vocab=vocab, scale=1.0)[0]
    weights = np.exp(logits.astype(np.float64))
    cumulative = np.cumsum(weights) / weights.sum()
    for seed in range(200):
        u = _testing.counter_uniform(seed, 0, 0)
        token = sample_one(logits, seed=seed)[0]
        assert token == np.searchsorted(cumulative, u, side="right") or np.abs(cumulative - u).min() < 1e-6


def test_frequencies_match_the_distribution():
    logits = np.array([0.0, 1.0, 2.0, -1.0], dtype=np.float32)
    expected = np.exp(logits) / np.exp(logits).sum()
    draws = [sample_one(logits, seed=seed)[0] for seed in range(20_000)]
    observed = np.bincount(draws, minlength=4) / len(draws)
    chi_square = len(draws) * ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001; the seeds are fixed


def test_draws_are_keyed_by_seed_choice_and_position():
    base = _testing.counter_uniform(1, 0, 5)
    assert base == _testing.counter_uniform(1, 0, 5)
    others = {_testing.counter_uniform(*key) for key in [(2, 0, 5), (1, 1, 5), (1, 0, 6), (1, 5, 0)]}
    assert len(others | {base}) == 5
    assert all(0.0 <= u < 1.0 for u in others)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_depends_on_nothing_but_itself(threads):
    rows = 9
    logits = random_logits(3, rows=rows)
    params = [
        {"temperature": 0.5 + 0.1 * i, "top_k": i, "top_p": 0.9, "seed": i, "prompt": [1, 2, 3], "output": [i],
         "repetition_penalty": 1.1, "frequency_penalty": 0.2, "top_logprobs": 3}
        for i in range(rows)
    ]  # fmt: skip
    together = _testing.sample(logits, [_testing.SampleRow(**p) for p in params], threads=threads)
    alone = [sample_one(logits[i], **params[i]) for i in range(rows)]
    assert together == alone


def test_penalties_follow_their_definitions():
    logits = random_logits(11)[0]
    prompt, output = [3, 3, 4], [4, 5, 5]
    expected = logits.copy()
    expected[9] += np.float32(1.5)
    for token in {3, 4, 5}:
        expected[token] = (
            expected[token] / np.float32(1.3) if expected[token] > 0 else expected[token] * np.float32(1.3)
        )
    for token, count in {4: 1, 5: 2}.items():
        expected[token] -= np.float32(0.7) * count + np.float32(0.4)
    params = {
        "logit_bias": {9: 1.5}, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4,
        "prompt": prompt, "output": output,
    }  # fmt: skip
    # Greedy over a growing set of forbidden tokens reveals the whole order.
    forbidden: list[int] = []
    for token in np.argsort(-expected, kind="stable"):
        assert sample_one(logits, temperature=0.0, forbidden=forbidden, **params)[0] == token
        forbidden.append(int(token))
        if len(forbidden) == VOCAB - 1:
            break


def test_only_allowed_ids_are_drawn():
    logits = np.linspace(0.0, 1.0, VOCAB, dtype=np.float32)
    draws = {sample_one(logits, allowed_token_ids=[4, 17], seed=seed)[0] for seed in range(200)}
    assert draws == {4, 17}
    assert sample_one(logits, temperature=0.0, allowed_token_ids=[4, 17], forbidden=[4])[0] == 17


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), token=st.integers(0, VOCAB - 1), top=st.integers(0, VOCAB + 3))
def test_logprobs_are_of_the_raw_distribution(seed, token, top):
    logits = random_logits(seed)[0]
    exact = logits.astype(np.float64)
    logprobs = exact - (exact.max() + np.log(np.exp(exact - exact.max()).sum()))
    result = _testing.token_logprob(logits, token, top)
    assert result["logprob"] == pytest.approx(logprobs[token], abs=2e-6)
    assert result["rank"] == 1 + int((logits > logits[token]).sum())
    assert [id for id, _ in result["top"]] == sorted(range(VOCAB), key=lambda i: (-logits[i], i))[:top]
    assert np.allclose([value for _, value in result["top"]], logprobs[[id for id, _ in result["top"]]], atol=2e-6)


def test_sampled_logprob_ignores_temperature_and_penalties():
    logits = random_logits(8)[0]
    token, logprob, _ = sample_one(logits, temperature=0.3, output=[1, 2], frequency_penalty=1.0, top_logprobs=2)
    assert logprob["token"] == token
    assert logprob["logprob"] == _testing.token_logprob(logits, token, 0)["logprob"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_is_reported_and_hurts_no_other(bad):
    logits = random_logits(2, rows=3)
    clean = _testing.sample(logits, [_testing.SampleRow(seed=i) for i in range(3)])
    logits[1, 20] = bad
    spoiled = _testing.sample(logits, [_testing.SampleRow(seed=i) for i in range(3)])
    assert not spoiled[1][2]
    assert (spoiled[0], spoiled[2]) == (clean[0], clean[2])
