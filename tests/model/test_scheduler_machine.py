"""Random histories with Hypothesis: what it finds, it shrinks. `watched.py` says what is held after each event.

Prompts are drawn from two tokens, so that they share prefixes all the time.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from twin import EOS, STOP
from watched import WatchedScheduler

TOKENS = (7, 8)


class SchedulerMachine(RuleBasedStateMachine):
    policy = "fcfs"

    @initialize(
        block_size=st.sampled_from([1, 2, 4]),
        blocks=st.integers(4, 14),
        swap=st.sampled_from(["none", "tiny", "ample"]),
        max_sequences=st.integers(1, 6),
        extra_tokens=st.integers(0, 10),
        prefix_hash_bits=st.sampled_from([128, 128, 128, 2]),
        once_first=st.booleans(),
        preemption_mode=st.sampled_from(["auto", "swap", "recompute"]),
        tenant_weights=st.sampled_from([{}, {"a": 3.0}, {"b": 0.25}]),
    )
    def start(self, block_size, blocks, swap, max_sequences, extra_tokens, **limits):
        self.capacity = block_size * blocks
        self.prompts = []
        self.watched = WatchedScheduler(
            block_size=block_size,
            blocks=blocks,
            swap_blocks={"none": 0, "tiny": 2, "ample": 4 * blocks}[swap],
            max_sequences=max_sequences,
            max_step_tokens=max_sequences + extra_tokens,
            scheduling_policy=self.policy,
            **limits,
        )

    def draw_alive(self, data):
        return data.draw(st.sampled_from(list(self.watched.claims)))

    def is_alive(self):
        return bool(self.watched.claims)

    def add_prompt(self, data, prompt, sibling=None):
        max_tokens = data.draw(st.integers(1, self.capacity - len(prompt) + 1))
        self.watched.add(
            len(self.prompts),
            prompt,
            max_tokens=max_tokens,
            min_tokens=data.draw(st.integers(0, max_tokens)),
            salt=data.draw(st.sampled_from(["", "", "a"])),
            reads=data.draw(st.sampled_from([True, True, False])),
            fills=data.draw(st.sampled_from([True, True, False])),
            sibling=sibling,
            priority=data.draw(st.integers(0, 2)),
            tenant=data.draw(st.sampled_from("abc")),
        )
        self.prompts.append(prompt)

    @rule(data=st.data())
    def add(self, data):
        length = data.draw(st.integers(1, max(1, self.capacity - 1)))
        self.add_prompt(data, data.draw(st.sampled_from([[7] * length, [8] * length, [7, 8] * length]))[:length])

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def add_sibling(self, data):
        sibling = data.draw(st.integers(max(0, len(self.prompts) - 5), len(self.prompts) - 1))
        self.add_prompt(data, self.prompts[sibling], sibling)

    @rule(data=st.data(), steps=st.integers(1, 5), ahead=st.booleans())
    def step(self, data, steps, ahead):
        for _ in range(steps):
            self.watched.plan()
            if self.is_alive() and data.draw(st.integers(0, 15)) == 0:
                # Removed between plan and commit, as a request that fails in flight is.
                self.watched.remove(self.draw_alive(data))
            while len(self.watched.uncommitted) > ahead:
                drawing = self.watched.uncommitted[0]
                self.watched.commit([data.draw(st.sampled_from([EOS, STOP, *TOKENS * 10])) for _ in drawing])

    @precondition(is_alive)
    @rule(data=st.data())
    def remove(self, data):
        self.watched.remove(self.draw_alive(data))

    @precondition(is_alive)
    @rule()
    def clear_prefix_cache(self):
        self.watched.clear_prefix_cache()

    @rule(swap_s=st.sampled_from([0.0, 0.5, 2.0]), token_s=st.sampled_from([0.0, 0.5, 2.0]))
    def set_costs(self, swap_s, token_s):
        self.watched.set_costs(swap_s, token_s)

    @precondition(is_alive)
    @rule(data=st.data())
    def look_up(self, data):
        self.watched.look_up(self.draw_alive(data))

    def teardown(self):
        if hasattr(self, "watched"):
            self.watched.run_to_the_end(7)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_random_histories_agree_with_the_twin_and_the_memory(policy):
    machine = type("Machine", (SchedulerMachine,), {"policy": policy})
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))
