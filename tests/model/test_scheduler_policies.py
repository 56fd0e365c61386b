"""Who goes first, one rule at a time: levels, fair shares, and a policy of the caller's own."""

import itertools
from collections import Counter

import pytest
from stepping import run_to_the_end, step

from llmsrv import _core, _testing


def test_an_urgent_sequence_takes_a_place_at_once_and_the_victim_comes_back():
    """Every place is taken, blocks are plenty."""
    scheduler = _core.Scheduler(
        block_size=4, blocks=100, swap_blocks=100, max_sequences=2, max_step_tokens=16, preemption_mode="swap",
        scheduling_policy="priority",
    )  # fmt: skip
    for id in (1, 2):
        scheduler.add(id, [5] * 4, max_tokens=9, priority=1)
    step(scheduler)
    scheduler.add(3, [6] * 4, max_tokens=3, priority=1)
    scheduler.add(4, [6] * 4, max_tokens=3, priority=0)
    plan = step(scheduler)
    assert (plan["swapped"], plan["admitted"]) == ([2], [4])
    assert (4, 0, 4, True) in plan["ranges"]
    ended = [id for plan in run_to_the_end(scheduler) for id in plan["resumed"] + plan["admitted"]]
    assert ended == [2, 3], "the victim is older than the other one that waits"
    assert scheduler.stats().recomputed_tokens == 0


def test_an_urgent_sequence_takes_blocks_at_once_and_only_from_those_it_outranks():
    """Places are plenty, every block is taken."""
    scheduler = _core.Scheduler(
        block_size=4, blocks=6, max_sequences=8, max_step_tokens=32, scheduling_policy="priority", prefix_cache=False
    )
    scheduler.add(1, [5] * 5, max_tokens=9, priority=1)
    scheduler.add(2, [5] * 5, max_tokens=9, priority=2)
    step(scheduler)
    scheduler.add(3, [6] * 17, max_tokens=2, priority=1)
    assert step(scheduler)["preempted"] == [], "what the second holds is not enough, so it is left alone"
    scheduler.add(4, [6] * 16, max_tokens=2, priority=0)
    plan = step(scheduler)
    assert (plan["preempted"], plan["admitted"]) == ([2], [4])
    assert plan["ranges"] == [(1, 6, 1, True), (4, 0, 16, True)]


def test_ties_within_a_level_go_by_arrival():
    scheduler = _core.Scheduler(
        block_size=4, blocks=100, max_sequences=2, max_step_tokens=16, scheduling_policy="priority"
    )
    for id, priority in enumerate([5, -1, 5, -1, 0]):
        scheduler.add(id, [5] * 4, max_tokens=2, priority=priority)
    admitted = [id for plan in run_to_the_end(scheduler) for id in plan["admitted"]]
    assert admitted == [1, 3, 4, 0, 2]


# Fair shares


class Streams:
    """Each stream of a tenant sends its next request as soon as its last one has ended."""

    def __init__(self, scheduler, prompt_count=24, output_count=40):
        self.scheduler = scheduler
        self.prompt = [5] * prompt_count
        self.output_count = output_count
        self.ids = itertools.count()
        self.tenants = {}  # id -> tenant
        self.computed = Counter()
        self.ranges = []

    def start(self, tenant, count):
        for _ in range(count):
            id = next(self.ids)
            self.tenants[id] = tenant
            self.scheduler.add(id, self.prompt, max_tokens=self.output_count, tenant=tenant)

    def stop(self, tenant):
        for id in [id for id, name in self.tenants.items() if name == tenant]:
            self.scheduler.remove(id)
            del self.tenants[id]

    def run(self, steps):
        """How many tokens were computed for each tenant in these steps."""
        before = self.computed.copy()
        for _ in range(steps):
            plan = self.scheduler.plan()
            for id, _, count, _ in plan["ranges"]:
                self.computed[self.tenants[id]] += count
            committed = self.scheduler.commit([7 for *_, samples in plan["ranges"] if samples])
            for id, *_, reason in committed:
                if reason:
                    self.start(self.tenants.pop(id), 1)
        return self.computed - before


def fair_streams(*, max_sequences=16, max_step_tokens=64, blocks=1000, weights=None, **more):
    scheduler = _core.Scheduler(
        block_size=4, blocks=blocks, max_sequences=max_sequences, max_step_tokens=max_step_tokens, prefix_cache=False,
        scheduling_policy="fair", tenant_weights=weights or {}, **more,
    )  # fmt: skip
    return Streams(scheduler)


@pytest.mark.parametrize("max_sequences", [4, 16, 64, 100])
@pytest.mark.parametrize("blocks", [100, 2000])
@pytest.mark.parametrize("modes", [{}, {"preemption_mode": "swap", "swap_blocks": 500}])
def test_64_streams_and_4_get_equal_tokens(max_sequences, blocks, modes):
    streams = fair_streams(max_sequences=max_sequences, max_step_tokens=max_sequences + 48, blocks=blocks, **modes)
    streams.start("many", 64)
    streams.start("few", 4)
    streams.run(200)
    computed = streams.run(2000)
    assert computed["few"] > 4000, "its streams get all they can take, but for pauses"
    assert computed["many"] == pytest.approx(computed["few"], rel=0.1)


def test_shares_follow_the_weights():
    streams = fair_streams(weights={"heavy": 3.0})
    streams.start("light", 20)
    streams.start("heavy", 20)
    streams.run(200)
    computed = streams.run(3000)
    assert computed["heavy"] == pytest.approx(3 * computed["light"], rel=0.1)


def test_who_stays_gets_all_when_the_others_leave():
    streams = fair_streams()
    streams.start("stays", 20)
    streams.start("leaves", 20)
    shared = streams.run(500)
    streams.stop("leaves")
    streams.run(10)
    alone = streams.run(500)
    assert alone["stays"] == pytest.approx(shared["stays"] + shared["leaves"], rel=0.1)


def test_who_was_away_does_not_collect_what_was_missed():
    streams = fair_streams()
    streams.start("here", 20)
    streams.start("away", 20)
    streams.run(300)
    streams.stop("away")
    assert streams.run(1000)["here"] > 10_000
    streams.start("away", 20)
    lead = 4 * 64
    ahead = Counter()
    for _ in range(50):
        ahead += streams.run(1)
        assert ahead["away"] - ahead["here"] <= 2 * lead
    later = streams.run(1000)
    assert later["here"] == pytest.approx(later["away"], rel=0.1)


def test_no_tenant_of_many_starves():
    streams = fair_streams(max_sequences=8, max_step_tokens=32)
    for i in range(50):
        streams.start(f"tenant {i}", 1 + i % 5)
    streams.run(3000)
    computed = streams.run(6000)
    assert len(computed) == 50
    assert min(computed.values()) > 0.7 * max(computed.values())


# The caller's own


def test_a_policy_of_the_callers_own_orders_admission_and_victims():
    scheduler = _testing.shortest_prompt_first_scheduler(block_size=2, blocks=9, max_sequences=3, max_step_tokens=64)
    for id, length in enumerate([6, 2, 4, 3]):
        scheduler.add(id, [id + 5] * length, max_tokens=8)
    plans = run_to_the_end(scheduler)
    assert plans[0]["admitted"] == [1, 3, 2]
    preempted = [id for plan in plans for id in plan["preempted"]]
    assert preempted, "the pool is too small for all"
    assert 1 not in preempted
    assert preempted[0] == 2
    scheduler.audit()
