"""A device that works behind its caller: steps are planned and launched before the tokens of the ones before are known.

The device is the CPU, which here takes such steps and hands out its tokens as late as the engine asks for them.
"""

import contextlib
import itertools
import json
import random

import harness
import pytest
from harness import EOS, collect, config, pool_of, prompt, request, run, tiny_weights

from llmsrv import _core, _testing
from llmsrv.replay import RecordError, replay_file

SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.8, "seed": 4, "n": 3, "presence_penalty": 0.9},
    {"temperature": 1.0, "seed": 5, "top_k": 9, "top_p": 0.8},
]


@pytest.fixture(scope="module")
def weights():
    return tiny_weights()


@contextlib.contextmanager
def engine_ahead(weights, gate=None, **options):
    gate = gate or _testing.Gate()
    running = _testing.gated_engine(weights, config(**options), gate, is_behind=True)
    try:
        yield running
    finally:
        gate.open()
        running.shutdown()


def traffic(count, **stopping):
    """All kinds of ends: some ids stop a request, so that many rows turn out to have been computed for nobody."""
    return [
        request(
            f"r{i}", prompt(i % 4, 7 + 9 * (i % 5)), sampling=SAMPLING[i % len(SAMPLING)],
            stopping={"max_tokens": [1, 2, 40, 45][i % 4 if i % 3 else 3], "min_tokens": i % 2,
                      "stop_token_ids": list(range(10 + 2 * (i % 40), 14 + 2 * (i % 40)))} | stopping,
            output={"logprobs": True, "top_logprobs": 2, "prompt_logprobs": i % 5 == 0},
        )
        for i in range(count)
    ]  # fmt: skip


def essence(results):
    return [(each.token_ids, each.logprobs, each.prompt_logprobs, each.reasons, each.usage) for each in results]


def settled(running):
    """Statistics when nothing is in flight."""
    run(running, [request("last", prompt(1, 3), stopping={"max_tokens": 1})])
    return running.stats()


def test_the_next_step_is_launched_before_a_token_is_told(weights):
    gate = _testing.Gate()
    gate.close(more_steps=1)
    with engine_ahead(weights, gate) as running:
        key = running.submit(request("a", prompt(1, 5), stopping={"max_tokens": 3, "ignore_eos": True}))
        assert gate.wait_until_reached(60)
        assert running.stats().steps == 2
        assert running.stats().generation_tokens == 0
        assert running.wait_outputs(0) == []
        gate.open()
        assert len(collect(running, [key])[key].token_ids[0]) == 3
        # The third was known to be the last one when the step after it would have been planned.
        assert running.stats().steps == 3


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_the_tokens_are_those_of_the_cpu(weights, mode, chunk):
    """With preemptions, several choices, penalties, and stops in the middle."""
    options = {"preemption_mode": mode, "max_num_batched_tokens": chunk, **pool_of(weights, blocks=14)}
    requests = traffic(24)
    with harness.engine(weights, **options) as running:
        expected = run(running, requests)
    with engine_ahead(weights, **options) as running:
        actual = run(running, requests)
        stats = settled(running)
    assert essence(actual) == essence(expected)
    assert stats.preemptions > 0
    assert (stats.swap_outs > 0) == (mode == "swap")
    assert stats.kv_blocks_held == stats.swap_blocks_held == stats.running == stats.waiting == 0
    assert stats.generation_tokens == sum(len(ids) for each in actual for ids in each.token_ids.values()) + 1
    assert any("stop" in each.reasons.values() for each in actual)
    assert any("length" in each.reasons.values() for each in actual)


def test_an_eos_in_the_middle_leaves_the_others_as_they_are(weights):
    requests = [
        request(f"r{i}", prompt(i, 9), sampling={"seed": i, "logit_bias": {EOS: 2.5}}, stopping={"max_tokens": 40})
        for i in range(12)
    ]
    with harness.engine(weights) as running:
        expected = run(running, requests)
    with engine_ahead(weights) as running:
        assert essence(run(running, requests)) == essence(expected)
    ends = [(each.reasons[0], len(each.token_ids[0])) for each in expected]
    assert sum(reason == "stop" and count > 2 for reason, count in ends) >= 3


def test_choices_that_follow_the_first_token_are_not_slept_through(weights):
    """The first one's only token is known when there was nothing else to plan."""
    with engine_ahead(weights) as running:
        (result,) = run(running, [request("n", prompt(1, 5), sampling={"n": 3}, stopping={"max_tokens": 1})])
    assert result.finals == 1
    assert [len(ids) for ids in result.token_ids.values()] == [1, 1, 1]


def test_aborts_at_random_moments_leave_nothing_behind(weights):
    choose = random.Random(1)
    with engine_ahead(weights, max_num_batched_tokens=8, **pool_of(weights, blocks=14)) as running:
        keys = []
        for each in traffic(120):
            keys.append(running.submit(each))
            for victim in choose.sample(keys, min(len(keys), 2)):
                if choose.random() < 0.4:
                    running.abort(victim)
        results = collect(running, keys)
        assert all(result.finals == 1 for result in results.values())
        stats = settled(running)
    assert stats.kv_blocks_held == stats.swap_blocks_held == 0
    assert sum(stats.requests.values()) == 121


def test_shutdown_with_a_step_in_flight_ends_everything_once(weights):
    with engine_ahead(weights) as running:
        keys = [running.submit(request(str(i), prompt(i, 10), stopping={"ignore_eos": True})) for i in range(20)]
        while running.stats().steps < 4:
            running.wait_outputs(10)
        running.shutdown()
        outputs = running.wait_outputs(0)
    assert sorted(output.request for output in outputs if output.final) == sorted(keys)


@pytest.mark.parametrize("good_steps", [0, 1, 2, 5])
def test_a_device_that_fails_ends_every_request_once(weights, good_steps):
    running = _testing.faulty_engine(weights, config(), good_steps=good_steps, is_behind=True)
    keys = []
    for i in range(6):
        with contextlib.suppress(_core.StatusError):  # it failed before the last ones came
            keys.append(running.submit(request(str(i), prompt(i, 30), stopping={"ignore_eos": True})))
    for result in collect(running, keys).values():
        assert (result.finals, result.error.code) == (1, _core.status_codes()["INTERNAL"])
    assert "the device is gone" in running.stats().failure
    running.shutdown()


def write(path, events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_what_was_planned_ahead_is_recorded_and_planned_again(weights, tmp_path, policy):
    path = tmp_path / "steps"
    options = {"scheduling_policy": policy, "max_num_batched_tokens": 24, **pool_of(weights, blocks=14)}
    with engine_ahead(weights, trace_steps=str(path), **options) as running:
        requests = traffic(24)
        for i, each in enumerate(requests):
            each.priority, each.tenant = (i % 3 if policy == "priority" else 0), "ab"[i % 2]
        keys = [running.submit(each) for each in requests]
        running.abort(keys[5])
        collect(running, keys)
        running.clear_prefix_cache()
        run(running, traffic(3))
        assert running.stats().preemptions > 0
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [kind for event in events for kind in event if kind in ("plan", "commit")]
    assert ("plan", "plan") in itertools.pairwise(kinds)
    lines = []
    assert replay_file(path, report=lines.append), lines
    # Another scheduler decides otherwise, and is followed to the end.
    limits = events[0]["limits"]
    for changes in ({"max_step_tokens": 16}, {"blocks": 40}, {"blocks": 12}):
        write(path, [{"limits": limits | changes}, *events[1:]])
        assert not replay_file(path, keep_going=True, report=lines.append)
    # No more than one plan may be ahead.
    first = next(i for i, event in enumerate(events) if event.get("plan", {}).get("ranges"))
    write(path, [*events[: first + 1], events[first], events[first]])
    with pytest.raises(RecordError, match="two plans before it were never committed"):
        replay_file(path, keep_going=True, report=lines.append)
