"""The engine's other promises: one ending (P2), isolation (P4), bounds (P6), cancellation in every phase (P7)."""

import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from harness import (
    EOS,
    MAX_LEN,
    VOCAB,
    Result,
    absorb,
    collect,
    engine,
    prompt,
    request,
    run,
    tiny_spec,
    tiny_weights,
    weights_with_a_nan_row,
)

from llmsrv import _core, _testing


@pytest.fixture(scope="module")
def weights():
    return tiny_weights()


def settled(running):
    """Stats once nothing runs; the last update may be a step away."""
    for _ in range(200):
        stats = running.stats()
        if stats.running == stats.waiting == stats.kv_blocks_held == 0:
            return stats
        time.sleep(0.01)
    raise AssertionError(f"{stats.running} run, {stats.waiting} wait, {stats.kv_blocks_held} blocks are held")


def test_ends_by_length_stop_id_and_eos(weights):
    with engine(weights) as running:
        (free,) = run(running, [request("a", prompt(3, 10), sampling={"temperature": 0.0}, stopping={"max_tokens": 8})])
        tokens = free.token_ids[0]
        assert (free.reasons[0], len(tokens)) == ("length", 8)
        stop = tokens[4]
        (stopped,) = run(
            running,
            [request("b", prompt(3, 10), sampling={"temperature": 0.0},
                     stopping={"max_tokens": 8, "stop_token_ids": [stop]})],
        )  # fmt: skip
        assert stopped.reasons[0] == "stop"
        assert stopped.token_ids[0] == tokens[: tokens.index(stop) + 1]
        stats = settled(running)
    assert stats.requests == {"length": 1, "stop": 1}
    with engine(weights, eos_token_ids=[stop]) as running:
        by_eos, ignoring = run(
            running,
            [request("c", prompt(3, 10), sampling={"temperature": 0.0}, stopping={"max_tokens": 8}),
             request("d", prompt(3, 10), sampling={"temperature": 0.0},
                     stopping={"max_tokens": 8, "ignore_eos": True})],
        )  # fmt: skip
    assert by_eos.token_ids[0] == stopped.token_ids[0]
    assert ignoring.token_ids[0] == tokens


def test_no_stop_before_min_tokens(weights):
    allowed = {"temperature": 0.0, "logit_bias": {EOS: 100.0}}
    with engine(weights) as running:
        now, later = run(
            running,
            [request("now", prompt(1, 5), sampling=allowed, stopping={"max_tokens": 10}),
             request("later", prompt(1, 5), sampling=allowed, stopping={"max_tokens": 10, "min_tokens": 4})],
        )  # fmt: skip
    assert now.token_ids[0] == [EOS]
    assert len(later.token_ids[0]) == 4
    assert later.token_ids[0][-1] == EOS
    assert EOS not in later.token_ids[0][:-1]


def test_max_tokens_defaults_to_what_the_context_leaves(weights):
    with engine(weights) as running:
        (result,) = run(running, [request("a", prompt(1, MAX_LEN - 7), stopping={"ignore_eos": True})])
    assert len(result.token_ids[0]) == 7
    assert result.usage == (MAX_LEN - 7, 7)


BAD = [
    ({"prompt": []}, "input"),
    ({"prompt": [-1]}, "input.token_ids[0]"),
    ({"prompt": [3, VOCAB]}, "input.token_ids[1]"),
    ({"prompt": [3] * MAX_LEN}, "input"),
    ({"id": ""}, "request_id"),
    ({"id": "x" * 300}, "request_id"),
    ({"sampling.temperature": -0.1}, "sampling.temperature"),
    ({"sampling.temperature": math.nan}, "sampling.temperature"),
    ({"sampling.temperature": math.inf}, "sampling.temperature"),
    ({"sampling.top_p": 0.0}, "sampling.top_p"),
    ({"sampling.top_p": 1.1}, "sampling.top_p"),
    ({"sampling.top_p": math.nan}, "sampling.top_p"),
    ({"sampling.top_k": -1}, "sampling.top_k"),
    ({"sampling.min_p": 1.5}, "sampling.min_p"),
    ({"sampling.frequency_penalty": 2.5}, "sampling.frequency_penalty"),
    ({"sampling.presence_penalty": -2.5}, "sampling.presence_penalty"),
    ({"sampling.repetition_penalty": 0.0}, "sampling.repetition_penalty"),
    ({"sampling.n": 0}, "sampling.n"),
    ({"sampling.n": 10_000}, "sampling.n"),
    ({"sampling.logit_bias": {VOCAB: 1.0}}, f"sampling.logit_bias[{VOCAB}]"),
    ({"sampling.logit_bias": {3: 1e9}}, "sampling.logit_bias[3]"),
    ({"sampling.logit_bias": {3: math.nan}}, "sampling.logit_bias[3]"),
    ({"sampling.allowed_token_ids": [VOCAB]}, "sampling.allowed_token_ids[0]"),
    ({"sampling.allowed_token_ids": [EOS], "stopping.min_tokens": 2}, "sampling.allowed_token_ids"),
    ({"stopping.max_tokens": 0}, "stopping.max_tokens"),
    ({"stopping.max_tokens": MAX_LEN}, "stopping.max_tokens"),
    ({"stopping.max_tokens": 2, "stopping.min_tokens": 3}, "stopping.min_tokens"),
    ({"stopping.min_tokens": -1}, "stopping.min_tokens"),
    ({"stopping.min_tokens": MAX_LEN - 2}, "stopping.min_tokens"),
    ({"stopping.min_tokens": 2**31 - 1}, "stopping.min_tokens"),
    ({"stopping.max_tokens": 2**31 - 1}, "stopping.max_tokens"),
    ({"stopping.stop_token_ids": list(range(VOCAB)), "stopping.min_tokens": 2}, "stopping.stop_token_ids"),
    ({"stopping.stop_token_ids": [3] * 1025}, "stopping.stop_token_ids"),
    ({"sampling.allowed_token_ids": [3] * (VOCAB + 1)}, "sampling.allowed_token_ids"),
    ({"stopping.stop_token_ids": [-5]}, "stopping.stop_token_ids[0]"),
    ({"stopping.stop_strings": [""]}, "stopping.stop_strings[0]"),
    ({"output.top_logprobs": 21, "output.logprobs": True}, "output.top_logprobs"),
    ({"output.top_logprobs": 3}, "output.top_logprobs"),
    ({"queue_timeout_s": 0.0}, "queue_timeout"),
    ({"queue_timeout_s": -1.0}, "queue_timeout"),
    ({"queue_timeout_s": math.inf}, "queue_timeout"),
    ({"stopping.time_limit_s": 0.0}, "stopping.time_limit"),
    ({"stopping.time_limit_s": math.nan}, "stopping.time_limit"),
    ({"deadline_s": -0.5}, "deadline"),
    ({"deadline_s": math.nan}, "deadline"),
    ({"tenant": "x" * 1025}, "tenant"),
]


def spoil(id, changes):
    parts = {"sampling": {}, "stopping": {}, "output": {}}
    for name, value in changes.items():
        if "." in name:
            part, key = name.split(".")
            parts[part][key] = value
    made = request(id, [3, 4, 5], **parts)
    for name, value in changes.items():
        if "." not in name:
            setattr(made, name, value)
    return made


def test_every_bad_field_is_named_and_a_stream_beside_is_unharmed(weights):
    canary = request("canary", prompt(9, 20), sampling={"seed": 3}, stopping={"max_tokens": 70, "ignore_eos": True})
    with engine(weights) as running:
        (expected,) = run(running, [canary])
        key = running.submit(canary)
        for number, (changes, field) in enumerate(BAD):
            bad = spoil(f"bad-{number}", changes)
            assert field in [path for path, _ in running.validate(bad)], changes
            with pytest.raises(_core.StatusError) as refused:
                running.submit(bad)
            assert refused.value.code == _core.status_codes()["INVALID_ARGUMENT"]
            assert field in [path for path, _ in refused.value.violations]
        assert collect(running, [key])[key].token_ids == expected.token_ids
        stats = settled(running)
    assert stats.healthy
    assert stats.requests == {"length": 2, "INVALID_ARGUMENT": len(BAD)}


def test_a_hostile_request_is_refused_quickly_and_briefly(weights):
    million = 1_000_000
    bad = spoil(
        "bad",
        {"sampling.allowed_token_ids": [3] * million, "stopping.stop_token_ids": [4] * (million - 1) + [3],
         "stopping.min_tokens": 2, "stopping.stop_strings": [""] * million},
    )  # fmt: skip
    with engine(weights) as running:
        started = time.monotonic()
        assert len(running.validate(bad)) <= 64
        assert time.monotonic() - started < 2


def test_a_stop_token_may_be_all_that_is_allowed_when_the_first_token_may_stop(weights):
    with engine(weights) as running:
        (result,) = run(
            running, [request("a", prompt(1, 5), sampling={"allowed_token_ids": [EOS]}, stopping={"min_tokens": 1})]
        )
    assert result.token_ids == {0: [EOS]}


def test_all_violations_come_at_once(weights):
    with engine(weights) as running:
        bad = spoil("bad", {"sampling.temperature": -1.0, "sampling.top_p": 2.0, "stopping.max_tokens": 0})
        assert {path for path, _ in running.validate(bad)} == {
            "sampling.temperature", "sampling.top_p", "stopping.max_tokens",
        }  # fmt: skip


def test_a_model_that_yields_nan_fails_its_request_and_no_other():
    good = request("good", [3, 4, 5], sampling={"allowed_token_ids": [3, 4, 5], "seed": 1}, stopping={"max_tokens": 20})
    bad = request("bad", [3, 50, 4], sampling={"n": 2}, stopping={"max_tokens": 5})
    with engine(weights_with_a_nan_row()) as running:
        (alone,) = run(running, [good])
        beside, failed = run(running, [good, bad])
        assert beside.token_ids == alone.token_ids
        assert (failed.finals, failed.error.code) == (1, _core.status_codes()["INTERNAL"])
        assert settled(running).healthy


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_row_without_a_number_fails_the_request_that_asked_for_it(n):
    """The window hides the bad token from the last row: only the prompt's log-probabilities are hurt."""
    tokens = [50, *prompt(1, 20)]
    with engine(weights_with_a_nan_row(sliding_window=2), max_num_batched_tokens=8) as running:
        asking = request("asking", tokens, sampling={"n": n}, stopping={"max_tokens": 5, "ignore_eos": True},
                         output={"prompt_logprobs": True, "top_logprobs": 3})  # fmt: skip
        # It must not draw the bad token itself.
        silent = request("silent", tokens, sampling={"allowed_token_ids": [3, 4, 5]},
                         stopping={"max_tokens": 5, "ignore_eos": True})  # fmt: skip
        failed, fine = run(running, [asking, silent])
        assert (failed.finals, failed.error.code) == (1, _core.status_codes()["INTERNAL"])
        assert (fine.finals, fine.error) == (1, None)
        assert settled(running).healthy


def test_queue_limits_refuse_at_once_and_recover(weights):
    with engine(weights, max_queued_requests=4, max_num_seqs=1, max_num_batched_tokens=16) as running:
        keys, codes = [], []
        started = time.monotonic()
        for number in range(50):
            try:
                keys.append(running.submit(request(str(number), prompt(number, 20), stopping={"max_tokens": 50})))
            except _core.StatusError as error:
                codes.append(error.code)
        assert time.monotonic() - started < 2
        refused = len(codes)
        assert set(codes) == {_core.status_codes()["RESOURCE_EXHAUSTED"]}
        assert refused >= 40
        collect(running, keys)
        (after,) = run(running, [request("after", prompt(1, 4), stopping={"max_tokens": 2})])
        assert after.finals == 1
        assert settled(running).requests["RESOURCE_EXHAUSTED"] == refused


def test_queued_tokens_are_limited(weights):
    with engine(weights, max_queued_tokens=50, max_num_seqs=1, max_num_batched_tokens=8) as running:
        # One choice after the other: long enough that the rest is submitted while it runs.
        runs = request("runs", prompt(1, 60), sampling={"n": 128}, stopping={"max_tokens": 30, "ignore_eos": True})
        keys = [running.submit(runs)]
        while running.stats().running == 0:  # it left the queue
            time.sleep(0.001)
        keys += [running.submit(request(str(i), prompt(1, 20), stopping={"max_tokens": 2})) for i in range(2)]
        with pytest.raises(_core.StatusError, match="max_queued_tokens"):
            running.submit(request("too much", prompt(1, 20), stopping={"max_tokens": 2}))
        assert running.queued == 2
        collect(running, keys)
        assert running.queued == 0


def test_an_id_in_flight_is_refused_and_free_again_afterwards(weights):
    with engine(weights) as running:
        key = running.submit(
            request("same", prompt(1, 5), sampling={"n": 64}, stopping={"max_tokens": 60, "ignore_eos": True})
        )
        with pytest.raises(_core.StatusError) as refused:
            running.submit(request("same", prompt(1, 5)))
        assert refused.value.code == _core.status_codes()["ALREADY_EXISTS"]
        collect(running, [key])
        run(running, [request("same", prompt(1, 5), stopping={"max_tokens": 2})])


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_abort_in_every_phase_frees_the_blocks(weights, phase):
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 2}
    with engine(weights, **options) as running:
        # One choice after the other, so that it is still there when it is aborted.
        blocker = running.submit(
            request("first", prompt(1, 60), sampling={"n": 64}, stopping={"max_tokens": 30, "ignore_eos": True})
        )
        key = blocker
        if phase == "queued":
            key = running.submit(request("second", prompt(2, 60)))
        if phase == "decode":
            while not any(output.token_ids for output in running.wait_outputs(1000)):
                pass
        assert running.abort(key)
        result = collect(running, [key] if phase != "queued" else [key, blocker])[key]
        assert result.reasons[0 if phase == "queued" else 63] == "aborted"
        assert not running.abort(key)
        assert settled(running).requests["aborted"] == 1


def test_a_stop_by_the_front_end_counts_as_stop(weights):
    with engine(weights) as running:
        key = running.submit(
            request("a", prompt(1, 5), sampling={"n": 64}, stopping={"max_tokens": 80, "ignore_eos": True})
        )
        assert running.stop(key)
        assert collect(running, [key])[key].reasons[63] == "stop"
        assert settled(running).requests == {"stop": 1}


def test_aborts_at_random_moments_leave_nothing_behind(weights):
    choose = random.Random(1)
    with engine(weights, max_num_batched_tokens=8) as running:
        keys = []
        for number in range(200):
            keys.append(
                running.submit(
                    request(str(number), prompt(number, choose.randint(1, 40)), sampling={"n": choose.randint(1, 3)},
                            stopping={"max_tokens": choose.randint(1, 40)})
                )
            )  # fmt: skip
            for victim in choose.sample(keys, min(len(keys), 2)):
                if choose.random() < 0.5:
                    running.abort(victim)
        results = collect(running, keys)
        assert all(result.finals == 1 for result in results.values())
        assert sum(settled(running).requests.values()) == 200


def test_shutdown_ends_everything_as_aborted(weights):
    with engine(weights) as running:
        keys = [running.submit(request(str(i), prompt(i, 10), stopping={"ignore_eos": True})) for i in range(20)]
        running.shutdown()
        results = collect(running, keys)
        assert all(result.finals == 1 for result in results.values())
        with pytest.raises(_core.StatusError) as refused:
            running.submit(request("late", prompt(1, 5)))
        assert refused.value.code == _core.status_codes()["UNAVAILABLE"]


def test_a_reader_gets_every_final_output_when_the_engine_shuts_down_under_it():
    """The reader stops at the first empty result after shutdown() was called, as the service's pump does."""
    # Steps of some tens of milliseconds: shutdown() has to wait for one while the reader reads.
    slow = tiny_weights(hidden_size=768, intermediate_size=3072)
    for attempt in range(5):
        with engine(slow, threads=1, max_num_batched_tokens=256) as running:
            keys = [running.submit(request(str(i), prompt(i, 90), stopping={"ignore_eos": True})) for i in range(20)]
            results = {key: Result() for key in keys}
            closing = threading.Event()

            def pump(running=running, results=results, closing=closing):
                while True:
                    was_closing = closing.is_set()
                    outputs = running.wait_outputs(1000)
                    absorb(results, outputs)
                    if was_closing and not outputs:
                        return

            reader = threading.Thread(target=pump)
            reader.start()
            time.sleep(0.001 * attempt)
            closing.set()
            running.shutdown()
            reader.join()
        assert [result.finals for result in results.values()] == [1] * 20


def test_who_has_read_the_final_output_finds_it_in_the_stats(weights):
    with engine(weights) as running:
        for number in range(50):
            run(running, [request(str(number), prompt(1, 5), stopping={"max_tokens": 2, "ignore_eos": True})])
            stats = running.stats()
            assert (stats.running, stats.waiting, stats.kv_blocks_held) == (0, 0, 0)
            assert stats.requests == {"length": number + 1}


def test_shutdown_does_not_need_a_reader(weights):
    """More outputs than the outbox holds: the engine waits for a reader that never comes."""
    with engine(weights, max_num_seqs=64, max_queued_requests=1024, max_choices=128) as running:
        for number in range(12):
            running.submit(
                request(str(number), [3], sampling={"n": 128}, stopping={"max_tokens": 95, "ignore_eos": True})
            )
        deadline = time.monotonic() + 60
        while (before := running.stats()).generation_tokens < 1 << 16:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        assert running.stats().steps <= before.steps + 2
        assert running.stats().seconds_since_progress > 0.2
        running.shutdown()
        assert sum(output.final for output in running.wait_outputs(0)) == 12


@pytest.mark.parametrize("good_steps", [0, 1, 5])
def test_a_failed_device_ends_every_request_once_and_the_engine_for_good(weights, good_steps):
    config = _core.EngineConfig(max_model_len=MAX_LEN, max_num_seqs=4, max_num_batched_tokens=16)
    running = _testing.faulty_engine(weights, config, good_steps=good_steps)
    internal, unavailable = (_core.status_codes()[name] for name in ("INTERNAL", "UNAVAILABLE"))
    keys, refusals = [], []
    for number in range(12):
        sampling, stopping = {"n": 1 + number % 3}, {"max_tokens": 60, "ignore_eos": True}
        try:
            keys.append(running.submit(request(str(number), prompt(number, 30), sampling=sampling, stopping=stopping)))
        except _core.StatusError as error:  # it failed before the last ones came
            refusals.append(error.code)
    results = collect(running, keys)
    assert all(result.finals == 1 and result.error.code == internal for result in results.values())
    assert not any(result.reasons for result in results.values())
    with pytest.raises(_core.StatusError, match="the device is gone") as late:
        running.submit(request("late", prompt(1, 5)))
    assert late.value.code == unavailable
    stats = running.stats()
    assert not stats.healthy
    assert "the device is gone" in stats.failure
    assert (stats.running, stats.waiting, stats.seconds_since_progress) == (0, 0, 0.0)
    assert stats.requests == {"INTERNAL": len(keys), "UNAVAILABLE": len(refusals) + 1}
    assert set(refusals) <= {unavailable}
    assert running.wait_outputs(0) == []
    running.shutdown()
    running.shutdown()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 7}, "block_size must be 8, 16 or 32"),
        ({"max_num_batched_tokens": 4}, "max_num_batched_tokens"),
        ({"max_model_len": 1000}, "the model ends at 256"),
        ({"eos_token_ids": [VOCAB]}, "not in the vocabulary"),
        ({"kv_cache_memory": 4096}, "largest max_model_len that fits is"),
    ],
)
def test_bad_configurations_are_refused_with_a_reason(weights, options, message):
    with pytest.raises(ValueError, match=message), engine(weights, **options):
        pass


def test_weights_are_not_optional_and_have_no_gaps(weights):
    with pytest.raises(TypeError):
        _core.Engine(None, _core.EngineConfig(max_model_len=MAX_LEN), threads=1)
    fresh = _core.Weights(tiny_spec(), dtype="float32", threads=1)
    with pytest.raises(ValueError, match="contiguous"):
        fresh.set("embed", "f32", [VOCAB, 48], np.zeros((48, VOCAB), np.float32).T)


TOO_MANY_THREADS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from harness import _core, tiny_spec
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    _core.Weights(tiny_spec(), dtype="float32", threads=64)
except RuntimeError as error:
    print("refused:", error)
"""


def test_a_system_without_more_threads_is_an_error_and_no_crash():
    """64 stacks do not fit the address space that is left."""
    run_alone = [sys.executable, "-c", TOO_MANY_THREADS, str(Path(__file__).parent)]
    result = subprocess.run(run_alone, capture_output=True, text=True, check=False)
    assert result.stdout.startswith("refused:"), result.stderr


def test_missing_weights_are_listed():
    weights = _core.Weights(tiny_spec(), dtype="float32", threads=1)
    with pytest.raises(ValueError, match=r"weights are missing.*layers\.1\.up"), engine(weights):
        pass


def test_idle_engine_uses_no_processor(weights):
    with engine(weights) as running:
        run(running, [request("a", prompt(1, 5), stopping={"max_tokens": 2})])
        settled(running)

        def used_s():
            before = time.process_time()
            time.sleep(0.5)
            return time.process_time() - before

        # The least of some windows: what the interpreter does now and then is not the engine's.
        assert min(used_s() for _ in range(4)) < 0.02


def cached_tokens(running, made):
    key = running.submit(made)
    return collect(running, [key])[key].cached


def test_cached_prompt_tokens_are_exact_and_salts_keep_tenants_apart(weights):
    def ask(id, length, **fields):
        made = request(id, prompt(1, length), stopping={"max_tokens": 2, "ignore_eos": True})
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    with engine(weights) as running:
        assert cached_tokens(running, ask("cold", 40)) == 0
        # The two full blocks, and of a block that is not asked for to its end its head; the last token is computed.
        for length in (5, 16, 17, 20, 32, 33, 40):
            assert cached_tokens(running, ask("warm", length)) == min(length - 1, 32)
        for salt, cached in (("a", 0), ("a", 32), ("b", 0)):
            assert cached_tokens(running, ask("salted", 40, cache_salt=salt)) == cached
        assert cached_tokens(running, ask("bypassing", 40, bypass_prefix_cache=True)) == 0
        settled(running)
        assert running.clear_prefix_cache() > 0
        assert running.stats().kv_blocks_cached == 0
        assert cached_tokens(running, ask("cold again", 40)) == 0
    assert running.clear_prefix_cache() == 0  # it is shut down


def test_a_salt_has_a_limit(weights):
    made = request("a", [3, 4])
    made.cache_salt = "x" * 1025
    with engine(weights) as running:
        assert [path for path, _ in running.validate(made)] == ["cache_salt"]
