"""What time does to a request, and what is counted of it.

Steps wait at a gate, so that nothing depends on how fast they are: while it is closed the test lets deadlines pass.
"""

import contextlib
import math
import time

import pytest
from harness import MAX_LEN, Result, absorb, collect, engine, pool_of, prompt, request, run, tiny_weights
from hypothesis import given
from hypothesis import strategies as st

from llmsrv import _core, _testing

CODES = _core.status_codes()
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def weights():
    return tiny_weights()


class Gated:
    """An engine whose steps the test counts out."""

    def __init__(self, weights, **options):
        config = _core.EngineConfig(
            **({"max_model_len": MAX_LEN, "kv_cache_memory": 1 << 20, "max_num_seqs": 8, "max_num_batched_tokens": 64,
                "swap_space": 1 << 20, "preemption_mode": "swap"} | options)
        )  # fmt: skip
        self.gate = _testing.Gate()
        self.engine = _testing.gated_engine(weights, config, self.gate)
        self.results = {}

    def submit(self, id, tokens, *, max_tokens=30, **fields):
        stopping = {"max_tokens": max_tokens, "ignore_eos": True}
        made = request(id, tokens, sampling={"temperature": 0.0}, stopping=stopping | fields.pop("stopping", {}))
        for name, value in fields.items():
            setattr(made, name, value)
        key = self.engine.submit(made)
        self.results[key] = Result()
        return key

    def steps(self, count):
        """Lets so many steps pass and waits until the next one is planned."""
        self.gate.close(count)
        assert self.gate.wait_until_reached(PATIENCE_S)

    def steps_until(self, holds):
        for _ in range(1000):
            if holds(self.engine.stats()):
                return
            self.steps(1)
        raise AssertionError("it never came to that")

    def finish(self, *keys):
        """Lets everything pass until these have ended."""
        self.gate.open()
        end = time.monotonic() + PATIENCE_S
        while not all(self.results[key].finals for key in keys):
            assert time.monotonic() < end
            absorb(self.results, self.engine.wait_outputs(100))
        return [self.results[key] for key in keys]

    def tokens_so_far(self, key):
        absorb(self.results, self.engine.wait_outputs(0))
        return self.results[key].token_ids.get(0, [])


@pytest.fixture
def gated(weights):
    with contextlib.ExitStack() as stack:

        def start(**options):
            made = Gated(weights, **options)
            stack.callback(made.engine.shutdown)
            stack.callback(made.gate.open)
            return made

        yield start


def nothing_is_left(stats):
    assert (stats.running, stats.waiting, stats.kv_blocks_held, stats.swap_blocks_held) == (0, 0, 0, 0)
    assert [stats.states[name].current for name in stats.states] == [0] * 5


def sleep_until(moment):
    time.sleep(max(0.0, moment - time.monotonic()) + 0.01)


# --- deadlines ---


def test_a_deadline_passes_while_a_request_runs_lies_in_the_swap_pool_or_waits(weights, gated):
    """All end with the same code, their blocks are free, and the one without a deadline is unharmed."""
    pool = pool_of(weights, blocks=17, block_size=8)
    run_ = gated(**pool)
    run_.gate.close()
    free = run_.submit("free", prompt(1, 40), max_tokens=50)
    submitted = time.monotonic()
    hurried = [run_.submit(name, prompt(2 + i, 40), max_tokens=50, deadline_s=3.0) for i, name in enumerate("abc")]
    run_.steps_until(lambda stats: stats.states["swapped"].current == 1)
    stats = run_.engine.stats()
    assert [stats.states[name].current for name in ("pending", "running", "swapped")] == [1, 2, 1]
    assert time.monotonic() < submitted + 3.0
    running, swapped, _ = hurried
    assert 0 < len(run_.tokens_so_far(swapped)) <= len(run_.tokens_so_far(running)) < 50
    sleep_until(submitted + 3.0)
    results = run_.finish(*hurried)
    assert [result.error.code for result in results] == [CODES["DEADLINE_EXCEEDED"]] * 3
    assert [result.finals for result in results] == [1] * 3
    assert results[2].token_ids == {0: []}
    (result,) = run_.finish(free)
    assert (result.error, len(result.token_ids[0])) == (None, 50)
    stats = run_.engine.stats()
    nothing_is_left(stats)
    assert stats.deadline_drops == 3
    assert stats.requests == {"DEADLINE_EXCEEDED": 3, "length": 1}
    assert (stats.swap_outs, stats.swap_ins) == (1, 0)
    with engine(weights) as alone:
        again = request("free", prompt(1, 40), sampling={"temperature": 0.0},
                        stopping={"max_tokens": 50, "ignore_eos": True})  # fmt: skip
        assert run(alone, [again])[0].token_ids == result.token_ids


def slow_blocker(run_, step_s):
    """A request that takes the only place, after one step of that length with the 64 tokens of its prompt."""
    run_.gate.close()
    blocker = run_.submit("blocker", prompt(6, 64), max_tokens=30)
    assert run_.gate.wait_until_reached(PATIENCE_S)
    time.sleep(step_s)
    run_.steps(1)
    return blocker


def test_a_prompt_that_cannot_be_read_in_time_is_dropped_unless_it_is_cached(gated):
    run_ = gated(max_num_seqs=1)
    known = prompt(5, 90)
    run_.finish(run_.submit("fills the cache", known, max_tokens=1))
    # One long step of many tokens: from here on every token is taken to be slow.
    blocker = slow_blocker(run_, 3.0)
    cost = run_.engine.stats().step_seconds_per_token
    assert cost * 64 > 0.5
    deadline = 0.25 * 90 * cost  # only half of the estimate is counted on
    hopeless = run_.submit("hopeless", prompt(7, 90), max_tokens=1, deadline_s=deadline)
    # Its prompt begins as one that is known, but has to be read all the same.
    other_salt = run_.submit("other salt", known, max_tokens=1, deadline_s=deadline, cache_salt="x")
    cached = run_.submit("cached", known, max_tokens=1, deadline_s=deadline)
    run_.steps(1)
    for key in (hopeless, other_salt):
        run_.tokens_so_far(key)
        result = run_.results[key]
        assert (result.finals, result.error.code) == (1, CODES["DEADLINE_EXCEEDED"])
        assert "cannot be met" in result.error.message
    assert run_.results[cached].finals == 0
    assert run_.engine.stats().deadline_drops == 2
    run_.engine.abort(blocker)
    (result,) = run_.finish(cached)
    assert (result.error, len(result.token_ids[0])) == (None, 1)
    assert result.cached == 80
    stats = run_.engine.stats()
    nothing_is_left(stats)
    assert stats.deadline_drops == 2


def test_what_was_in_the_cache_when_it_came_is_looked_for_again(gated):
    """A request that waits for its latest start is judged anew then: its prompt may be gone from the cache."""
    run_ = gated(max_num_seqs=1)
    known = prompt(5, 90)
    run_.finish(run_.submit("fills the cache", known, max_tokens=1))
    blocker = slow_blocker(run_, 1.0)
    deadline = 0.25 * 90 * run_.engine.stats().step_seconds_per_token
    submitted = time.monotonic()
    cached = run_.submit("cached", known, max_tokens=1, deadline_s=deadline)
    run_.steps(1)
    run_.tokens_so_far(cached)
    assert run_.results[cached].finals == 0
    sleep_until(submitted + deadline)
    (result,) = run_.finish(cached)
    assert result.error.code == CODES["DEADLINE_EXCEEDED"]
    run_.engine.abort(blocker)
    run_.finish(blocker)
    nothing_is_left(run_.engine.stats())


# --- the queue and time limits ---


def test_a_queue_timeout_ends_who_waits_and_not_who_runs(gated):
    run_ = gated(max_num_seqs=1)
    run_.gate.close()
    submitted = time.monotonic()
    runs = run_.submit("runs", prompt(1, 10), max_tokens=20, queue_timeout_s=1.0)
    run_.steps(2)
    waits = run_.submit("waits", prompt(2, 10), queue_timeout_s=0.2)
    patient = run_.submit("patient", prompt(3, 10), max_tokens=5, queue_timeout_s=1e6)
    sleep_until(submitted + 1.0)
    refused, done, after = run_.finish(waits, runs, patient)
    assert refused.error.code == CODES["RESOURCE_EXHAUSTED"]
    assert "queue_timeout" in refused.error.message
    assert refused.token_ids == {0: []}
    assert [len(result.token_ids[0]) for result in (done, after)] == [20, 5]
    stats = run_.engine.stats()
    nothing_is_left(stats)
    assert stats.deadline_drops == 0
    assert stats.requests == {"RESOURCE_EXHAUSTED": 1, "length": 2}


def test_a_time_limit_returns_what_is_done(weights, gated):
    run_ = gated(max_num_seqs=2)
    with engine(weights) as alone:
        whole = request("a", prompt(1, 10), sampling={"temperature": 0.0},
                        stopping={"max_tokens": 60, "ignore_eos": True})  # fmt: skip
        expected = run(alone, [whole])[0].token_ids[0]
    run_.gate.close()
    limit = {"time_limit_s": 1.0}
    limited = run_.submit("limited", prompt(1, 10), max_tokens=60, stopping=limit)
    free = run_.submit("free", prompt(1, 10), max_tokens=60)
    waits = run_.submit("waits", prompt(2, 10), stopping=limit)
    submitted = time.monotonic()
    run_.steps_until(lambda _: len(run_.tokens_so_far(limited)) >= 5)
    sleep_until(submitted + 1.0)
    part, nothing, all_of_it = run_.finish(limited, waits, free)
    assert [each.error for each in (part, nothing, all_of_it)] == [None] * 3
    assert [each.reasons for each in (part, nothing, all_of_it)] == [{0: "time_limit"}] * 2 + [{0: "length"}]
    assert 5 <= len(part.token_ids[0]) < 60
    assert part.token_ids[0] == expected[: len(part.token_ids[0])]
    assert part.usage == (10, len(part.token_ids[0]))
    assert nothing.token_ids == {0: []}
    assert all_of_it.token_ids[0] == expected
    stats = run_.engine.stats()
    nothing_is_left(stats)
    assert stats.requests == {"time_limit": 2, "length": 1}


def test_every_choice_ends_at_the_time_limit(gated):
    run_ = gated()
    run_.gate.close()
    submitted = time.monotonic()
    made = request("n", prompt(1, 10), sampling={"n": 3, "seed": 1},
                   stopping={"max_tokens": 60, "ignore_eos": True, "time_limit_s": 1.0})  # fmt: skip
    key = run_.engine.submit(made)
    run_.results[key] = Result()
    run_.steps(4)
    sleep_until(submitted + 1.0)
    (result,) = run_.finish(key)
    assert result.reasons == dict.fromkeys(range(3), "time_limit")
    assert result.finals == 1
    nothing_is_left(run_.engine.stats())


# --- states ---


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_every_sequence_is_counted_in_every_state_it_was_in(weights, mode):
    pool = pool_of(weights, blocks=14, block_size=8)
    with engine(weights, preemption_mode=mode, **pool) as running:
        run(
            running,
            [request(str(i), prompt(i, 30 + i), sampling={"n": 1 + i % 2, "seed": i},
                     stopping={"max_tokens": 40, "ignore_eos": True}) for i in range(6)],
        )  # fmt: skip
        stats = running.stats()
    entered = {name: state.entered for name, state in stats.states.items()}
    assert stats.preemptions > 0
    assert (entered["swapped"] > 0) == (mode == "swap")
    assert entered["swapped"] == stats.swap_outs == stats.swap_ins
    assert entered["preempted"] == stats.preemptions - stats.swap_outs
    assert entered["pending"] == entered["finished"] == 9
    assert entered["running"] == 9 + stats.preemptions
    nothing_is_left(stats)
    assert all(stats.states[name].seconds > 0 for name, count in entered.items() if count and name != "finished")
    assert stats.states["finished"].seconds == 0


def test_aborted_sequences_are_counted_too(weights):
    pool = pool_of(weights, blocks=14, block_size=8)
    with engine(weights, preemption_mode="swap", **pool) as running:
        keys = [
            running.submit(request(str(i), prompt(i, 30), sampling={"n": 1 + i % 3, "seed": i},
                                   stopping={"max_tokens": 60, "ignore_eos": True}))
            for i in range(30)
        ]  # fmt: skip
        for key in keys[::2]:
            running.abort(key)
        collect(running, keys)
        stats = running.stats()
    entered = {name: state.entered for name, state in stats.states.items()}
    assert entered["pending"] == entered["finished"] == 60
    assert stats.preemptions <= entered["running"] <= 60 + stats.preemptions
    assert entered["swapped"] == stats.swap_outs >= stats.swap_ins
    nothing_is_left(stats)


# --- the cost of a step ---


STEPS = st.lists(st.integers(1, 512), min_size=2, max_size=60)


@given(STEPS, st.floats(1e-5, 1.0), st.floats(1e-6, 1e-2))
def test_the_cost_of_a_token_is_the_slope(tokens, base_s, slope_s):
    cost = _testing.StepCost()
    assert cost.seconds_per_token() is None
    for each in tokens:
        cost.note(each, base_s + slope_s * each)
    weights = [2 ** ((i + 1 - len(tokens)) / _testing.StepCost.HALF_LIFE_STEPS) for i in range(len(tokens))]
    mean = sum(w * t for w, t in zip(weights, tokens, strict=True)) / sum(weights)
    spread = sum(w * t * t for w, t in zip(weights, tokens, strict=True)) / sum(weights) / mean**2 - 1
    if spread > 0.06:
        # What rounding leaves: the base is there in every step, the slope only in their differences.
        assert cost.slope_s() == cost.seconds_per_token()
        assert math.isclose(cost.seconds_per_token(), slope_s, rel_tol=1e-6 + 1e-11 * base_s / slope_s / mean / spread)
    elif spread < 0.04:
        assert cost.slope_s() is None
        whole = sum(w * (base_s + slope_s * t) for w, t in zip(weights, tokens, strict=True))
        assert math.isclose(cost.seconds_per_token(), whole / sum(weights) / mean, rel_tol=1e-9)


@given(st.integers(1, 512), st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=30))
def test_steps_that_are_all_alike_tell_the_whole_cost(tokens, seconds):
    cost = _testing.StepCost()
    for each in seconds:
        cost.note(tokens, each)
    assert min(seconds) / tokens * (1 - 1e-9) <= cost.seconds_per_token() <= max(seconds) / tokens * (1 + 1e-9)


@given(STEPS, st.integers(1, 512))
def test_a_cost_is_never_negative(tokens, most):
    """Also where more tokens seem to take less time."""
    cost = _testing.StepCost()
    for each in tokens:
        cost.note(each, 1.0 + most / each)
    assert cost.slope_s() is None
    assert cost.seconds_per_token() > 0


def test_old_steps_are_forgotten():
    cost = _testing.StepCost()
    for slope in (1.0, 0.001):
        for i in range(1000):
            cost.note(1 + i % 100, slope * (1 + i % 100))
    assert math.isclose(cost.seconds_per_token(), 0.001, rel_tol=0.05)
