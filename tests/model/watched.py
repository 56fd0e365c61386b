"""A scheduler that is watched: each event goes to its twin too, its plans to a model of memory, and all is compared.

Held after every event: P1 (conservation, in both pools), P2 (one ending), P5 (the first always advances), P6 (limits),
P7 (a removed sequence holds nothing), and that no token is ever computed after wrong keys and values.

One further plan may be made before the one before is committed: `uncommitted` has what these draw.
"""

from kv_memory import KvMemory
from twin import EOS, STOP, Twin, TwinSequence

from llmsrv import _core


class WatchedScheduler:
    """`prefix_hash_bits` below 128 makes misses that no twin foresees: then only memory and promises are held."""

    def __init__(self, *, prefix_hash_bits=128, **limits):
        self.limits = limits
        # The key decides which short hashes collide: with a fixed one a history can be repeated.
        self.scheduler = _core.Scheduler(prefix_hash_bits=prefix_hash_bits, prefix_hash_key=(1, 2), **limits)
        self.twin = Twin(**limits) if prefix_hash_bits == 128 else None
        self.memory = KvMemory(limits["block_size"])
        self.policy = limits.get("scheduling_policy", "fcfs")
        self.claims = {}  # of those alive: id -> (level, id); the smallest is the most urgent
        self.runs = {}  # id -> the names of its runs, see KvMemory
        self.blocks = {}  # id -> its blocks since its last plan
        self.swapped = {}  # id -> its blocks in the swap pool
        self.ended = set()
        self.uncommitted = []  # the drawing ids of plans, the oldest first
        self.unknown = set()  # ids whose last token is drawn and not known
        self.computing = set()  # ids that the newest plan computes

    def add(self, id, prompt, **rules):
        self.scheduler.add(id, list(prompt), stop_token_ids=[STOP], eos_token_ids=[EOS], **rules)
        if self.twin:
            self.twin.add(TwinSequence(id, tuple(prompt), **rules))
        self.claims[id] = (rules.get("priority", 0) if self.policy == "priority" else 0, id)
        self.runs[id] = self.memory.extend([], prompt)
        self.check()

    def remove(self, id):
        assert self.scheduler.remove(id)
        assert not self.scheduler.remove(id)
        if self.twin:
            self.twin.remove(id)
        self.end(id)
        self.check()

    def plan(self):
        """The ids that draw a token in this step."""
        plan = self.scheduler.plan()
        for id in self.uncommitted[0] if self.uncommitted else []:
            if id in self.claims and id not in self.unknown:
                self.memory.extend_unknown(self.runs[id])
                self.unknown.add(id)
        before = self.blocks
        changed = [id for id, *_ in plan["ranges"]] + plan["admitted"] + plan["resumed"]
        self.blocks = before | {id: self.scheduler.blocks(id) for id in changed}
        if self.twin:
            self.compare_plan(plan, before)
        self.check_limits(plan)
        self.check_progress(plan)
        self.memory.move(plan)
        for id, first, count, _ in plan["ranges"]:
            self.memory.compute(self.runs[id], self.blocks[id], first, count)
        self.computing = {id for id, *_ in plan["ranges"]}
        drawing = [id for id, *_, samples in plan["ranges"] if samples]
        if plan["ranges"]:
            self.uncommitted.append(drawing)
        self.check()
        return drawing

    def commit(self, tokens):
        """The tokens of the oldest plan that is not committed."""
        committed = self.scheduler.commit(tokens)
        drawing = self.uncommitted.pop(0)
        assert [(id, row, token) for id, row, token, _ in committed] == [
            (id, row, tokens[row]) for row, id in enumerate(drawing) if id in self.claims
        ]
        if self.twin:
            assert committed == self.twin.commit(tokens)
        for id, _, token, reason in committed:
            if id in self.unknown:
                self.unknown.remove(id)
                self.memory.learn(self.runs[id], token, self.blocks[id] if id in self.computing else None)
            else:
                self.memory.extend(self.runs[id], [token])
            if reason:
                self.end(id)
        self.check()

    def commit_all(self, token):
        while self.uncommitted:
            self.commit([token] * len(self.uncommitted[0]))

    def clear_prefix_cache(self):
        freed = self.scheduler.clear_prefix_cache()
        assert self.scheduler.cached_count == 0
        if self.twin:
            assert freed == self.twin.clear()
        self.check()

    def set_costs(self, swap_s_per_block, recompute_s_per_token):
        self.scheduler.set_costs(swap_s_per_block, recompute_s_per_token)
        if self.twin:
            self.twin.costs = (swap_s_per_block, recompute_s_per_token)

    def look_up(self, id):
        """How much of a prompt is known; only asked of those that never ran."""
        if self.scheduler.state(id) == "pending":
            findable = self.scheduler.findable_prompt_tokens(id)
            assert not self.twin or findable == self.twin.findable(self.twin.alive(id))

    def run_to_the_end(self, token, steps_max=20_000):
        """How many steps it takes until all have ended by themselves: no livelock."""
        for steps in range(steps_max):
            self.commit_all(token)
            self.plan()
            if not self.claims:
                assert self.scheduler.held_count == self.scheduler.swap_held_count == 0
                return steps
        raise AssertionError(f"{self.claims} are still there after {steps_max} steps")

    def end(self, id):
        assert id not in self.ended
        self.ended.add(id)
        self.unknown.discard(id)
        del self.claims[id]
        for books in (self.runs, self.blocks, self.swapped):
            books.pop(id, None)

    def compare_plan(self, plan, before):
        assert plan["ranges"] == self.twin.plan()
        assert {name: plan[name] for name in self.twin.transitions} == self.twin.transitions
        places = self.twin.moves
        assert [source for source, _ in plan["swap_outs"]] == [before[id][i] for id, i in places["swap_outs"]]
        for (id, _), (_, target) in zip(places["swap_outs"], plan["swap_outs"], strict=True):
            assert all(target not in blocks for blocks in self.swapped.values()), "the swap pool gave a block twice"
            self.swapped.setdefault(id, []).append(target)
        assert [target for _, target in plan["copies"]] == [self.blocks[id][i] for id, i in places["copies"]]
        assert plan["swap_ins"] == [(self.swapped[id][i], self.blocks[id][i]) for id, i in places["swap_ins"]]
        for id in plan["resumed"]:
            del self.swapped[id]
        for id in plan["admitted"]:
            assert self.scheduler.cached_prompt_count(id) == self.twin.alive(id).cached_prompt

    def check_limits(self, plan):
        ids = [id for id, *_ in plan["ranges"]]
        assert len(set(ids)) == len(ids) <= self.limits["max_sequences"]
        assert sum(count for _, _, count, _ in plan["ranges"]) == plan["token_count"] <= self.limits["max_step_tokens"]
        assert all(count > 0 for _, _, count, _ in plan["ranges"])
        moved = [id for name in ("admitted", "resumed", "preempted", "swapped") for id in plan[name]]
        assert len(set(moved)) == len(moved), "a sequence changes its state once in a step"

    def check_progress(self, plan):
        ids = [id for id, *_ in plan["ranges"]]
        going_on = [id for id in self.claims if self.scheduler.state(id) != "finished"]
        assert bool(ids) == bool(going_on), "a step is empty only when nothing waits or runs"
        assert all(id in self.unknown for id in self.claims if id not in going_on)
        if self.policy != "fair" and ids:
            first = min(going_on, key=self.claims.get)
            assert first in ids
            assert first not in plan["preempted"] + plan["swapped"]
        elif self.twin and ids:
            assert self.twin.running[0].id in ids

    def check(self):
        scheduler, twin = self.scheduler, self.twin
        scheduler.audit()
        stats = scheduler.stats()
        swap_blocks = self.limits.get("swap_blocks", 0)
        assert scheduler.free_count + scheduler.cached_count + scheduler.held_count == self.limits["blocks"]
        assert scheduler.swap_held_count <= swap_blocks
        assert stats.running <= self.limits["max_sequences"]
        ending = sum(scheduler.state(id) == "finished" for id in self.unknown)
        assert stats.running + stats.waiting + ending == len(self.claims)
        assert scheduler.idle == (not self.claims)
        if not self.claims:
            assert scheduler.held_count == scheduler.swap_held_count == 0
        if not twin:
            return
        assert {name: getattr(stats, name) for name in twin.counters} == twin.counters
        assert (scheduler.free_count, scheduler.cached_count) == (len(twin.pool.free), twin.pool.cached)
        assert scheduler.swap_held_count == swap_blocks - twin.swap_free
        assert scheduler.slots() == twin.slots()
        assert stats.running == len(twin.running)
        assert stats.swapped == sum(sequence.state == "swapped" for sequence in twin.waiting)
        for sequence in twin.running + twin.waiting + twin.ending:
            assert scheduler.state(sequence.id) == sequence.state
