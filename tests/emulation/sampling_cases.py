"""Sampling against the definition in NumPy, and token for token against the core's sampler."""

import numpy as np
import pytest
from machine import further_case, kernel_case, stored, unwritten, with_gaps
from row_cases import numbers

from llmsrv import _testing

CLOSE_TO_AN_EDGE = 1e-5  # where float weights and double ones may fall on different sides


def make_row(uniform=0.5, **given):
    row = {
        "uniform": uniform, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "prompt": [], "output": [],
        "forbidden": [], "allowed": [], "bias": [], "repetition": 1.0, "frequency": 0.0, "presence": 0.0,
        "pending": -1, "penalizes": False,
    }  # fmt: skip
    assert given.keys() <= row.keys()
    return row | given


def expected(logits, row, allowed):
    """(token, how near the draw was to another one) of a row without penalties."""
    logits = logits.astype(np.float64)
    ids = np.arange(len(logits))
    ids = ids[allowed] if allowed is not None else ids
    order = ids[np.lexsort((ids, -logits[ids]))]
    if row["temperature"] == 0:
        return order[0], 1.0
    weights = np.exp((logits[order] - logits[order[0]]) / row["temperature"])
    near = np.min(np.abs(weights - row["min_p"])) if row["min_p"] > 0 else 1.0
    weights = weights[weights >= row["min_p"]]
    order = order[: len(weights)]
    cuts = 0 < row["top_k"] < len(weights) or row["top_p"] < 1
    if row["top_k"] > 0:
        weights = weights[: row["top_k"]]
    if row["top_p"] < 1:
        shares = np.cumsum(weights) / weights.sum()
        near = min(near, np.min(np.abs(shares - row["top_p"])))
        weights = weights[: int(np.searchsorted(shares, row["top_p"])) + 1]
    if not cuts:
        by_id = np.argsort(order)
        order, weights = order[by_id], weights[by_id]
    shares = np.cumsum(weights) / weights.sum()
    near = min(near, np.min(np.abs(shares - row["uniform"])))
    return order[int(np.searchsorted(shares, row["uniform"], side="right"))], near


def bits_of(allowed):
    count, vocab = allowed.shape
    padded = np.zeros((count, -(-vocab // 32) * 32), bool)
    padded[:, :vocab] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


def sample_on(machine, logits, rows, allowed=None, drawn=()):
    """(tokens, which rows were finite). The rows of the logits lie apart. `drawn`: tokens of the draw before."""
    tokens, finite = np.full(len(rows), -1, np.int32), np.full(len(rows), -1, np.int32)
    machine.run(
        "sample", {"tokens": tokens, "finite": finite, "weights": unwritten(logits.shape, "f32")},
        logits=with_gaps(logits, "f32"), rows=rows, allowed=None if allowed is None else bits_of(allowed),
        drawn=np.array(drawn, np.int32),
    )  # fmt: skip
    return tokens, finite


def check(machine, logits, rows, allowed=None):
    tokens, finite = sample_on(machine, logits, rows, allowed)
    assert finite.all()
    for i, row in enumerate(rows):
        token, near = expected(logits[i], row, None if allowed is None else allowed[i])
        if near > CLOSE_TO_AN_EDGE:
            assert tokens[i] == token, (row, tokens[i], token)


@kernel_case
def sample(machine):
    rng = np.random.default_rng(11)
    rows = [
        make_row(0.3, temperature=0.0),
        make_row(0.0),
        make_row(0.999, temperature=0.7),
        make_row(0.5, temperature=1.3, top_p=0.9),
        make_row(0.9, top_k=5),
        make_row(0.77, top_p=0.6, top_k=40),
        make_row(0.9999, temperature=1.5, min_p=0.05),
        make_row(0.4, temperature=2.0, top_p=0.95, min_p=0.01, top_k=7),
    ]
    check(machine, 3 * numbers(rng, len(rows), 1200), rows)
    check_not_finite(machine)
    check_against_the_core(machine, rng, 700, rows=4)


@further_case
def sample_at_ragged_sizes_among_allowed_tokens_and_ties(machine):
    rng = np.random.default_rng(12)
    for vocab in (1, 2, 31, 513):
        logits = np.round(2 * numbers(rng, 6, vocab))  # many ties
        rows = [
            make_row(float(rng.random()), top_p=0.8 if i % 2 else 1.0, top_k=int(rng.integers(0, 2 * vocab)))
            for i in range(6)
        ]
        allowed = rng.random((6, vocab)) < 0.5
        allowed[:, rng.integers(vocab)] = True
        check(machine, logits, rows)
        check(machine, logits, rows, allowed)


def check_not_finite(machine):
    rng = np.random.default_rng(13)
    logits = numbers(rng, 4, 700)
    logits[0, 699], logits[1, 3], logits[2, 512] = np.nan, np.inf, -np.inf
    _, finite = sample_on(machine, logits, [make_row()] * 4)
    assert finite.tolist() == [0, 0, 0, 1]


@further_case
def sample_as_the_core_does(machine):
    rng = np.random.default_rng(14)
    for vocab in (1, 40, 515, 2100):
        check_against_the_core(machine, rng, vocab, rows=8)


@further_case
def sample_from_the_largest_vocabulary_when_all_are_as_likely(machine):
    """The sum of all masses needs every bit that it has."""
    vocab = 1 << 19
    draws = [0.6, 1 - 2**-30]
    tokens, finite = sample_on(machine, np.zeros((2, vocab), np.float32), [make_row(uniform) for uniform in draws])
    assert finite.all()
    assert tokens.tolist() == [int(uniform * vocab) for uniform in draws]
    with pytest.raises(ValueError, match="more than 524288 tokens"):
        sample_on(machine, np.zeros((1, vocab + 1), np.float32), [make_row()])


def check_against_the_core(machine, rng, vocab, rows):
    """The same tokens from logits, lists and seeds drawn at random; every second row is changed by all that can."""
    logits = (rng.choice([0.3, 4, 20]) * numbers(rng, rows, vocab)).astype(np.float32)
    logits[:, rng.random(vocab) < 0.1] = -0.0
    drawn = rng.integers(0, vocab, rows)
    pairs = [random_row(rng, vocab, seed, penalizes=seed % 2 == 0, drawn=drawn) for seed in range(rows)]
    tokens, finite = sample_on(machine, logits, [on_device for on_device, _ in pairs], drawn=drawn)
    assert finite.all()
    core = _testing.sample(logits, [_testing.SampleRow(**params) for _, params in pairs])
    assert tokens.tolist() == [token for token, _, _ in core]


def random_row(rng, vocab, seed, penalizes, drawn):
    """(the row for the device, the same one's parameters for the core)"""

    def ids(most):
        return rng.integers(0, vocab, rng.integers(0, most + 1)).tolist() if penalizes else []

    def one_of(*values):
        return float(rng.choice(values))

    lists = {"prompt": ids(40), "output": ids(60), "forbidden": ids(3) if vocab > 1 else []}
    allowed = [min({*range(vocab)} - {*lists["forbidden"]}), *ids(vocab)] if penalizes and seed % 4 == 0 else []
    bias = {token: one_of(-100, -1.5, 3, 100) for token in ids(5)}
    draw = {"temperature": one_of(0, 0.6, 1, 1.7), "top_p": one_of(0.3, 0.9, 1), "top_k": int(one_of(0, 1, 30)),
            "min_p": one_of(0, 0.02)}  # fmt: skip
    factors = {"repetition": one_of(0.5, 1, 1.3, 3e38), "frequency": one_of(-2, 0, 0.7), "presence": one_of(0, 1.1)}
    if not penalizes:
        factors = {"repetition": 1.0, "frequency": 0.0, "presence": 0.0}
    pending = int(rng.integers(-1, len(drawn)))
    known = lists | {"output": lists["output"] + ([int(drawn[pending])] if pending >= 0 else [])}
    uniform = _testing.counter_uniform(seed, 1, len(known["prompt"]) + len(known["output"]))
    changes = factors | lists | {"allowed": allowed, "bias": [*bias.items()], "penalizes": penalizes}
    changes["pending"] = pending
    core = {f"{name}_penalty": value for name, value in factors.items()}
    core |= draw | known | {"allowed_token_ids": allowed, "logit_bias": bias, "seed": seed, "choice": 1}
    return make_row(uniform, **draw, **changes), core


@kernel_case
def logprobs(machine):
    rng = np.random.default_rng(15)
    for vocab, tops in [(1, [0, 1]), (30, [30, 0, 7]), (700, [20, 1, 300]), (2100, [0, 5])]:
        logits = (5 * numbers(rng, 4, vocab)).astype(np.float32)
        logits[1] = np.round(logits[1])  # many ties
        rows = [(int(rng.integers(4)), top) for top in tops] + [(1, min(vocab, 12))]
        chosen = rng.integers(0, vocab, len(logits)).astype(np.int32)
        check_logprobs(machine, logits, rows, chosen)


def check_logprobs(machine, logits, rows, chosen):
    count, most = len(rows), max(top for _, top in rows)
    out = {
        "logprobs": stored(np.zeros(count), "f32"), "ranks": np.full(count, -1, np.int32),
        "top_tokens": np.full((count, most), -1, np.int32), "top_logprobs": unwritten((count, most), "f32"),
    }  # fmt: skip
    machine.run("logprobs", out, logits=with_gaps(logits, "f32"), rows=rows, tokens=chosen)
    for i, (row, top) in enumerate(rows):
        core = _testing.token_logprob(logits[row], int(chosen[row]), top)
        assert out["ranks"][i] == core["rank"]
        assert out["top_tokens"][i, :top].tolist() == [token for token, _ in core["top"]]
        assert (out["top_tokens"][i, top:] == -1).all()
        told = [out["logprobs"][i], *out["top_logprobs"][i, :top]]
        assert np.allclose(told, [core["logprob"], *(value for _, value in core["top"])], rtol=2e-7, atol=3e-8)
