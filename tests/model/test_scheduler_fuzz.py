"""Long random histories from seeds: the watched scheduler, without Hypothesis, in numbers.

Everything is drawn from a case's seed: the limits, how often each kind of event comes, and the events. CI draws the
same cases each time, other runs draw new ones. LLMSRV_TEST_FUZZ_SEED=... runs a single case again.
"""

import os
import random

from twin import EOS, STOP
from watched import WatchedScheduler

EVENTS_MIN = 150_000
EVENTS_PER_CASE = 500
WORDS = (7, 8, 9)
KINDS = ("add", "step", "step_with_a_removal", "remove", "clear", "set_costs", "look_up")


class Case:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.limits = self.draw_limits()
        self.watched = WatchedScheduler(**self.limits)
        self.prompts = {}  # id -> prompt, of the last added
        self.next_id = 0
        self.stops = self.random.choice([0.0, 0.02, 0.2])
        self.ahead = self.random.choice([0.0, 0.5, 1.0])  # how often a plan is made before the one before is committed
        self.long_prompts = self.random.random() < 0.3
        self.alive_max = self.random.choice([4, 12, 30])
        self.weights = [self.random.random() ** 2 for _ in KINDS]
        self.weights[KINDS.index("step")] += 1
        self.weights[KINDS.index("add")] += 0.2
        for kind in ("remove", "step_with_a_removal", "clear"):  # few, or nobody lives long enough to be preempted
            self.weights[KINDS.index(kind)] *= 0.1

    def draw_limits(self):
        choice = self.random.choice
        max_sequences = self.random.randint(1, 8)
        blocks = self.random.randint(3, 30)
        return {
            "block_size": choice([1, 2, 3, 4, 8]),
            "blocks": blocks,
            "swap_blocks": choice([0, 2, blocks // 2, 4 * blocks]),
            "max_sequences": max_sequences,
            "max_step_tokens": max_sequences + choice([0, 1, 5, 40]),
            "prefix_cache": self.random.random() < 0.9,
            "prefix_hash_bits": choice([128] * 5 + [3]),
            "once_first": choice([True, False]),
            "preemption_mode": choice(["auto", "swap", "recompute"]),
            "scheduling_policy": choice(["fcfs", "priority", "fair"]),
            "tenant_weights": choice([{}, {"a": 3.0, "b": 0.5}]),
        }

    def run(self, events):
        for kind in self.random.choices(KINDS, self.weights, k=events):
            getattr(self, kind)()
        return self.watched.run_to_the_end(WORDS[0])

    def add(self):
        if len(self.watched.claims) >= self.alive_max:
            return self.step()
        capacity = self.limits["block_size"] * self.limits["blocks"]
        length = self.random.randint(1, capacity if self.long_prompts else max(1, capacity // 4))
        sibling = self.random.choice([*self.prompts, None])
        prompt = self.prompts.get(sibling) or self.draw_prompt(length)
        rules = {
            "max_tokens": self.random.randint(1, capacity - len(prompt) + 1),
            "salt": self.random.choice(["", "", "salt"]),
            "reads": self.random.random() < 0.9,
            "fills": self.random.random() < 0.9,
            "sibling": sibling,
            "priority": self.random.randint(-1, 1),
            "tenant": self.random.choice("abc"),
        }
        self.watched.add(self.next_id, prompt, min_tokens=self.random.randint(0, rules["max_tokens"]), **rules)
        self.prompts[self.next_id] = prompt
        self.prompts.pop(self.next_id - 6, None)
        self.next_id += 1
        return None

    def draw_prompt(self, length):
        """Prompts share prefixes most of the time."""
        same = self.random.choice(WORDS)
        return [same if self.random.random() < 0.95 else self.random.choice(WORDS) for _ in range(length)]

    def draw_token(self):
        return self.random.choice((EOS, STOP)) if self.random.random() < self.stops else self.random.choice(WORDS)

    def step(self, removed=0):
        self.watched.plan()
        for _ in range(removed):
            self.remove()
        left = self.random.random() < self.ahead
        while len(self.watched.uncommitted) > left:
            self.watched.commit([self.draw_token() for _ in self.watched.uncommitted[0]])

    def step_with_a_removal(self):
        """Removed between plan and commit, as a request that fails in flight is."""
        self.step(removed=1)

    def remove(self):
        if self.watched.claims:
            self.watched.remove(self.random.choice(list(self.watched.claims)))

    def clear(self):
        self.watched.clear_prefix_cache()

    def set_costs(self):
        self.watched.set_costs(self.random.choice([0.0, 1.0]), self.random.choice([0.0, 0.3, 1.0]))

    def look_up(self):
        if self.watched.claims:
            self.watched.look_up(self.random.choice(list(self.watched.claims)))


def run_case(seed):
    try:
        return EVENTS_PER_CASE + Case(seed).run(EVENTS_PER_CASE)
    except Exception as error:
        raise AssertionError(f"run it again with LLMSRV_TEST_FUZZ_SEED={seed}") from error


def test_long_histories_agree_with_the_twin_and_the_memory(record_property):
    if "LLMSRV_TEST_FUZZ_SEED" in os.environ:
        run_case(int(os.environ["LLMSRV_TEST_FUZZ_SEED"]))
        return
    first = 1 if os.environ.get("CI") else random.randrange(1 << 32)
    events = cases = 0
    while events < EVENTS_MIN:
        events += run_case(first + cases)
        cases += 1
    print(f"{events} events in {cases} cases, seeds {first} to {first + cases - 1}")
    record_property("events", events)
    record_property("seeds", f"{first}..{first + cases - 1}")
