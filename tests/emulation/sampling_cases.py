"""Sampling against the definition in NumPy: order the tokens, cut, and walk down to the drawn place."""

import numpy as np
from machine import further_case, kernel_case, stored, unwritten
from row_cases import numbers

CLOSE_TO_AN_EDGE = 1e-5  # where float weights and double ones may fall on different sides


def expected(logits, row, allowed):
    """(token, how near the draw was to another one)."""
    uniform, temperature, top_p, min_p, top_k = row
    logits = logits.astype(np.float64)
    ids = np.arange(len(logits))
    ids = ids[allowed] if allowed is not None else ids
    order = ids[np.lexsort((ids, -logits[ids]))]
    if temperature == 0:
        return order[0], 1.0
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    near = np.min(np.abs(weights - min_p)) if min_p > 0 else 1.0
    weights = weights[weights >= min_p]
    if top_k > 0:
        weights = weights[:top_k]
    if top_p < 1:
        shares = np.cumsum(weights) / weights.sum()
        near = min(near, np.min(np.abs(shares - top_p)))
        weights = weights[: int(np.searchsorted(shares, top_p)) + 1]
    shares = np.cumsum(weights) / weights.sum()
    near = min(near, np.min(np.abs(shares - uniform)))
    return order[int(np.searchsorted(shares, uniform, side="right"))], near


def check(machine, logits, rows, allowed=None):
    count, vocab = logits.shape
    bits = None
    if allowed is not None:
        padded = np.zeros((count, -(-vocab // 32) * 32), bool)
        padded[:, :vocab] = allowed
        bits = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    tokens, finite = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    machine.run(
        "sample", {"tokens": tokens, "finite": finite, "weights": unwritten((count, vocab), "f32")},
        logits=stored(logits, "f32"), rows=rows, allowed=bits,
    )  # fmt: skip
    assert finite.all()
    for i, row in enumerate(rows):
        token, near = expected(logits[i], row, None if allowed is None else allowed[i])
        if near > CLOSE_TO_AN_EDGE:
            assert tokens[i] == token, (row, tokens[i], token)


@kernel_case
def sample(machine):
    rng = np.random.default_rng(11)
    rows = [
        # uniform, temperature, top_p, min_p, top_k
        (0.3, 0.0, 1.0, 0.0, 0),
        (0.0, 1.0, 1.0, 0.0, 0),
        (0.999, 0.7, 1.0, 0.0, 0),
        (0.5, 1.3, 0.9, 0.0, 0),
        (0.9, 1.0, 1.0, 0.0, 5),
        (0.77, 1.0, 0.6, 0.0, 40),
        (0.9999, 1.5, 1.0, 0.05, 0),
        (0.4, 2.0, 0.95, 0.01, 7),
    ]
    check(machine, 3 * numbers(rng, len(rows), 1200), rows)
    check_not_finite(machine)


@further_case
def sample_at_ragged_sizes_among_allowed_tokens_and_ties(machine):
    rng = np.random.default_rng(12)
    for vocab in (1, 2, 31, 513):
        logits = np.round(2 * numbers(rng, 6, vocab))  # many ties
        rows = [
            (float(rng.random()), 1.0, 0.8 if i % 2 else 1.0, 0.0, int(rng.integers(0, 2 * vocab))) for i in range(6)
        ]
        allowed = rng.random((6, vocab)) < 0.5
        allowed[:, rng.integers(vocab)] = True
        check(machine, logits, rows)
        check(machine, logits, rows, allowed)


def check_not_finite(machine):
    rng = np.random.default_rng(13)
    logits = numbers(rng, 4, 700)
    logits[0, 699], logits[1, 3], logits[2, 512] = np.nan, np.inf, -np.inf
    tokens, finite = np.full(4, -1, np.int32), np.full(4, -1, np.int32)
    machine.run(
        "sample", {"tokens": tokens, "finite": finite, "weights": unwritten((4, 700), "f32")},
        logits=stored(logits, "f32"), rows=[(0.5, 1.0, 1.0, 0.0, 0)] * 4, allowed=None,
    )  # fmt: skip
    assert finite.tolist() == [0, 0, 0, 1]
