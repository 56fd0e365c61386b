"""No kernel has a race, and no barrier in one is there for nothing. Needs the race checker."""

import pytest
from all_cases import BARRIER_CASES, CASES
from machine import ORDERS, Machine, RaceError, race_checker
from planted import PLANTED_ORDERS, planted

RACE = race_checker()


@pytest.mark.parametrize("order", PLANTED_ORDERS, ids=lambda order: order[0])
@pytest.mark.parametrize("name", ["no block barrier", "no warp barrier", "blocks that collide"])
def test_the_checker_finds_it_in_every_order(order, name):
    with pytest.raises(RaceError, match="race on"):
        planted(Machine(RACE, *order), name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_no_two_threads_race(case):
    case(Machine(RACE, "shuffled"))


@pytest.mark.parametrize("case", BARRIER_CASES, ids=lambda case: case.__name__)
def test_every_barrier_and_wait_is_needed(case):
    """Leaves each out in turn: a wrong result, a race or an error of the emulator must follow in some order."""
    RACE.forget_sites()
    case(Machine(RACE, "forward"))
    for site in RACE.reached_sites():
        assert any(notices(case, Machine(RACE, *order), site) for order in ORDERS), (
            f"nothing notices that {site} is out"
        )


def notices(case, machine, site):
    with machine.without(site):
        try:
            case(machine)
        except (AssertionError, machine.module.EmulationError):
            return True
    return False
