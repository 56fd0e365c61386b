"""Engines of several models on one team of compute threads: neither disturbs, starves or outlives the other."""

import threading
import time
from contextlib import ExitStack, contextmanager

import harness
import pytest
from harness import MAX_LEN, collect, config, prompt, request, run, tiny_weights

from llmsrv import _core, _testing

WAIT_S = 240.0  # more than any of this takes
SEEDS = (0, 1)  # of the two models' weights


@pytest.fixture(scope="module")
def models():
    return [tiny_weights(dtype, seed) for dtype, seed in zip(("bfloat16", "float32"), SEEDS, strict=True)]


def probe(max_tokens=40):
    return request(
        "probe",
        prompt(5, 21),
        sampling={"temperature": 1.0, "seed": 3},
        stopping={"max_tokens": max_tokens, "ignore_eos": True},
        output={"logprobs": True, "top_logprobs": 3},
    )


def busy(max_tokens=MAX_LEN - 8):
    return request("busy", prompt(9, 8), stopping={"max_tokens": max_tokens, "ignore_eos": True})


def wait_until(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_both_give_the_tokens_that_they_give_alone(models):
    """Promise P3, with both models busy and each with others of its own."""
    alone = []
    for weights in models:
        with harness.engine(weights, threads=1) as engine:
            alone.append(run(engine, [probe()])[0])
    assert alone[0].token_ids != alone[1].token_ids

    team = _core.Team(2)
    with ExitStack() as stack:
        engines = [stack.enter_context(harness.engine(weights, team=team)) for weights in models]
        mixes = [
            [
                request(f"other-{i}", prompt(i, 5 + 9 * i), sampling={"seed": i}, stopping={"max_tokens": 10 + 5 * i})
                for i in range(6)
            ]
            for _ in engines
        ]
        keys = []
        for engine, others in zip(engines, mixes, strict=True):
            submitted = [engine.submit(each) for each in [*others[:3], probe(), *others[3:]]]
            keys.append((submitted, submitted[3]))
        for engine, (submitted, key), expected in zip(engines, keys, alone, strict=True):
            found = collect(engine, submitted)[key]
            assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)


@contextmanager
def pair_on(team, gate, models):
    """Two engines on the team; the steps of the first wait at the gate when the test says so."""
    with ExitStack() as stack:
        first = _testing.gated_engine(models[0], config(), gate, team=team)
        stack.callback(first.shutdown)
        second = stack.enter_context(harness.engine(models[1], team=team))
        stack.callback(gate.open)  # whatever happened: shutdown waits for a step that waits
        yield first, second


@pytest.fixture
def pair(models):
    """The same on a team of their own."""
    gate = _testing.Gate()
    with pair_on(_core.Team(2), gate, models) as (first, second):
        yield first, gate, second


def test_one_computes_at_a_time(pair):
    first, gate, second = pair
    gate.close()
    first.submit(busy())
    assert gate.wait_until_reached(WAIT_S)
    key = second.submit(probe(4))
    time.sleep(0.1)
    assert second.stats().steps == 0
    gate.open()
    assert collect(second, [key])[key].reasons == {0: "length"}


def test_turns_are_given_in_the_order_of_asking():
    team, order, waiting = _core.Team(1), [], 8
    first = _testing.Turn(team)

    def ask(number):
        turn = _testing.Turn(team)
        order.append(number)
        turn.release()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(waiting)]
    for already, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda already=already: team.asking == already + 1)
    assert order == []
    first.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert (order, team.asking) == (list(range(waiting)), 0)


def test_a_busy_model_leaves_every_other_turn_to_the_other(models):
    """While one publishes it asks for no turn, so the other may have several; but who asks is next."""
    team, gate = _core.Team(2), _testing.Gate()
    with pair_on(team, gate, models) as (first, second):
        run(second, [probe(1)])  # from now on it asks for turns only for steps
        gate.close()
        first.submit(busy())
        assert gate.wait_until_reached(WAIT_S)
        key, before = second.submit(probe(8)), 0

        def is_done():
            return second.stats().requests == {"length": 2}

        while True:
            wait_until(lambda: team.asking == 2 or is_done())  # the first one computes, the second one waits
            if is_done():
                break
            assert second.stats().steps > before
            before = second.stats().steps
            gate.close(1)
            assert gate.wait_until_reached(WAIT_S)
        assert before > 0
        assert first.stats().running == 1
        gate.open()
        collect(second, [key])


def test_an_idle_model_takes_no_turns(pair):
    first, _, second = pair
    run(second, [probe(4)])
    key = first.submit(busy())
    steps = second.stats().steps
    collect(first, [key])
    assert second.stats().steps == steps


def test_a_model_that_fails_gives_its_turn_back(models):
    team = _core.Team(2)
    faulty = _testing.faulty_engine(models[0], config(), good_steps=2, team=team)
    with harness.engine(models[1], team=team) as healthy:
        key = faulty.submit(busy())
        assert collect(faulty, [key])[key].error.code == _core.status_codes()["INTERNAL"]
        assert run(healthy, [probe(4)])[0].reasons == {0: "length"}
    faulty.shutdown()


def test_a_model_that_nobody_reads_holds_up_no_other(models):
    """More outputs than its outbox holds: it waits for a reader, but not in its turn."""
    team = _core.Team(2)
    with harness.engine(models[0], team=team, max_num_seqs=64) as unread, harness.engine(models[1], team=team) as other:
        for number in range(12):
            stopping = {"max_tokens": MAX_LEN - 1, "ignore_eos": True}
            unread.submit(request(str(number), [3], sampling={"n": 128}, stopping=stopping))
        wait_until(lambda: unread.stats().generation_tokens >= 1 << 16)
        time.sleep(0.1)
        assert run(other, [probe(4)])[0].reasons == {0: "length"}


def test_one_ends_while_the_other_computes(pair):
    first, gate, second = pair
    gate.close()
    key = first.submit(busy())
    assert gate.wait_until_reached(WAIT_S)
    waiting = second.submit(probe(4))
    gate.open()
    second.shutdown()
    assert collect(second, [waiting])[waiting].finals == 1
    assert collect(first, [key])[key].reasons == {0: "length"}
