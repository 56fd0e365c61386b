"""The rate by which the benchmarks compare engines: only while a whole batch runs."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from rates import steady_rate


@given(
    delays=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    output_tokens=st.integers(8, 20),
    step_s=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
)
def test_a_batch_that_starts_and_ends_raggedly_has_the_rate_of_its_full_steps(delays, output_tokens, step_s):
    """Sequence i has its first token in step delays[i]; every full step takes step_s, the others half of it."""
    steps = [
        [i for i, delay in enumerate(delays) if delay <= step < delay + output_tokens]
        for step in range(max(delays) + output_tokens)
    ]
    moment, arrivals = 0.0, []
    for sequences in steps:
        moment += step_s if len(sequences) == len(delays) else step_s / 2
        arrivals.append((moment, dict.fromkeys(sequences, 1)))
    assert steady_rate(arrivals, len(delays), output_tokens) == pytest.approx(len(delays) / step_s)


def test_tokens_that_come_together_count_from_their_own_moment():
    arrivals = [(1.0, {0: 2, 1: 1}), (2.0, {0: 3, 1: 3}), (3.0, {0: 1, 1: 2})]
    assert steady_rate(arrivals, 2, 6) == pytest.approx(9 / 2)


def test_sequences_that_never_run_together_have_no_rate():
    with pytest.raises(ValueError, match="all 2 sequences"):
        steady_rate([(1.0, {0: 1}), (2.0, {0: 1}), (3.0, {1: 1}), (4.0, {1: 1})], 2, 2)
