"""Prompts on Hopper: against NumPy, and bit for bit against the kernels for every device."""

import numpy as np
from attention_cases import Problem
from hopper_wrapper_cases import needs_hopper
from machine import further_case, kernel_case


@kernel_case
@needs_hopper
def hopper_prefill(machine):
    """More tiles than the ring holds, more than one segment, an unwritten end; alone, as every barrier is tried."""
    Problem(64, 1, 1, 16, [(5, 275)]).check(machine, "hopper")


@kernel_case
@needs_hopper
def hopper_products(machine):
    unequal = np.zeros(1, np.int32)
    machine.run("compare_products", {"unequal": unequal}, blocks=2)
    assert unequal[0] == 0


@further_case
@needs_hopper
def hopper_prefill_of_other_shapes(machine):
    Problem(64, 4, 2, 16, [(3, 3), (70, 70), (1, 257)]).check(machine, "hopper")
    Problem(128, 3, 1, 8, [(50, 200)], soft_cap=2.0).check(machine, "hopper")
    Problem(128, 2, 1, 64, [(4, 129), (1, 32)]).check(machine, "hopper")
    Problem(64, 1, 1, 32, [(9, 64)]).check(machine, "hopper")


@further_case
@needs_hopper
def hopper_prefill_in_a_window(machine):
    Problem(64, 2, 1, 16, [(30, 400), (40, 40)], window=40).check(machine, "hopper")
    Problem(64, 1, 1, 8, [(3, 300)], window=1).check(machine, "hopper")


@further_case
@needs_hopper
def hopper_prefill_has_the_bits_of_the_other_kernels(machine):
    """What was decoded may be computed again by it after a preemption."""
    for head_dim, window in [(64, None), (128, 60)]:
        problem = Problem(head_dim, 2, 1, 16, [(20, 300), (1, 77)], window=window)
        whole = problem.ask(machine, "hopper")
        assert np.array_equal(whole, problem.ask(machine, "prefill"))
        assert np.array_equal(whole[13:20], problem.ask(machine, "hopper", chosen=[0], last_rows=7))
        assert np.array_equal(whole[17:20], problem.ask(machine, "segments", chosen=[0], last_rows=3))
        assert np.array_equal(whole[20:], problem.ask(machine, "segments", chosen=[1]))
