"""Every kernel: right under each order of threads, without a race, and no barrier in it is there for nothing."""

import attention_cases  # noqa: F401  (registers its cases)
import linear_cases  # noqa: F401
import pytest
import row_cases  # noqa: F401
import sampling_cases  # noqa: F401
from machine import BARRIER_CASES, CASES, Machine, modules

MODULES = modules()
ORDERS = [("forward", 1), ("reverse", 1), ("shuffled", 1), ("shuffled", 2)]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@by_name
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}-{order[1]}")
def test_results(case, order):
    case(Machine(MODULES["plain"], *order))


@pytest.mark.skipif("race" not in MODULES, reason="a sanitizer build has no race checker")
@by_name
def test_no_two_threads_race(case):
    case(Machine(MODULES["race"], "shuffled"))


@pytest.mark.skipif("race" not in MODULES, reason="a sanitizer build has no race checker")
@pytest.mark.parametrize("case", BARRIER_CASES, ids=lambda case: case.__name__)
def test_every_barrier_and_wait_is_needed(case):
    """Leaves each out in turn: a wrong result, a race or an error of the emulator must follow in some order."""
    module = MODULES["race"]
    module.forget_sites()
    case(Machine(module, "forward"))
    for site in module.reached_sites():
        assert any(notices(case, Machine(module, *order), site) for order in ORDERS), (
            f"nothing notices that {site} is out"
        )


def notices(case, machine, site):
    with machine.without(site):
        try:
            case(machine)
        except (AssertionError, machine.module.EmulationError):
            return True
    return False
