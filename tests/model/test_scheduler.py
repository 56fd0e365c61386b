"""The scheduler against a naive twin that follows the written rules with plain lists.

After each event all observables are compared and the scheduler audits itself: promises P1 (conservation), P2 (one
ending), P5 (the oldest always advances), P7 (a removed sequence frees its blocks at once).
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmsrv import _testing

EOS = 0
STOP = 1


@dataclass
class TwinSequence:
    id: int
    prompt: int
    max_tokens: int
    min_tokens: int
    output: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: int = 0

    @property
    def tokens(self):
        return self.prompt + len(self.output)

    @property
    def pending(self):
        return self.tokens - self.computed

    @property
    def decodes(self):
        return self.pending == 1 and bool(self.output)


class Twin:
    """The rules of cpp/sched/scheduler.h, written for reading only."""

    def __init__(self, block_size, blocks, max_sequences, max_step_tokens):
        self.block_size = block_size
        self.free = blocks
        self.watermark = max(1, blocks // 100)
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.running: list[TwinSequence] = []
        self.waiting: list[TwinSequence] = []
        self.ranges: list[tuple[int, int, int, bool]] = []
        self.recomputed = 0

    def blocks_for(self, tokens):
        return -(-tokens // self.block_size)

    def plan(self):
        self.ranges, admitted, preempted = [], [], []
        budget = self.max_step_tokens

        def compute(sequence, count):
            nonlocal budget
            self.ranges.append((sequence.id, sequence.computed, count, count == sequence.pending))
            budget -= count

        for sequence in [s for s in self.running if s.decodes]:
            if sequence not in self.running:
                continue  # it was preempted by a more urgent one
            missing = max(0, self.blocks_for(sequence.tokens) - sequence.blocks)
            while self.free < missing and sequence in self.running:
                victim = self.running.pop()
                self.free += victim.blocks
                self.recomputed += victim.computed
                victim.blocks = victim.computed = 0
                self.waiting.append(victim)
                self.waiting.sort(key=lambda s: s.id)
                preempted.append(victim.id)
            if sequence in self.running:
                self.free -= missing
                sequence.blocks += missing
                compute(sequence, 1)
        for sequence in self.running:
            if not sequence.decodes and budget > 0:
                compute(sequence, min(sequence.pending, budget))
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            needed = self.blocks_for(sequence.tokens)
            if needed + (self.watermark if self.running else 0) > self.free:
                break
            self.waiting.pop(0)
            self.free -= needed
            sequence.blocks = needed
            self.running.append(sequence)
            self.running.sort(key=lambda s: s.id)
            admitted.append(sequence.id)
            compute(sequence, min(sequence.pending, budget))
        return {
            "ranges": self.ranges,
            "admitted": admitted,
            "preempted": preempted,
            "token_count": self.max_step_tokens - budget,
        }

    def commit(self, tokens):
        ended = []
        drawn = iter(enumerate(tokens))
        for id, _, count, samples in self.ranges:
            sequence = next((s for s in self.running if s.id == id), None)
            row, token = next(drawn) if samples else (None, None)
            if sequence is None:
                continue
            sequence.computed += count
            if not samples:
                continue
            sequence.output.append(token)
            reason = None
            if len(sequence.output) >= sequence.min_tokens and token in (EOS, STOP):
                reason = "stop"
            elif len(sequence.output) >= sequence.max_tokens:
                reason = "length"
            ended.append((id, row, token, reason))
            if reason:
                self.remove(id)
        return ended

    def remove(self, id):
        for group in (self.running, self.waiting):
            for sequence in group:
                if sequence.id == id:
                    self.free += sequence.blocks
                    group.remove(sequence)
                    return True
        return False


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        blocks=st.integers(4, 14),
        max_sequences=st.integers(1, 6),
        extra_tokens=st.integers(0, 10),
    )
    def start(self, block_size, blocks, max_sequences, extra_tokens):
        limits = {
            "block_size": block_size,
            "blocks": blocks,
            "max_sequences": max_sequences,
            "max_step_tokens": max_sequences + extra_tokens,
        }
        self.total = blocks
        self.capacity = block_size * blocks
        self.scheduler = _testing.Scheduler(**limits)
        self.twin = Twin(**limits)
        self.alive: set[int] = set()
        self.endings: dict[int, int] = {}

    @rule(data=st.data())
    def add(self, data):
        prompt = data.draw(st.integers(1, max(1, self.capacity - 1)))
        max_tokens = data.draw(st.integers(1, self.capacity - prompt + 1))
        min_tokens = data.draw(st.integers(0, max_tokens))
        id = self.scheduler.add(
            [5] * prompt, max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=[STOP], eos_token_ids=[EOS]
        )
        self.twin.waiting.append(TwinSequence(id, prompt, max_tokens, min_tokens))
        self.alive.add(id)

    @rule(data=st.data())
    def step(self, data):
        plan = self.scheduler.plan()
        assert plan == self.twin.plan()
        assert bool(plan["ranges"]) == bool(self.alive)
        if self.alive:  # P5
            assert min(self.alive) in [id for id, *_ in plan["ranges"]]
            assert min(self.alive) not in plan["preempted"]
        if data.draw(st.integers(0, 9)) == 0 and plan["ranges"]:
            # Removed between plan and commit, as a request that failed in flight is.
            self.end(data.draw(st.sampled_from([id for id, *_ in plan["ranges"]])))
        tokens = [data.draw(st.sampled_from([EOS, STOP, 7, 8, 9])) for *_, samples in plan["ranges"] if samples]
        committed = self.scheduler.commit(tokens)
        assert committed == self.twin.commit(tokens)
        for id, _, _, reason in committed:
            if reason:
                self.alive.discard(id)
                self.endings[id] = self.endings.get(id, 0) + 1

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def remove(self, data):
        self.end(data.draw(st.sampled_from(sorted(self.alive))))

    def end(self, id):
        assert self.scheduler.remove(id)
        assert self.twin.remove(id)
        assert not self.scheduler.remove(id)
        self.alive.discard(id)
        self.endings[id] = self.endings.get(id, 0) + 1

    @invariant()
    def observables_agree(self):
        self.scheduler.audit()
        assert self.scheduler.free_count == self.twin.free
        assert self.scheduler.running == len(self.twin.running)
        assert self.scheduler.waiting == len(self.twin.waiting)
        assert self.scheduler.recomputed_tokens == self.twin.recomputed
        assert self.scheduler.idle == (not self.alive)
        assert all(count == 1 for count in self.endings.values())
        if not self.alive:
            assert self.scheduler.free_count == self.total

    def teardown(self):
        """Everything ends by itself: no livelock."""
        for _ in range(10_000):
            plan = self.scheduler.plan()
            if not plan["ranges"]:
                break
            self.scheduler.commit([7 for *_, samples in plan["ranges"] if samples])
        assert self.scheduler.idle
        assert self.scheduler.free_count == self.total


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)


def run(scheduler, token=7):
    plan = scheduler.plan()
    scheduler.commit([token for *_, samples in plan["ranges"] if samples])
    return plan


def test_prefill_and_decode_share_a_step_and_decodes_go_first():
    scheduler = _testing.Scheduler(block_size=4, blocks=100, max_sequences=4, max_step_tokens=8)
    first = scheduler.add([5] * 4, max_tokens=10)
    assert run(scheduler)["ranges"] == [(first, 0, 4, True)]
    second = scheduler.add([5] * 20, max_tokens=10)
    assert run(scheduler)["ranges"] == [(first, 4, 1, True), (second, 0, 7, False)]
    assert run(scheduler)["ranges"] == [(first, 5, 1, True), (second, 7, 7, False)]
    assert run(scheduler)["ranges"] == [(first, 6, 1, True), (second, 14, 6, True)]


def test_whole_prompt_is_reserved_before_admission():
    scheduler = _testing.Scheduler(block_size=4, blocks=5, max_sequences=4, max_step_tokens=4)
    scheduler.add([5] * 12, max_tokens=4)
    scheduler.add([5] * 12, max_tokens=4)
    plan = run(scheduler)
    assert plan["admitted"] == [1]
    assert scheduler.free_count == 2
    assert scheduler.waiting == 1


def test_the_latest_gives_way_and_is_computed_again():
    scheduler = _testing.Scheduler(block_size=2, blocks=4, max_sequences=2, max_step_tokens=8)
    scheduler.add([5, 5], max_tokens=6)
    scheduler.add([5, 5], max_tokens=6)
    preempted = []
    for _ in range(40):
        plan = run(scheduler)
        preempted += plan["preempted"]
        if scheduler.idle:
            break
    assert scheduler.idle
    assert set(preempted) == {2}
    assert scheduler.recomputed_tokens > 0


def test_a_sequence_that_can_never_fit_is_our_bug():
    scheduler = _testing.Scheduler(block_size=2, blocks=2, max_sequences=2, max_step_tokens=8)
    with pytest.raises(RuntimeError, match="check failed"):
        scheduler.add([5] * 4, max_tokens=2)
