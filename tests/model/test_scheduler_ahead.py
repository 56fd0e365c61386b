"""Plans that are made before the tokens of the plan before are known, one rule at a time."""

import pytest
from stepping import run_to_the_end, tokens_of
from twin import EOS

from llmsrv import _core


def make(**limits):
    return _core.Scheduler(**{"block_size": 4, "blocks": 50, "max_sequences": 4, "max_step_tokens": 64} | limits)


def plans_ahead(scheduler, token=7, steps_max=10_000):
    """All plans until nothing is left to do, each but the first made before the one before it is committed."""
    plans = [scheduler.plan()]
    while not scheduler.idle:
        assert len(plans) < steps_max, "livelock"
        plans.append(scheduler.plan())
        scheduler.commit(tokens_of(plans[-2], token))
    return plans


def test_a_sequence_decodes_after_a_token_that_nobody_knows():
    scheduler = make()
    scheduler.add(1, [5] * 4, max_tokens=3)
    assert [plan["ranges"] for plan in plans_ahead(scheduler)] == [
        [(1, 0, 4, True)], [(1, 4, 1, True)], [(1, 5, 1, True)], []
    ]  # fmt: skip


def test_what_ends_for_sure_gives_its_place_and_its_blocks_to_the_next():
    scheduler = make(blocks=1, max_sequences=1, prefix_cache=False)
    scheduler.add(1, [5] * 4, max_tokens=1)
    scheduler.add(2, [6] * 4, max_tokens=1)
    assert scheduler.plan()["admitted"] == [1]
    assert scheduler.plan()["admitted"] == [2]
    assert scheduler.state(1) == "finished"
    assert (scheduler.stats().running, scheduler.stats().waiting) == (1, 0)
    assert scheduler.commit([7]) == [(1, 0, 7, "length")]
    assert scheduler.plan()["ranges"] == []
    assert scheduler.commit([8]) == [(2, 0, 8, "length")]
    assert scheduler.idle


def test_a_range_after_the_end_is_passed_over_and_its_blocks_are_free_at_once():
    scheduler = make()
    scheduler.add(1, [5] * 4, max_tokens=9, eos_token_ids=[EOS])
    scheduler.add(2, [6] * 4, max_tokens=9)
    scheduler.plan()
    assert scheduler.plan()["ranges"] == [(1, 4, 1, True), (2, 4, 1, True)]
    assert scheduler.commit([EOS, 7]) == [(1, 0, EOS, "stop"), (2, 1, 7, None)]
    assert scheduler.held_count == 2
    assert scheduler.plan()["ranges"] == [(2, 5, 1, True)]
    assert scheduler.commit([7, 8]) == [(2, 1, 8, None)]
    # The block that the first went on to write in holds nothing that can be found.
    assert scheduler.cached_count == 1


def test_a_removed_sequence_is_passed_over_in_both_plans():
    scheduler = make()
    for id in (1, 2):
        scheduler.add(id, [5] * 4, max_tokens=9)
    scheduler.plan()
    scheduler.plan()
    scheduler.remove(1)
    assert scheduler.commit([7, 7]) == [(2, 1, 7, None)]
    scheduler.plan()
    assert scheduler.commit([8, 8]) == [(2, 1, 8, None)]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_victim_learns_its_token_while_it_waits(mode):
    scheduler = make(block_size=2, blocks=6, max_sequences=2, prefix_cache=False, swap_blocks=8, preemption_mode=mode)
    for id in (1, 2):
        scheduler.add(id, [5] * 4, max_tokens=8)
    plans = [scheduler.plan()]
    while not (plans[-1]["preempted"] or plans[-1]["swapped"]):
        plans.append(scheduler.plan())
        told = scheduler.commit(tokens_of(plans[-2]))
    assert (scheduler.state(2), [id for id, *_ in told]) == ("swapped" if mode == "swap" else "preempted", [1, 2])
    scheduler.commit(tokens_of(plans[-1]))
    resumed = next(plan for plan in run_to_the_end(scheduler) if plan["resumed"] or plan["admitted"])
    assert (2, 6, 1, True) in resumed["ranges"] or (2, 0, 7, True) in resumed["ranges"]


def test_a_victim_may_end_while_it_waits():
    scheduler = make(block_size=2, blocks=6, max_sequences=2, prefix_cache=False, swap_blocks=8, preemption_mode="swap")
    for id in (1, 2):
        scheduler.add(id, [5] * 4, max_tokens=8, eos_token_ids=[EOS])
    plans = [scheduler.plan()]
    while True:
        plans.append(scheduler.plan())
        if plans[-1]["swapped"]:
            break
        scheduler.commit(tokens_of(plans[-2]))
    assert scheduler.commit([7, EOS]) == [(1, 0, 7, None), (2, 1, EOS, "stop")]
    assert scheduler.swap_held_count == scheduler.stats().waiting == 0


def test_no_more_than_one_plan_is_ahead():
    scheduler = make()
    scheduler.add(1, [5] * 4, max_tokens=9)
    scheduler.plan()
    scheduler.plan()
    with pytest.raises(RuntimeError, match="check failed"):
        scheduler.plan()


def test_the_same_tokens_end_all_in_the_same_order_with_and_without():
    def ended(run):
        scheduler = make(blocks=20, max_sequences=3)
        for id in range(8):
            scheduler.add(id, [5 + id] * (3 + id), max_tokens=2 + id % 3)
        return [id for plan in run(scheduler) for id in plan["admitted"]]

    assert ended(plans_ahead) == ended(run_to_the_end) == list(range(8))
