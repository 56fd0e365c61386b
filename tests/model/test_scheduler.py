"""What the scheduler does, one rule at a time: batching, sharing, copying, swapping."""

import pytest
from stepping import run_to_the_end, step
from watched import WatchedScheduler

from llmsrv import _core


def make(**limits):
    return _core.Scheduler(**{"block_size": 4, "blocks": 50, "max_sequences": 4, "max_step_tokens": 64} | limits)


def test_prefill_and_decode_share_a_step_and_decodes_go_first():
    scheduler = make(max_step_tokens=8)
    scheduler.add(1, [5] * 4, max_tokens=10)
    assert step(scheduler)["ranges"] == [(1, 0, 4, True)]
    scheduler.add(2, [6] * 20, max_tokens=10)
    assert step(scheduler)["ranges"] == [(1, 4, 1, True), (2, 0, 7, False)]
    assert step(scheduler)["ranges"] == [(1, 5, 1, True), (2, 7, 7, False)]
    assert step(scheduler)["ranges"] == [(1, 6, 1, True), (2, 14, 6, True)]


def test_whole_prompt_is_reserved_before_admission():
    scheduler = make(blocks=5, max_step_tokens=4)
    scheduler.add(1, [5] * 12, max_tokens=4)
    scheduler.add(2, [6] * 12, max_tokens=4)
    assert step(scheduler)["admitted"] == [1]
    assert scheduler.free_count == 2
    assert scheduler.stats().waiting == 1


def test_a_sequence_that_can_never_fit_is_our_bug():
    with pytest.raises(RuntimeError, match="check failed"):
        make(block_size=2, blocks=2).add(1, [5] * 4, max_tokens=2)


# Sharing


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 9, 10, 20])
def test_a_second_equal_prompt_computes_one_token(length):
    """Full blocks are shared, and the head of the last one is copied when the index knows it: it was full there."""
    scheduler = make()
    prompt = list(range(10, 10 + length))
    scheduler.add(1, prompt, max_tokens=5)
    run_to_the_end(scheduler)
    scheduler.add(2, prompt, max_tokens=2)
    plan = scheduler.plan()
    # The first computed `length` + 4 tokens, so that the block with its last prompt token is full.
    assert plan["ranges"] == [(2, length - 1, 1, True)]
    assert scheduler.cached_prompt_count(2) == length - 1
    assert len(plan["copies"]) == ((length - 1) % 4 != 0)


@pytest.mark.parametrize(("common", "cached"), [(0, 0), (1, 1), (3, 3), (4, 4), (5, 5), (7, 7), (8, 8), (11, 11)])
def test_full_blocks_and_the_common_head_of_the_next_are_cached(common, cached):
    scheduler = make()
    scheduler.add(1, list(range(10, 22)), max_tokens=1)
    run_to_the_end(scheduler)
    scheduler.add(2, [*range(10, 10 + common), *range(50, 70)], max_tokens=1)
    assert scheduler.findable_prompt_tokens(2) == cached
    plan = scheduler.plan()
    assert scheduler.cached_prompt_count(2) == cached
    assert plan["ranges"] == [(2, cached, common + 20 - cached, True)]
    assert [target for _, target in plan["copies"]] == scheduler.blocks(2)[common // 4 : common // 4 + 1] * (
        common % 4 > 0
    )
    stats = scheduler.stats()
    assert (stats.prefix_hits, stats.copied_tokens) == (cached, cached % 4)
    assert stats.prefix_queries == 12 + common + 20


def test_the_longest_of_several_heads_is_copied():
    scheduler = make()
    for id, prompt in enumerate([[5, 6, 1, 1], [5, 6, 7, 1], [5, 2, 2, 2]]):
        scheduler.add(id, prompt, max_tokens=1)
        step(scheduler)
    scheduler.add(9, [5, 6, 7, 8, 9], max_tokens=1)
    scheduler.plan()
    assert scheduler.cached_prompt_count(9) == 3


def test_two_prompts_in_flight_share_their_blocks():
    scheduler = make()
    for id in (1, 2):
        scheduler.add(id, [5] * 13, max_tokens=20)
        step(scheduler)
    assert scheduler.blocks(1)[:3] == scheduler.blocks(2)[:3]
    assert scheduler.blocks(1)[3] != scheduler.blocks(2)[3]


def test_siblings_share_the_tail_of_their_prompt_as_soon_as_it_is_computed():
    scheduler = make()
    prompt = list(range(10, 21))
    scheduler.add(1, prompt, max_tokens=9)
    step(scheduler)
    scheduler.add(2, prompt, max_tokens=9)  # the unfilled block is nobody else's business
    scheduler.add(3, prompt, max_tokens=9, sibling=1)
    plan = scheduler.plan()
    assert plan["ranges"][1:] == [(2, 8, 3, True), (3, 10, 1, True)]
    assert plan["copies"] == [(scheduler.blocks(1)[2], scheduler.blocks(3)[2])]
    assert scheduler.cached_prompt_count(3) == 10
    assert scheduler.blocks(1)[:2] == scheduler.blocks(3)[:2]


def test_a_sibling_that_comes_back_in_the_same_step_has_nothing_to_copy_yet():
    """Its blocks are filled by swap_ins, which come after the copies."""
    watched = WatchedScheduler(
        block_size=16, blocks=4, swap_blocks=4, max_sequences=3, max_step_tokens=64, preemption_mode="swap"
    )
    for id, length in enumerate([15, 15, 5]):  # the first two grow at once, and there is one block left
        watched.add(id, [id + 5] * length, max_tokens=9)
    while watched.scheduler.stats().swapped == 0:
        watched.commit([7] * len(watched.plan()))
    watched.add(3, [7] * 5, max_tokens=2, sibling=2)
    watched.remove(0)
    watched.remove(1)
    watched.plan()
    assert watched.twin.transitions["resumed"] == [2]
    assert watched.twin.transitions["admitted"] == [3]
    assert watched.scheduler.cached_prompt_count(3) == 0


def test_salts_keep_tenants_apart():
    scheduler = make()
    for id, (salt, cached) in enumerate([("a", 0), ("a", 12), ("b", 0), ("", 0), ("", 12), ("b", 12)]):
        scheduler.add(id, [5] * 13, max_tokens=1, salt=salt)
        scheduler.plan()
        assert scheduler.cached_prompt_count(id) == cached, salt
        scheduler.commit([7])


def test_bypassing_neither_reads_nor_fills():
    scheduler = make()
    scheduler.add(1, [5] * 13, max_tokens=1, reads=False, fills=False)
    run_to_the_end(scheduler)
    assert scheduler.cached_count == 0
    scheduler.add(2, [5] * 13, max_tokens=1)
    run_to_the_end(scheduler)
    assert scheduler.cached_count == 3
    scheduler.add(3, [5] * 13, max_tokens=1, reads=False, fills=False, sibling=2)
    assert scheduler.plan()["copies"] == []
    assert scheduler.cached_prompt_count(3) == 0


# Preemption


def under_pressure(**limits):
    """Two sequences that fit one by one, but not together to their ends; the plans until the second gave way."""
    scheduler = make(block_size=2, blocks=6, max_sequences=2, max_step_tokens=8, prefix_cache=False, **limits)
    for id in (1, 2):
        scheduler.add(id, [5] * 4, max_tokens=8)
    return scheduler


def plans_until_preemption(scheduler):
    while True:
        plan = step(scheduler)
        if plan["preempted"] or plan["swapped"]:
            return plan


def test_the_latest_gives_way_and_is_computed_again():
    scheduler = under_pressure(preemption_mode="recompute", swap_blocks=50)
    plan = plans_until_preemption(scheduler)
    assert (plan["preempted"], plan["swapped"], plan["swap_outs"]) == ([2], [], [])
    assert scheduler.state(2) == "preempted"
    plans = run_to_the_end(scheduler)
    assert all(plan["preempted"] == [] for plan in plans)
    assert scheduler.stats().recomputed_tokens == 6
    assert scheduler.swap_held_count == 0


def test_a_swapped_sequence_goes_on_where_it_was():
    scheduler = under_pressure(preemption_mode="swap", swap_blocks=3)
    plan = plans_until_preemption(scheduler)
    assert (plan["preempted"], plan["swapped"]) == ([], [2])
    assert len(plan["swap_outs"]) == scheduler.swap_held_count == 3
    assert scheduler.state(2) == "swapped"
    resumed = next(plan for plan in run_to_the_end(scheduler) if plan["resumed"])
    assert resumed["swap_ins"] != []
    assert [source for source, _ in resumed["swap_ins"]] == [target for _, target in plan["swap_outs"]]
    assert (2, 6, 1, True) in resumed["ranges"]
    stats = scheduler.stats()
    assert (stats.swap_outs, stats.swap_ins, stats.recomputed_tokens) == (1, 1, 0)
    assert (stats.swapped_out_blocks, stats.swapped_in_blocks) == (3, 3)
    assert scheduler.swap_held_count == 0


@pytest.mark.parametrize("swap_blocks", [0, 2])
def test_a_full_swap_pool_means_recomputation(swap_blocks):
    scheduler = under_pressure(preemption_mode="swap", swap_blocks=swap_blocks)
    plan = plans_until_preemption(scheduler)
    assert (plan["preempted"], plan["swapped"], plan["swap_outs"]) == ([2], [], [])
    run_to_the_end(scheduler)
    assert scheduler.stats().recomputed_tokens == 6


@pytest.mark.parametrize(
    ("swap_s", "token_s", "swaps"),
    [(0.0, 0.0, False), (1.0, 0.9, False), (1.0, 1.0, False), (1.0, 1.1, True), (0.0, 0.1, True)],
)
def test_auto_takes_the_cheaper_by_the_costs(swap_s, token_s, swaps):
    """3 blocks there and back against 6 tokens."""
    scheduler = under_pressure(preemption_mode="auto", swap_blocks=50)
    scheduler.set_costs(swap_s_per_block=swap_s, recompute_s_per_token=token_s)
    plan = plans_until_preemption(scheduler)
    assert (plan["swapped"] == [2]) == swaps
    assert (plan["preempted"] == [2]) == (not swaps)


def test_auto_counts_what_others_hold_as_found_again():
    """Its first two blocks are shared: it would lose 5 tokens of 13, which are cheaper than 4 blocks there and back."""
    for token_s, swaps in [(1.5, False), (1.7, True)]:
        scheduler = make(blocks=5, max_sequences=2, preemption_mode="auto", swap_blocks=50)
        scheduler.set_costs(swap_s_per_block=1.0, recompute_s_per_token=token_s)
        scheduler.add(1, [5] * 9, max_tokens=10)
        step(scheduler)
        scheduler.add(2, [5] * 9, max_tokens=10)
        plan = plans_until_preemption(scheduler)
        assert (plan["swapped"] == [2]) == swaps


def test_a_removed_sequence_frees_its_swap_blocks():
    scheduler = under_pressure(preemption_mode="swap", swap_blocks=3)
    plans_until_preemption(scheduler)
    assert scheduler.remove(2)
    assert scheduler.swap_held_count == scheduler.stats().swapped == 0
