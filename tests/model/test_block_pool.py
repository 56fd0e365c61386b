"""The block pool against a naive twin: a set of held ids per owner."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llmsrv import _testing

TOTAL = 12


class PoolMachine(RuleBasedStateMachine):
    """Promise P1: free + held == total, and no block has two owners."""

    lists = Bundle("lists")

    def __init__(self):
        super().__init__()
        self.pool = _testing.BlockPool(TOTAL)
        self.twin: list[tuple[object, set[int]]] = []

    @rule(target=lists, count=st.integers(1, TOTAL + 2))
    def take(self, count):
        free_before = self.pool.free_count
        taken = self.pool.take(count)
        if count > free_before:
            assert taken is None
            assert self.pool.free_count == free_before, "a refused take must take nothing"
            return None
        ids = set(taken.ids)
        assert len(taken.ids) == len(ids) == count
        assert all(0 <= block < TOTAL for block in ids)
        assert all(ids.isdisjoint(held) for _, held in self.twin)
        self.twin.append((taken, ids))
        return taken

    @rule(held=consumes(lists))
    def clear(self, held):
        if held is None:
            return
        held.clear()
        self.twin = [(owner, ids) for owner, ids in self.twin if owner is not held]

    @rule(first=lists, second=consumes(lists))
    def append(self, first, second):
        if first is None or second is None or first is second:
            return
        expected = first.ids + second.ids
        first.append(second)
        assert first.ids == expected
        assert second.ids == []
        moved = next(ids for owner, ids in self.twin if owner is second)
        self.twin = [(owner, ids | moved if owner is first else ids) for owner, ids in self.twin if owner is not second]

    @invariant()
    def counts_agree(self):
        held = sum(len(ids) for _, ids in self.twin)
        assert self.pool.held_count == held
        assert self.pool.free_count + self.pool.held_count == self.pool.total == TOTAL
        self.pool.audit()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_list_gives_its_blocks_back_when_it_goes():
    pool = _testing.BlockPool(4)
    held = pool.take(3)
    assert pool.free_count == 1
    del held
    assert pool.free_count == 4


def test_take_needs_a_positive_count():
    with pytest.raises(RuntimeError, match="count > 0"):
        _testing.BlockPool(4).take(0)
