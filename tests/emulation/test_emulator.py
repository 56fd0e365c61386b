"""The emulator itself: what CUDA's functions mean, and the defects that it must find."""

import numpy as np
import pytest
from machine import Machine, modules
from planted import PLANTED_ORDERS, planted

MODULES = modules()


@pytest.fixture(params=MODULES)
def module(request):
    return MODULES[request.param]


@pytest.fixture(params=PLANTED_ORDERS, ids=lambda order: order[0])
def machine(module, request):
    return Machine(module, *request.param)


def expected_of(name):
    if name.endswith("copy wait"):
        return slice(128, 256), np.arange(128)
    count = 64 if name.endswith("block barrier") else 32
    return slice(count), np.arange(count)[::-1]


@pytest.mark.parametrize("name", ["block barrier", "warp barrier", "copy wait"])
def test_a_right_kernel_gives_the_right_result(machine, name):
    memory = planted(machine, name)
    place, values = expected_of(name)
    assert np.array_equal(memory[place], values)


@pytest.mark.parametrize("name", ["block barrier", "warp barrier", "copy wait"])
def test_a_missing_barrier_shows_in_the_result_of_some_order(module, name):
    seen = False
    for order, seed in PLANTED_ORDERS:
        memory = np.arange(256, dtype=np.int32)
        module.set_order(order, seed)
        module.run_planted(name="no " + name, memory=memory)
        place, values = expected_of(name)
        seen |= not np.array_equal(memory[place], values)
    module.take_race()
    assert seen


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("diverging barriers", "different barriers"),
        ("deadlock", "deadlock"),
        ("mask without the caller", "lacks the calling lane"),
        ("misaligned copy", "not aligned"),
        ("too much shared memory", "bytes of shared memory"),
    ],
)
def test_what_cuda_forbids_is_an_error(machine, name, message):
    with pytest.raises(machine.module.EmulationError, match=message):
        planted(machine, name)
    planted(machine, "block barrier")  # and the next launch is none the worse


def test_atomics_and_threads_that_left(machine):
    memory = planted(machine, "atomics")
    assert memory[0] == 3 * 64
    assert memory[1] == 63


def test_warp_functions(machine):
    memory = planted(machine, "warp functions")
    lanes = np.arange(32)
    up = np.maximum(lanes - 1, 0)
    assert np.array_equal(memory[:32], (lanes ^ 5) + 700 + 10000 * up)
    assert np.array_equal(memory[32:64].view(np.uint32), np.full(32, 0x49249249))
    assert np.array_equal(memory[64:96], np.full(32, 31 * 16))
