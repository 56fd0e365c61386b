"""The last two minutes, against a list of everything that ever happened."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.recent import (
    BOUNDS_S,
    RATE_SLICES,
    SHOWN_TENANTS_MAX,
    SLICE_S,
    SLICES,
    TENANTS_MAX,
    WINDOW_SLICES,
    Recent,
)

TENANTS = ("", "a", "b", "c")
tokens = st.tuples(st.just("tokens"), st.sampled_from(TENANTS), st.integers(1, 500), st.none() | st.floats(1e-4, 50))
firsts = st.tuples(st.just("first"), st.sampled_from(TENANTS), st.integers(1, 5000), st.floats(1e-4, 900))
pauses = st.tuples(st.just("pause"), st.floats(0, 40) | st.floats(0, 1))


def within_a_bin(value):
    return pytest.approx(value, rel=BOUNDS_S[1] / BOUNDS_S[0] - 1)


def since(now, slices):
    return (now // SLICE_S - slices + 1) * SLICE_S


class Naive:
    """Keeps it all."""

    def __init__(self, began):
        self.began = began
        self.events = []  # (time, tenant, requests, prompt tokens, generated tokens)
        self.gaps = []  # (time, seconds, times)

    def rates(self, now, slices, tenant=None):
        first = since(now, slices)
        seconds = now - max(first, min(self.began, now - SLICE_S))
        chosen = [each for each in self.events if each[0] >= first and tenant in (None, each[1])]
        return [sum(each[i] for each in chosen) / seconds for i in (2, 3, 4)]

    def gap_at(self, now, share):
        ordered = sorted(s for at, s, n in self.gaps if at >= since(now, WINDOW_SLICES) for _ in range(n))
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


@given(st.lists(tokens | firsts | pauses, max_size=60))
def test_rates_and_percentiles_are_those_of_all_that_happened(events):
    now = 1000.0
    recent, naive = Recent(now), Naive(now)
    for kind, *values in events:
        if kind == "pause":
            now += values[0]
        elif kind == "tokens":
            tenant, count, gap_s = values
            recent.note_tokens(tenant, count, gap_s, now)
            naive.events.append((now, tenant, 0, 0, count))
            if gap_s is not None:
                naive.gaps.append((now, gap_s, count))
        else:
            tenant, prompt_tokens, seconds = values
            recent.note_first_token(tenant, seconds, prompt_tokens, now)
            naive.events.append((now, tenant, 1, prompt_tokens, 0))
    rates = recent.rates(now)
    found = [rates.requests_per_s, rates.prompt_tokens_per_s, rates.generation_tokens_per_s]
    assert found == pytest.approx(naive.rates(now, RATE_SLICES))
    gaps = recent.between_tokens(now)
    assert (gaps is None) == (naive.gap_at(now, 0.5) is None)
    if gaps is not None:
        for share, value in ((0.5, gaps.p50), (0.9, gaps.p90), (0.99, gaps.p99)):
            assert value == within_a_bin(naive.gap_at(now, share))
    for name, each in recent.tenants(now):
        of_tenant = [each.requests_per_s, each.prompt_tokens_per_s, each.generation_tokens_per_s]
        assert of_tenant == pytest.approx(naive.rates(now, WINDOW_SLICES, name))


def test_what_is_old_is_forgotten():
    recent = Recent(0.0)
    recent.note_first_token("a", 0.25, 10, 0.0)
    recent.note_tokens("a", 5, 0.01, 0.0)
    recent.note_end(3.0, 0.0)
    assert recent.first_token(1.0).p50 == within_a_bin(0.25)
    assert recent.request(1.0).count == 1
    assert [moment.generation_tokens for moment in recent.moments(1.0)] == [5]
    later = (WINDOW_SLICES + 1) * SLICE_S
    assert recent.first_token(later) is None
    assert recent.request(later) is None
    assert recent.tenants(later) == []
    assert recent.rates(later).generation_tokens_per_s == 0
    assert recent.moments(SLICES * SLICE_S) == []


def test_a_slice_that_is_over_is_summed_up_with_all_that_came_into_it():
    recent = Recent(0.0)
    for i in range(1, 5):
        recent.note_tokens("", 1, 0.1 * i, 0.1 * i)
        assert recent.moments(0.1 * i)[0].between_tokens_s.count == i
    for _ in range(2):
        (moment,) = recent.moments(SLICE_S)
        assert moment.between_tokens_s == recent.between_tokens(SLICE_S)


def test_many_tenants_take_no_more_room_than_a_few():
    recent = Recent(0.0)
    for second in range(10):
        for i in range(5 * TENANTS_MAX):
            recent.note_tokens(f"{second}/{i}", 1 + i, None, float(second))
    shown = recent.tenants(9.0)
    assert len(shown) == SHOWN_TENANTS_MAX + 1
    assert shown[-1][0] is None
    total = sum(each.generation_tokens_per_s for _, each in shown)
    assert total == pytest.approx(10 * sum(range(1, 5 * TENANTS_MAX + 1)) / recent.window_s(9.0))
    assert sum(len(each.tenants) for each in recent._slices) <= SLICES * TENANTS_MAX
    for second in range(10, 500):
        recent.note_tokens("", 1, 0.01, float(second))
    assert len(recent._slices) == SLICES


def test_a_burst_in_the_first_moment_is_no_infinite_rate():
    recent = Recent(100.0)
    recent.note_tokens("", 7, None, 100.0)
    assert recent.rates(100.0).generation_tokens_per_s == 7 / SLICE_S
