"""The thread pool under an operation: idle costs nothing, and a crowded machine changes no result."""

from __future__ import annotations

import os
import threading
import time

import cases
import numpy as np
import pytest
from closeness import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from llmsrv import _testing


def test_one_processor_of_each_core():
    found = _testing.core_processors()
    assert found == sorted(set(found))
    assert set(found) <= os.sched_getaffinity(0)


def test_cores_follow_the_affinity():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        assert _testing.core_processors() == [max(allowed)]
    finally:
        os.sched_setaffinity(0, allowed)


def test_an_idle_pool_uses_no_cpu(rng):
    backend = _testing.CpuBackend(4, "")
    matrix = cases.pack(cases.normal(rng, 64, 64), "f32")
    cases.linear(backend, cases.normal(rng, 1, 64), matrix)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("threads", [2, 5])
def test_many_pools_at_once_on_few_cores(rng, threads):
    x, weight = cases.normal(rng, 3, 40), cases.normal(rng, 100, 40)
    matrix = cases.pack(weight, "f32")
    expected = cases.linear(_testing.CpuBackend(1, ""), x, matrix)
    failures = []

    def work():
        backend = _testing.CpuBackend(threads, "")
        for _ in range(200):
            out = np.empty((3, 100), np.float32)
            backend.linear(x, matrix, None, False, out)
            if not np.array_equal(out, expected):
                failures.append(out)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_more_threads_than_panels(rng):
    x, weight = cases.normal(rng, 2, 8), cases.normal(rng, 17, 8)
    matrix = cases.pack(weight, "f32")
    alone = cases.linear(_testing.CpuBackend(1, ""), x, matrix)
    assert_same_bits(cases.linear(_testing.CpuBackend(7, ""), x, matrix), alone, "7 threads")


# --- work that members share ---


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    piece=st.integers(1, 12),
    rounds=st.integers(1, 4),
)
def test_every_item_of_every_share_is_taken_once(counts, piece, rounds):
    taken = [each for by in _testing.work_off_shares(counts, piece, rounds) for each in by]
    items = sorted((owner, item) for owner, begin, end in taken for item in range(begin, end))
    expected = [(owner, item) for owner, count in enumerate(counts) for item in range(count) for _ in range(rounds)]
    assert items == expected
    assert all(end - begin <= piece for _, begin, end in taken)


@pytest.mark.parametrize("stalled", [0, 2])
def test_others_take_over_from_a_member_that_stands_still(stalled):
    taken = _testing.work_off_shares([12, 12, 12], 3, stalled=stalled)
    assert taken[stalled] == [(stalled, 0, 3)]
    others = sorted(each for member, by in enumerate(taken) if member != stalled for each in by)
    assert [each for each in others if each[0] == stalled] == [(stalled, i, i + 3) for i in (3, 6, 9)]
