"""Every kernel gives the right result under each order of threads."""

import pytest
from all_cases import CASES
from machine import ORDERS, Machine, modules

PLAIN = modules()["plain"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}-{order[1]}")
def test_results(case, order):
    case(Machine(PLAIN, *order))
