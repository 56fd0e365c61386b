"""Draws of a backend: any order of asking and taking gives each draw the tokens that the sampler draws for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsrv import _testing

ROWS, VOCAB, CONTEXT = 4, 40, 32


def drawer(**options):
    return _testing.Drawer(**({"rows": ROWS, "vocab": VOCAB, "context_len": CONTEXT, "top_logprobs": 5} | options))


def a_draw(seed):
    """(logits, parameters of each row) of a draw."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, ROWS + 1))  # one of no rows is only waited for
    logits = (3 * rng.standard_normal((count, VOCAB))).astype(np.float32)
    rows = [
        {"seed": int(rng.integers(99)), "top_p": 0.9, "repetition_penalty": 1.2, "top_logprobs": int(rng.integers(4)),
         "prompt": rng.integers(0, VOCAB, 6).tolist(), "output": rng.integers(0, VOCAB, 3).tolist()}
        for _ in range(count)
    ]  # fmt: skip
    return logits, rows


def made(rows):
    return [_testing.SampleRow(**row) for row in rows]


@settings(max_examples=30, deadline=None)
@given(asks=st.lists(st.booleans(), max_size=24))
def test_each_draw_has_its_own_results_in_the_order_of_asking(asks):
    backend = drawer()
    waiting = []
    for seed, asks_next in enumerate(asks):
        if asks_next and len(waiting) < 2:
            logits, rows = a_draw(seed)
            backend.draw(logits, made(rows))
            waiting.append(_testing.sample(logits, made(rows)))
        elif waiting:
            assert backend.drawn() == waiting.pop(0)


def test_more_draws_than_two_or_results_of_none_are_our_own_bug():
    backend = drawer()
    logits, rows = a_draw(1)
    with pytest.raises(RuntimeError, match="draws_left_ > 0"):
        backend.drawn()
    backend.draw(logits, made(rows))
    backend.draw(logits, made(rows))
    with pytest.raises(RuntimeError, match="draws_left_ < kDrawsMost"):
        backend.draw(logits, made(rows))


def test_the_cpu_knows_every_token_that_it_drew():
    logits, rows = a_draw(2)
    with pytest.raises(RuntimeError, match="works_behind"):
        drawer().draw(logits, made([row | {"pending": 0} for row in rows]))
