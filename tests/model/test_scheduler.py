"""The scheduler against a naive twin that follows the written rules with plain lists.

After each event all observables are compared and the scheduler audits itself: promises P1 (conservation), P2 (one
ending), P5 (the oldest always advances), P7 (a removed sequence frees its blocks at once). Prompts are drawn from two
tokens, so that they share prefixes all the time.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmsrv import _testing

EOS = 0
STOP = 1
TOKENS = (7, 8)


@dataclass(eq=False)
class TwinBlock:
    holders: int = 0
    key: tuple | None = None  # (id of the content before it, its tokens, salt of a first block), while it can be found
    content: int | None = None  # the id of what it ends; ids never come back
    found_again: bool = False


class TwinPool:
    """Free blocks are all alike; cached ones wait in two queues: never found again, found again."""

    def __init__(self, total, block_size):
        self.block_size = block_size
        self.free = [TwinBlock() for _ in range(total)]
        self.queues = ([], [])
        self.known = {}  # key -> block
        self.contents = 0

    @property
    def cached(self):
        return len(self.queues[0]) + len(self.queues[1])

    @property
    def available(self):
        return len(self.free) + self.cached

    def forget(self, block):
        del self.known[block.key]
        block.key = block.content = None

    def take(self, count):
        taken = []
        for _ in range(count):
            if self.free:
                block = self.free.pop()
            else:
                block = (self.queues[0] or self.queues[1]).pop(0)
                self.forget(block)
            block.holders, block.found_again = 1, False
            taken.append(block)
        return taken

    def remember(self, key, block):
        self.contents += 1
        block.key, block.content = key, self.contents
        self.known[key] = block

    def adopt(self, block):
        if block.holders == 0:
            next(queue for queue in self.queues if block in queue).remove(block)
        block.holders += 1
        block.found_again = True

    def give_back(self, blocks):
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0 and block.key:
                self.queues[block.found_again].append(block)
            elif block.holders == 0:
                self.free.append(block)

    def clear(self):
        cached = self.queues[0] + self.queues[1]
        for block in list(self.known.values()):
            self.forget(block)
        self.queues = ([], [])
        self.free += cached
        return len(cached)


@dataclass(eq=False)
class TwinSequence:
    id: int
    prompt: tuple
    max_tokens: int
    min_tokens: int
    salt: str
    reads: bool
    fills: bool
    output: list[int] = field(default_factory=list)
    computed: int = 0
    lost: int = 0
    blocks: list[TwinBlock] = field(default_factory=list)
    indexed: int = 0
    content: int | None = None  # of the last indexed block; None after a first one: it was forgotten, nothing follows

    @property
    def tokens(self):
        return self.prompt + tuple(self.output)

    @property
    def pending(self):
        return len(self.tokens) - self.computed

    @property
    def decodes(self):
        return self.pending == 1 and bool(self.output)


class Twin:
    """The rules of cpp/sched/scheduler.h, written for reading only."""

    def __init__(self, block_size, blocks, max_sequences, max_step_tokens):
        self.block_size = block_size
        self.pool = TwinPool(blocks, block_size)
        self.watermark = max(1, blocks // 100)
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.running: list[TwinSequence] = []
        self.waiting: list[TwinSequence] = []
        self.ranges: list[tuple[int, int, int, bool]] = []
        self.recomputed = self.queries = self.hits = 0

    def blocks_for(self, tokens):
        return -(-tokens // self.block_size)

    def plan(self):
        self.ranges, self.admitted, self.preempted = [], [], []
        self.budget = self.max_step_tokens
        for sequence in [s for s in self.running if s.decodes]:
            if sequence in self.running and self.grow(sequence):
                self.compute(sequence, 1)
        for sequence in self.running:
            if not sequence.decodes and self.budget > 0:
                self.compute(sequence, min(sequence.pending, self.budget))
        while not self.preempted and self.waiting and self.budget > 0 and len(self.running) < self.max_sequences:
            if not self.admit(self.waiting[0]):
                break
        return {
            "ranges": self.ranges,
            "admitted": self.admitted,
            "preempted": self.preempted,
            "token_count": self.max_step_tokens - self.budget,
        }

    def compute(self, sequence, count):
        self.ranges.append((sequence.id, sequence.computed, count, count == sequence.pending))
        self.budget -= count

    def grow(self, sequence):
        missing = max(0, self.blocks_for(len(sequence.tokens)) - len(sequence.blocks))
        while self.pool.available < missing:
            victim = self.running.pop()
            self.pool.give_back(victim.blocks)
            victim.lost = victim.computed
            victim.blocks, victim.computed, victim.indexed, victim.content = [], 0, 0, None
            self.waiting.append(victim)
            self.waiting.sort(key=lambda s: s.id)
            self.preempted.append(victim.id)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.take(missing)
        return True

    def key(self, sequence, index, parent):
        tokens = sequence.tokens[index * self.block_size : (index + 1) * self.block_size]
        return parent, tokens, sequence.salt if index == 0 else ""

    def admit(self, sequence):
        found = []
        while sequence.reads and (len(found) + 1) * self.block_size < len(sequence.tokens):
            parent = found[-1].content if found else None
            block = self.pool.known.get(self.key(sequence, len(found), parent))
            if block is None:
                break
            found.append(block)
        needed = self.blocks_for(len(sequence.tokens)) - len(found)
        room = self.pool.available - sum(block.holders == 0 for block in found)
        if needed + (self.watermark if self.running else 0) > room:
            return False
        for block in found:
            self.pool.adopt(block)
        sequence.blocks = found + self.pool.take(needed)
        sequence.indexed = len(found)
        sequence.content = found[-1].content if found else None
        sequence.computed = len(found) * self.block_size
        self.recomputed += max(0, sequence.lost - sequence.computed)
        sequence.lost = 0
        if sequence.reads:
            self.queries += len(sequence.tokens)
            self.hits += sequence.computed
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.id)
        self.admitted.append(sequence.id)
        self.compute(sequence, min(sequence.pending, self.budget))
        return True

    def index(self, sequence):
        while sequence.fills and (sequence.indexed + 1) * self.block_size <= sequence.computed:
            if sequence.indexed > 0 and sequence.content is None:
                return
            key = self.key(sequence, sequence.indexed, sequence.content)
            if key not in self.pool.known:
                self.pool.remember(key, sequence.blocks[sequence.indexed])
            sequence.content = self.pool.known[key].content
            sequence.indexed += 1

    def commit(self, tokens):
        ended = []
        drawn = iter(enumerate(tokens))
        for id, _, count, samples in self.ranges:
            sequence = next((s for s in self.running if s.id == id), None)
            row, token = next(drawn) if samples else (None, None)
            if sequence is None:
                continue
            sequence.computed += count
            self.index(sequence)
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
                    self.pool.give_back(sequence.blocks)
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
        self.scheduler = _core.Scheduler(**limits)
        self.twin = Twin(**limits)
        self.alive: set[int] = set()
        self.endings: dict[int, int] = {}

    @rule(data=st.data())
    def add(self, data):
        length = data.draw(st.integers(1, max(1, self.capacity - 1)))
        prompt = data.draw(st.sampled_from([[7] * length, [8] * length, [7, 8] * length]))[:length]
        max_tokens = data.draw(st.integers(1, self.capacity - length + 1))
        min_tokens = data.draw(st.integers(0, max_tokens))
        cache = {
            "salt": data.draw(st.sampled_from(["", "", "a"])),
            "reads": data.draw(st.sampled_from([True, True, False])),
            "fills": data.draw(st.sampled_from([True, True, False])),
        }
        id = self.scheduler.add(
            prompt, max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=[STOP], eos_token_ids=[EOS], **cache
        )
        self.twin.waiting.append(TwinSequence(id, tuple(prompt), max_tokens, min_tokens, **cache))
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
        tokens = [data.draw(st.sampled_from([EOS, STOP, *TOKENS * 3])) for *_, samples in plan["ranges"] if samples]
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

    @precondition(lambda self: self.alive)
    @rule()
    def clear_prefix_cache(self):
        for sequence in self.twin.running:
            sequence.content = None
        assert self.scheduler.clear_prefix_cache() == self.twin.pool.clear()

    def end(self, id):
        assert self.scheduler.remove(id)
        assert self.twin.remove(id)
        assert not self.scheduler.remove(id)
        self.alive.discard(id)
        self.endings[id] = self.endings.get(id, 0) + 1

    @invariant()
    def observables_agree(self):
        self.scheduler.audit()
        pool = self.twin.pool
        assert self.scheduler.free_count == len(pool.free)
        assert self.scheduler.cached_count == pool.cached
        assert self.scheduler.free_count + self.scheduler.cached_count + self.scheduler.held_count == self.total
        assert self.scheduler.running == len(self.twin.running)
        assert self.scheduler.waiting == len(self.twin.waiting)
        assert self.scheduler.recomputed_tokens == self.twin.recomputed
        assert (self.scheduler.prefix_queries, self.scheduler.prefix_hits) == (self.twin.queries, self.twin.hits)
        assert self.scheduler.idle == (not self.alive)
        assert all(count == 1 for count in self.endings.values())
        if not self.alive:
            assert self.scheduler.held_count == 0

    def teardown(self):
        """Everything ends by itself: no livelock."""
        for _ in range(10_000):
            plan = self.scheduler.plan()
            if not plan["ranges"]:
                break
            self.scheduler.commit([7 for *_, samples in plan["ranges"] if samples])
        assert self.scheduler.idle
        assert self.scheduler.held_count == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def run(scheduler, token=7):
    plan = scheduler.plan()
    scheduler.commit([token for *_, samples in plan["ranges"] if samples])
    return plan


def run_to_the_end(scheduler):
    while run(scheduler)["ranges"]:
        pass


def test_prefill_and_decode_share_a_step_and_decodes_go_first():
    scheduler = _core.Scheduler(block_size=4, blocks=100, max_sequences=4, max_step_tokens=8)
    first = scheduler.add([5] * 4, max_tokens=10)
    assert run(scheduler)["ranges"] == [(first, 0, 4, True)]
    second = scheduler.add([6] * 20, max_tokens=10)
    assert run(scheduler)["ranges"] == [(first, 4, 1, True), (second, 0, 7, False)]
    assert run(scheduler)["ranges"] == [(first, 5, 1, True), (second, 7, 7, False)]
    assert run(scheduler)["ranges"] == [(first, 6, 1, True), (second, 14, 6, True)]


def test_whole_prompt_is_reserved_before_admission():
    scheduler = _core.Scheduler(block_size=4, blocks=5, max_sequences=4, max_step_tokens=4)
    scheduler.add([5] * 12, max_tokens=4)
    scheduler.add([6] * 12, max_tokens=4)
    plan = run(scheduler)
    assert plan["admitted"] == [1]
    assert scheduler.free_count == 2
    assert scheduler.waiting == 1


def test_the_latest_gives_way_and_is_computed_again():
    scheduler = _core.Scheduler(block_size=2, blocks=4, max_sequences=2, max_step_tokens=8, prefix_cache=False)
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
    scheduler = _core.Scheduler(block_size=2, blocks=2, max_sequences=2, max_step_tokens=8)
    with pytest.raises(RuntimeError, match="check failed"):
        scheduler.add([5] * 4, max_tokens=2)


@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 20])
def test_a_second_prompt_starts_after_its_full_blocks(length):
    """floor((L - 1) / B) * B tokens come from the cache: the last token is always computed."""
    scheduler = _core.Scheduler(block_size=4, blocks=50, max_sequences=4, max_step_tokens=64)
    prompt = list(range(10, 10 + length))
    scheduler.add(prompt, max_tokens=2)
    run_to_the_end(scheduler)
    second = scheduler.add(prompt, max_tokens=2)
    expected = (length - 1) // 4 * 4
    assert scheduler.plan()["ranges"] == [(second, expected, length - expected, True)]
    assert scheduler.cached_prompt_count(second) == expected


def test_two_prompts_in_flight_share_their_blocks():
    scheduler = _core.Scheduler(block_size=4, blocks=50, max_sequences=4, max_step_tokens=64)
    first = scheduler.add([5] * 13, max_tokens=20)
    run(scheduler)
    second = scheduler.add([5] * 13, max_tokens=20)
    run(scheduler)
    assert scheduler.blocks(first)[:3] == scheduler.blocks(second)[:3]
    assert scheduler.blocks(first)[3] != scheduler.blocks(second)[3]


def test_salts_keep_tenants_apart():
    scheduler = _core.Scheduler(block_size=4, blocks=50, max_sequences=4, max_step_tokens=64)
    for salt, cached in [("a", 0), ("a", 12), ("b", 0), ("", 0), ("", 12), ("b", 12)]:
        id = scheduler.add([5] * 13, max_tokens=1, salt=salt)
        scheduler.plan()
        assert scheduler.cached_prompt_count(id) == cached, salt
        scheduler.commit([7])


def test_bypassing_neither_reads_nor_fills():
    scheduler = _core.Scheduler(block_size=4, blocks=50, max_sequences=4, max_step_tokens=64)
    scheduler.add([5] * 13, max_tokens=1, reads=False, fills=False)
    run_to_the_end(scheduler)
    assert scheduler.cached_count == 0
    scheduler.add([5] * 13, max_tokens=1)
    run_to_the_end(scheduler)
    assert scheduler.cached_count == 3
    id = scheduler.add([5] * 13, max_tokens=1, reads=False, fills=False)
    scheduler.plan()
    assert scheduler.cached_prompt_count(id) == 0
