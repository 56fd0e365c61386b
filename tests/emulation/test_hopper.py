"""The shapes of Hopper's kernel for prompts, and what the emulator says of its instructions when they are misused."""

import numpy as np
import pytest
from machine import Machine, modules, poison
from planted import PLANTED_ORDERS

PLAIN = modules()["plain"]


@pytest.fixture(params=PLANTED_ORDERS, ids=lambda order: order[0])
def machine(request):
    return Machine(PLAIN, *request.param)


def planted(machine, name):
    memory = poison(256, "f32").view(np.int32)
    memory[:] = np.arange(256)
    machine.run("run_planted", {"memory": memory}, name=name)
    return memory


def test_right_kernels_give_the_right_results(machine):
    rows = np.arange(256).reshape(8, 8, 4)
    swizzled = [rows[y, np.arange(8) ^ y] for y in range(8)]
    assert np.array_equal(planted(machine, "box copy"), np.ravel(swizzled))
    assert (planted(machine, "product")[:128] == 16).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("barrier that copies may not see", "may not see its barrier"),
        ("too many arrivals", "more arrivals"),
        ("bytes that never come", "deadlock: thread 0 waits at .* for an event"),
        ("box at a wrong place", "multiple of 1024"),
        ("product without a fence", "before they are written"),
        ("product of a wrong pattern", "first row of a pattern"),
    ],
)
def test_misuse_is_an_error(machine, name, message):
    with pytest.raises(machine.module.EmulationError, match=message):
        planted(machine, name)
    planted(machine, "product")  # and the next launch is none the worse


@pytest.mark.parametrize("name", ["box left under way", "product left under way"])
def test_a_block_may_not_end_before_what_it_has_started(name):
    with pytest.raises(PLAIN.EmulationError, match="under way when its block ends"):
        planted(Machine(PLAIN, "forward"), name)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_products_that_round_in_another_way_are_noticed(order):
    PLAIN.set_order(order)
    PLAIN.sum_products_backwards(True)
    try:
        unequal = np.zeros(1, np.int32)
        PLAIN.compare_products(blocks=1, unequal=unequal)
    finally:
        PLAIN.sum_products_backwards(False)
    assert unequal[0] > 100


@pytest.mark.parametrize(("head_dim", "block_size", "has"), [
    (128, 16, True), (64, 64, True), (64, 8, True), (80, 16, False), (256, 16, False), (64, 4, False),
])  # fmt: skip
def test_the_shapes_that_it_takes(head_dim, block_size, has):
    assert PLAIN.has_hopper_prefill(head_dim=head_dim, block_size=block_size) == has
