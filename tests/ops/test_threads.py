"""The thread pool under an operation: idle costs nothing, and a crowded machine changes no result."""

from __future__ import annotations

import os
import threading
import time

import cases
import numpy as np
import pytest
from closeness import assert_same_bits

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
