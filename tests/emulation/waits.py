"""Leaves each wait of the host code out in turn: something must go wrong, or the wait is there for nothing."""

from __future__ import annotations

import faulthandler
import multiprocessing
import sys

from tiny_models import emulated_device

from llmsrv import _emulated

ORDERS = ["late", "others first"]


def exit_code_of(target, *args):
    """Of a process of its own: what was never copied may lead a kernel anywhere."""

    def run():
        faulthandler.disable()
        target(*args)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    return child.exitcode


def waits_of(run):
    """(all waits of a run, those that nothing would miss). run(plugin) returns what can be compared."""

    def result(order, left_out=""):
        with emulated_device(order) as plugin:
            _emulated.leave_out_wait(left_out)
            return run(plugin)

    _emulated.forget_waits()
    right = {order: result(order) for order in ORDERS}
    assert right["late"] == right["others first"]
    waits = sorted(_emulated.reached_waits())

    def compare(order, wait):
        sys.exit(0 if result(order, wait) == right[order] else 1)

    def is_noticed(order, wait):
        return exit_code_of(compare, order, wait) != 0

    assert not is_noticed("late", "no wait at all")
    return waits, [wait for wait in waits if not any(is_noticed(order, wait) for order in ORDERS)]
