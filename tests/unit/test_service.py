"""The service over a scripted engine: text, stops, merging, endings, admission, drain. No model, no transport."""

import asyncio
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes import EOS, FakeEngine, FakeOutput, core_error, fake_model, finish
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.errors import Code, ServiceError
from llmsrv.generation import collect, merge
from llmsrv.params import ChatPrompt, FinishReason, GenerationRequest, SamplingParams, TextPrompt, TokenPrompt
from llmsrv.service import RETRY_MAX_S, RETRY_MIN_S, TEXT_WORKERS, GenerationService, QueueDrain, State


def run(test, **model):
    """Runs `test(service, engine)` on a loop of its own; nothing may stay in flight."""

    async def body():
        engine = FakeEngine()
        service = GenerationService(fake_model(engine, **model))
        try:
            await asyncio.wait_for(test(service, engine), 20)
            assert service.in_flight == 0
        finally:
            await service.close()

    asyncio.run(body())


def request(prompt="hi", /, *, request_id="", truncate=None, **params):
    return GenerationRequest(
        prompt=TextPrompt(prompt),
        params=SamplingParams(**params),
        request_id=request_id,
        truncate_prompt_tokens=truncate,
    )


async def complete(service, engine, emit, **params):
    generation = await service.submit(request(**params))
    try:
        emit(generation.key)
        return await collect(generation)
    finally:
        generation.close()


async def refusal(service, bad_request):
    with pytest.raises(ServiceError) as caught:
        await service.submit(bad_request)
    return caught.value


# --- text and endings ---


def test_a_request_from_text_to_end():
    async def test(service, engine):
        output = await complete(
            service, engine, lambda key: engine.emit(key, b"hello", finish=finish("length"), final=True)
        )
        assert (output.text, bytes(output.token_ids), output.finish_reason) == ("hello", b"hello", "length")
        assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (2, 5)
        assert output.timing.prefill_s == 0.5
        assert list(output.prompt.token_ids) == list(b"hi")
        assert service.outcomes == {"length": 1}

    run(test)


@pytest.mark.parametrize(("include_stop", "text", "ids"), [(False, "hi", b"hi"), (True, "hi!", b"hi!")])
def test_a_stop_token_is_left_out_unless_asked_for(include_stop, text, ids):
    async def test(service, engine):
        output = await complete(
            service,
            engine,
            lambda key: engine.emit(key, b"hi!", finish=finish("stop", ord("!")), final=True),
            include_stop=include_stop,
            stop_token_ids=[ord("!")],
        )
        assert (output.text, bytes(output.token_ids)) == (text, ids)
        assert output.completions[0].finish.stop_token_id == ord("!")
        assert output.usage.completion_tokens == 3  # generated, whether shown or not

    run(test)


def test_the_end_of_sequence_is_told_apart():
    async def test(service, engine):
        ending = finish("stop", EOS, by_eos=True)
        output = await complete(
            service, engine, lambda key: engine.emit(key, ids=[104, EOS], finish=ending, final=True)
        )
        assert output.text == "h"
        assert output.completions[0].finish.eos_token_id == EOS
        assert output.completions[0].finish.stop_token_id is None

    run(test)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "one "), (True, "one two")])
def test_a_stop_string_ends_the_request_in_the_core_too(include_stop, text):
    async def test(service, engine):
        output = await complete(
            service, engine, lambda key: engine.emit(key, b"one two three"), stop=["two"], include_stop=include_stop
        )
        assert output.text == text
        assert output.completions[0].finish.stop_string == "two"
        assert bytes(output.token_ids) == b"one two"
        assert output.usage.completion_tokens == 7
        assert set(engine.calls) == {("stop", 1)}
        assert service.outcomes == {"stop": 1}

    run(test)


def test_no_text_before_a_possible_stop_string_is_shown_too_early():
    async def test(service, engine):
        generation = await service.submit(request(stop=["END"]))
        engine.emit(generation.key, b"abE")
        seen = ""
        async for update in generation:
            seen += "".join(each.text for each in update.deltas)
            assert "E" not in seen or seen.endswith("ENd")
            if sum(map(len, seen)) == 2 and engine.live:
                engine.emit(generation.key, b"Nd", finish=finish("length"), final=True)
        assert seen == "abENd"
        generation.close()

    run(test)


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (2, "a"), (3, "a.b"), (4, "a.b"), (5, "a.b.c")])
def test_stop_strings_wait_for_min_tokens(min_tokens, text):
    async def test(service, engine):
        output = await complete(
            service,
            engine,
            lambda key: engine.emit(key, b"a.b.c", finish=finish("length"), final=True),
            stop=["."],
            min_tokens=min_tokens,
        )
        assert output.text == text

    run(test)


def test_each_choice_stops_for_itself():
    async def test(service, engine):
        generation = await service.submit(request(n=2, stop=["."]))
        engine.push([FakeOutput(generation.key, 0, [c]) for c in b"a.zz"])
        engine.push([FakeOutput(generation.key, 1, [c]) for c in b"bcd"])
        await asyncio.sleep(0.05)
        assert engine.calls == []  # the other one goes on
        engine.push([FakeOutput(generation.key, 1, [c]) for c in b"e.zz"])
        output = await collect(generation)
        generation.close()
        assert [each.text for each in output.completions] == ["a", "bcde"]
        assert output.usage.completion_tokens == 2 + 5
        assert ("stop", generation.key) in engine.calls

    run(test)


def test_half_a_character_is_never_shown():
    async def test(service, engine):
        generation = await service.submit(request())
        texts = []
        euro = "€uro".encode()
        engine.emit(generation.key, euro[:2])
        update = await anext(generation)
        texts.append(update.deltas[0].text)
        assert update.deltas[0].token_count == len(update.deltas[0].token_ids) >= 1
        engine.emit(generation.key, euro[2:], finish=finish("length"), final=True)
        async for update in generation:
            texts += [each.text for each in update.deltas]
        generation.close()
        assert texts[0] == ""
        assert "".join(texts) == "€uro"

    run(test)


def test_token_mode_has_no_text():
    async def test(service, engine):
        output = await complete(
            service, engine, lambda key: engine.emit(key, b"abc", finish=finish("length"), final=True), text=False
        )
        assert (output.text, bytes(output.token_ids)) == ("", b"abc")

    run(test)


def test_prompt_logprobs_come_whole_with_the_first_update():
    async def test(service, engine):
        entry = type("Entry", (), {"token_id": 105, "logprob": -1.0, "rank": 3, "top": [(1, -0.5)]})()
        generation = await service.submit(request("hip", prompt_logprobs=True))
        engine.push([FakeOutput(generation.key, prompt_logprobs=[entry])])
        engine.push([FakeOutput(generation.key, token_ids=[65])])
        await asyncio.sleep(0.05)
        engine.push([FakeOutput(generation.key, prompt_logprobs=[entry])])
        engine.emit(generation.key, b"B", finish=finish("length"), final=True)
        update = await anext(generation)
        assert [each.logprob for each in update.prompt.logprobs] == [None, -1.0, -1.0]
        assert update.prompt.logprobs[1].top == ((1, -0.5),)
        async for _ in generation:
            pass
        generation.close()

    run(test)


@given(
    st.binary(min_size=1, max_size=40),
    st.lists(st.integers(1, 7), max_size=40),
    st.sampled_from([(), ("ab",), ("a", "bc")]),
)
def test_the_text_does_not_depend_on_how_tokens_come_together(tokens, sizes, stops):
    """However outputs are batched and however slowly they are read, deltas add up to the unary answer."""

    async def answer(pieces):
        engine = FakeEngine()
        service = GenerationService(fake_model(engine))
        try:
            generation = await service.submit(request(stop=stops))
            merged = {}

            async def read():
                async for update in generation:
                    for delta in update.deltas:
                        merge(merged, delta)

            reader = asyncio.ensure_future(read())
            for i, piece in enumerate(pieces):
                last = i == len(pieces) - 1
                if generation.key in engine.live:
                    fields = {"finish": finish("length"), "final": True} if last else {}
                    engine.push([FakeOutput(generation.key, token_ids=list(piece), **fields)])
                await asyncio.sleep(0)
            await asyncio.wait_for(reader, 10)
            generation.close()
            delta = merged[0]
            return delta.text, delta.token_ids, delta.token_count, delta.finish
        finally:
            await service.close()

    pieces, rest = [], tokens
    for size in sizes:
        if rest:
            pieces.append(rest[:size])
            rest = rest[size:]
    if rest:
        pieces.append(rest)
    assert asyncio.run(answer(pieces)) == asyncio.run(answer([tokens]))


# --- readers ---


def test_a_slow_reader_finds_one_merged_delta():
    async def test(service, engine):
        generation = await service.submit(request())
        for _ in range(50):
            engine.emit(generation.key, b"x" * 100)
        engine.emit(generation.key, b"", finish=finish("length"), final=True)
        while engine.outputs or generation._ending is None:
            await asyncio.sleep(0.01)
        updates = [update async for update in generation]
        generation.close()
        assert len(updates) == 1
        assert updates[0].deltas[0].text == "x" * 5000

    run(test)


def test_a_reader_that_leaves_aborts():
    async def test(service, engine):
        generation = await service.submit(request())
        engine.emit(generation.key, b"abc")
        await anext(generation)
        generation.close()
        generation.close()
        assert engine.calls == [("abort", generation.key)]
        engine.push([FakeOutput(generation.key, token_ids=[1])])  # what was on its way harms nobody
        await asyncio.sleep(0.05)
        assert service.outcomes == {"CANCELLED": 1}

    run(test)


def test_cancelling_while_the_prompt_is_tokenized_submits_nothing():
    async def test(service, engine):
        hold = threading.Event()
        encode = service.model.tokenizer.encode
        service.model.tokenizer.encode = lambda *args, **kwargs: hold.wait(5) and encode(*args, **kwargs)
        task = asyncio.ensure_future(service.submit(request()))
        await asyncio.sleep(0.05)
        task.cancel()
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert engine.submitted == {}

    run(test)


def test_an_admin_abort_is_a_finish():
    async def test(service, engine):
        generation = await service.submit(request(request_id="mine"))
        engine.emit(generation.key, b"ab")
        await anext(generation)
        assert service.abort_ids(["mine", "other"]) == ["mine"]
        updates = [update async for update in generation]
        generation.close()
        assert updates[-1].deltas[-1].finish.reason is FinishReason.ABORTED
        assert updates[-1].usage.completion_tokens == 2
        assert service.outcomes == {"aborted": 1}

    run(test)


def test_an_unreadable_output_hurts_its_own_request_only():
    async def test(service, engine):
        good, bad = await service.submit(request()), await service.submit(request())
        engine.push([FakeOutput(bad.key, index=9, token_ids=[1]), FakeOutput(good.key, token_ids=[65])])
        engine.emit(good.key, b"", finish=finish("length"), final=True)
        assert (await collect(good)).text == "A"
        with pytest.raises(ServiceError) as caught:
            await collect(bad)
        assert caught.value.code is Code.INTERNAL
        assert ("abort", bad.key) in engine.calls
        good.close()
        bad.close()

    run(test)


# --- admission ---


def test_a_prompt_that_the_model_could_read_is_for_the_core_to_refuse():
    """It knows whether the KV cache is too small for it. What no such model could read is refused before."""
    sizes = {"max_model_len": 16, "max_position": 64}

    async def pool_too_small(service, engine):
        engine.refusal = Code.FAILED_PRECONDITION
        for prompt in (TextPrompt("x" * 63), TokenPrompt([1] * 63)):
            error = await refusal(service, GenerationRequest(prompt=prompt))
            assert error.code is Code.FAILED_PRECONDITION
        for prompt in (TextPrompt("x" * 1000), TokenPrompt([1] * 257)):
            error = await refusal(service, GenerationRequest(prompt=prompt))
            assert error.code is Code.INVALID_ARGUMENT
        # A cut prompt is short, whatever the model could read.
        error = await refusal(service, GenerationRequest(prompt=TextPrompt("x" * 200), truncate_prompt_tokens=3))
        assert error.code is Code.INVALID_ARGUMENT

    async def pool_large_enough(service, engine):
        for prompt in (TextPrompt("x" * 200), TokenPrompt([1] * 65)):
            error = await refusal(service, GenerationRequest(prompt=prompt))
            assert error.code is Code.INVALID_ARGUMENT

    run(pool_too_small, plan=SimpleNamespace(kv_blocks=3), **sizes)
    run(pool_large_enough, plan=SimpleNamespace(kv_blocks=4), **sizes)


def test_all_violations_come_at_once_with_the_clients_paths():
    async def test(service, engine):
        error = await refusal(service, request("", temperature=-1.0, stop=["x"], text=False, truncate=0))
        assert error.code is Code.INVALID_ARGUMENT
        assert {each.field for each in error.violations} == {
            "truncate_prompt_tokens",
            "stopping.stop_strings",
            "sampling.temperature",
        }
        assert {each.field for each in (await refusal(service, request(""))).violations} == {"text"}
        error = await refusal(service, GenerationRequest(prompt=TokenPrompt([1, 999, -1])))
        assert [each.field for each in error.violations] == ["token_ids.ids[1]", "token_ids.ids[2]"]
        error = await refusal(service, request("x" * (1 << 20), temperature=-1.0))
        assert [each.field for each in error.violations] == ["text", "sampling.temperature"]
        assert "max_model_len" in error.violations[0].description
        error = await refusal(service, request("\ud800", temperature=-1.0))
        assert {each.field for each in error.violations} == {"text", "sampling.temperature"}
        assert engine.submitted == {}

    run(test)


def test_chat():
    async def test(service, engine):
        messages = [{"role": "user", "content": "hi"}]
        tokenized = await service.tokenize(ChatPrompt(messages))
        assert tokenized.rendered_text == "[user]hi[assistant]"
        open_end = ChatPrompt([*messages, {"role": "assistant", "content": "we"}], continue_final_message=True)
        assert (await service.tokenize(open_end)).rendered_text == "[user]hi[assistant]we"
        for prompt, field in [
            (ChatPrompt([]), "chat.messages"),
            (ChatPrompt([{"role": "poet", "content": ""}]), "chat.messages[0].role"),
            (ChatPrompt([{"role": "user", "content": "forbidden"}]), "chat.messages"),
            (ChatPrompt(messages, continue_final_message=True), "chat.continue_final_message"),
            (ChatPrompt(messages, {"tools": 1}), "chat.template_kwargs.tools"),
        ]:
            error = await refusal(service, GenerationRequest(prompt=prompt))
            assert [each.field for each in error.violations] == [field]

    run(test)


def test_no_template_is_unimplemented():
    async def body():
        service = GenerationService(fake_model(FakeEngine(), chat_template=None))
        error = await refusal(service, GenerationRequest(prompt=ChatPrompt([{"role": "user", "content": "x"}])))
        assert (error.code, error.reason) == (Code.UNIMPLEMENTED, "NO_CHAT_TEMPLATE")
        await service.close()

    asyncio.run(body())


def test_truncation_keeps_the_last_tokens():
    async def test(service, engine):
        generation = await service.submit(request("abcdef", truncate=2))
        generation.close()
        assert engine.submitted[1].prompt == list(b"ef")

    run(test)


def test_defaults_are_the_models_then_the_servers():
    async def test(service, engine):
        for params in ({}, {"top_k": 0, "temperature": 0.0, "seed": 5}):
            (await service.submit(request(**params))).close()
        first, second = engine.submitted[1].params, engine.submitted[2].params
        assert (first.top_k, first.temperature, first.repetition_penalty) == (7, 1.0, 1.0)
        assert (second.top_k, second.temperature, second.seed) == (0, 0.0, 5)
        assert first.seed is not None

    run(test)


def test_unknown_model_and_ids_in_use():
    async def test(service, engine):
        error = await refusal(service, GenerationRequest(prompt=TextPrompt("x"), model="other"))
        assert (error.code, error.resource.name) == (Code.NOT_FOUND, "other")
        generation = await service.submit(request(request_id="one"))
        error = await refusal(service, request(request_id="one"))
        assert (error.code, error.reason) == (Code.ALREADY_EXISTS, "REQUEST_ID_IN_USE")
        generation.close()

    run(test)


def test_a_full_queue_says_when_to_come_back():
    async def test(service, engine):
        engine.refusal = Code.RESOURCE_EXHAUSTED
        error = await refusal(service, request())
        assert error.code is Code.RESOURCE_EXHAUSTED
        assert error.reason == "QUEUE_FULL"
        assert RETRY_MIN_S <= error.retry_delay_s <= RETRY_MAX_S

    run(test)


def test_a_full_queue_refuses_before_anything_is_tokenized():
    async def test(service, engine):
        encode = CountingEncode(service)
        limit = service.model.config.max_queued_requests
        engine.queued = limit - 1
        (last,) = await submitting(service, request())
        error = await refusal(service, request())  # the last place is taken, although its prompt is not ready
        assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert f"{limit} requests wait" in error.message
        assert RETRY_MIN_S <= error.retry_delay_s <= RETRY_MAX_S
        encode.go.set()
        (await last).close()
        assert encode.calls == 1

    run(test)


def test_waiting_for_too_long_says_when_to_come_back():
    async def test(service, engine):
        generation = await service.submit(replace(request(), queue_timeout_s=1.0))
        error = core_error(Code.RESOURCE_EXHAUSTED, "waited for 1 s")
        engine.push([FakeOutput(generation.key, error=error, final=True)])
        with pytest.raises(ServiceError) as caught:
            await collect(generation)
        generation.close()
        assert (caught.value.reason, caught.value.message) == ("QUEUE_TIMEOUT", "waited for 1 s")
        assert RETRY_MIN_S <= caught.value.retry_delay_s <= RETRY_MAX_S
        assert service.outcomes == {"RESOURCE_EXHAUSTED": 1}

    run(test)


def test_who_asks_and_how_urgent_it_is_reach_the_engine():
    async def test(service, engine):
        asked = replace(request(time_limit_s=9.0), priority=-3, queue_timeout_s=2.5, cache_salt="team a")
        (await service.submit(asked)).close()
        built = engine.submitted[1]
        assert (built.priority, built.queue_timeout_s, built.params.time_limit_s) == (-3, 2.5, 9.0)
        assert (built.tenant, built.cache_salt, built.deadline_s) == ("team a", "team a", None)
        error = await refusal(service, replace(request(), cache_salt="x" * 1025))
        assert [each.field for each in error.violations] == ["cache_salt"]  # where the tenant came from

    run(test)


# --- deadlines ---


class CountingEncode:
    """Counts what is tokenized, and lets it wait until `go` is set."""

    def __init__(self, service):
        self.calls = 0
        self.go = threading.Event()
        self._encode = service.model.tokenizer.encode
        service.model.tokenizer.encode = self

    def __call__(self, *args, **kwargs):
        self.calls += 1
        assert self.go.wait(10)
        return self._encode(*args, **kwargs)


async def submitting(service, *requests):
    """Tasks that submit, and have begun to."""
    tasks = [asyncio.ensure_future(service.submit(each)) for each in requests]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("deadline_s", "waits_s", "outcome"),
    [
        (None, 0, "CANCELLED"),
        (60.0, 0, "CANCELLED"),
        (1.0, 1.05, "DEADLINE_EXCEEDED"),
        (1.0, 0.95, "DEADLINE_EXCEEDED"),
    ],
)
def test_a_reader_that_leaves_at_its_deadline_has_missed_it(deadline_s, waits_s, outcome):
    """Its own clock tells it a little earlier than ours."""

    async def test(service, engine):
        generation = await service.submit(replace(request(), deadline_s=deadline_s))
        await asyncio.sleep(waits_s)
        generation.close()
        assert service.outcomes == {outcome: 1}

    run(test)


def test_a_call_that_is_cancelled_at_its_deadline_before_it_is_submitted_has_missed_it():
    async def test(service, engine):
        hold = threading.Event()
        encode = service.model.tokenizer.encode
        service.model.tokenizer.encode = lambda *args, **kwargs: hold.wait(5) and encode(*args, **kwargs)
        tasks = [asyncio.ensure_future(service.submit(replace(request(), deadline_s=each))) for each in (0.2, 60.0)]
        await asyncio.sleep(0.25)
        for task in tasks:
            task.cancel()
        hold.set()
        await asyncio.wait(tasks)
        assert service.outcomes == {"DEADLINE_EXCEEDED": 1, "CANCELLED": 1}

    run(test)


@pytest.mark.parametrize("deadline_s", [0.0, -1.0])
def test_a_deadline_that_has_passed_costs_no_tokenizing(deadline_s):
    async def test(service, engine):
        encode = CountingEncode(service)
        error = await refusal(service, replace(request(), deadline_s=deadline_s))
        assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, "DEADLINE_PASSED")
        assert (encode.calls, engine.submitted) == (0, {})
        assert service.outcomes == {"DEADLINE_EXCEEDED": 1}

    run(test)


def test_what_tokenizing_takes_counts():
    async def test(service, engine):
        encode = CountingEncode(service)
        soon, later = await submitting(
            service, replace(request(), deadline_s=0.05), replace(request(), deadline_s=50.0)
        )
        time.sleep(0.1)
        encode.go.set()
        (await later).close()
        with pytest.raises(ServiceError) as caught:
            await soon
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        (built,) = engine.submitted.values()
        assert 0 < built.deadline_s < 49.95

    run(test)


def test_a_deadline_that_passes_before_a_worker_is_free_costs_no_tokenizing():
    async def test(service, engine):
        encode = CountingEncode(service)
        *slow, late = await submitting(
            service, *[request() for _ in range(TEXT_WORKERS)], replace(request(), deadline_s=0.05)
        )
        time.sleep(0.1)
        encode.go.set()
        with pytest.raises(ServiceError) as caught:
            await late
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        for each in slow:
            (await each).close()
        assert encode.calls == len(engine.submitted) == TEXT_WORKERS

    run(test)


# --- how fast the queue drains ---


def drained(queue, first, count, begin, step, at_once=1):
    """Fills the queue at `begin`; then `at_once` requests leave every `step` seconds. When the last one left."""
    for key in range(first, first + count):
        queue.enter(key, begin)
    now = begin
    for i in range(0, count, at_once):
        now = begin + (i // at_once + 1) * step
        for key in range(first + i, min(first + i + at_once, first + count)):
            queue.leave(key, now)
    assert queue.waiting == 0
    return now


@pytest.mark.parametrize(("step", "at_once"), [(0.05, 1), (0.5, 1), (4.0, 1), (2.0, 64), (20.0, 1)])
def test_the_drain_rate_is_measured(step, at_once):
    queue = QueueDrain()
    now = drained(queue, 0, 40 * at_once, 1000.0, step, at_once)
    assert queue.seconds_each(now) == pytest.approx(step / at_once, rel=0.25)


def test_an_idle_gap_is_no_slow_drain():
    queue = QueueDrain()
    now = drained(queue, 0, 100, 1000.0, 0.5)
    before = queue.seconds_each(now)
    assert queue.seconds_each(now + 3600) == before
    later = now + 7200
    queue.enter(1000, later)
    assert queue.seconds_each(later) == before
    queue.leave(1000, later + 0.5)
    assert queue.seconds_each(later + 0.5) == pytest.approx(before, rel=0.05)


def test_a_queue_that_stands_still_drains_ever_slower():
    queue = QueueDrain()
    now = drained(queue, 0, 100, 1000.0, 0.1)
    queue.enter(1000, now)
    queue.enter(1001, now)
    waits = [queue.seconds_each(now + seconds) for seconds in (0, 10, 30, 100, 100_000)]
    assert waits == sorted(waits)
    assert waits[0] < 0.2
    assert waits[-1] == pytest.approx(100_000)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0, 1000)), max_size=60))
def test_any_history_of_a_queue_has_a_rate(events):
    queue, waiting, now = QueueDrain(), set(), 0.0
    for enters, key, seconds in events:
        now += seconds
        if enters:
            queue.enter(key, now)
            waiting.add(key)
        else:
            queue.leave(key, now)
            waiting.discard(key)
        assert queue.waiting == len(waiting)
        assert 0 < queue.seconds_each(now) < float("inf")


def test_the_retry_delay_follows_the_queue():
    async def test(service, engine):
        generations = [await service.submit(request()) for _ in range(8)]
        for generation in generations[:3]:
            engine.emit(generation.key, b"a")
            await anext(generation)
        generations[3].close()  # gave up: its place is free too
        assert service._queue.waiting == 4
        service._queue.seconds_each = lambda now: 3.0
        engine.refusal = Code.RESOURCE_EXHAUSTED
        assert (await refusal(service, request())).retry_delay_s == 6.0
        service._queue.seconds_each = lambda now: 1e9
        assert (await refusal(service, request())).retry_delay_s == RETRY_MAX_S
        service._queue.seconds_each = lambda now: 1e-9
        assert (await refusal(service, request())).retry_delay_s == RETRY_MIN_S
        for generation in generations:
            generation.close()
        assert service._queue.waiting == 0

    run(test)


# --- states ---


def test_a_failed_engine():
    async def test(service, engine):
        generation = await service.submit(request())
        engine.emit(generation.key, b"a")
        assert (await anext(generation)).deltas[0].text == "a"
        engine.fail_all("the device is gone")
        with pytest.raises(ServiceError) as caught:
            await anext(generation)
        generation.close()
        assert caught.value.code is Code.INTERNAL
        assert service.state is State.FAILED
        assert (await refusal(service, request())).code is Code.UNAVAILABLE

    run(test)


def test_a_stall_is_not_serving_and_passes():
    async def test(service, engine):
        assert service.state is State.SERVING
        engine.stuck_s = 1e6
        assert service.state is State.STALLED
        engine.stuck_s = 0.0
        assert service.state is State.SERVING

    run(test)


def test_drain_waits_for_what_runs():
    async def test(service, engine):
        generation = await service.submit(request())
        draining = asyncio.ensure_future(service.drain(10))
        await asyncio.sleep(0.05)
        assert service.state is State.DRAINING
        error = await refusal(service, request())
        assert (error.code, error.reason, error.retry_delay_s) == (Code.UNAVAILABLE, "DRAINING", 1.0)
        engine.emit(generation.key, b"x", finish=finish("length"), final=True)
        assert (await collect(generation)).text == "x"
        generation.close()
        await draining
        assert service.state is State.DRAINED

    run(test)


def test_drain_aborts_what_takes_too_long():
    async def test(service, engine):
        generation = await service.submit(request())
        draining = asyncio.ensure_future(service.drain(0.05))
        output_task = asyncio.ensure_future(collect(generation))
        output = await output_task
        generation.close()
        await draining
        assert output.finish_reason == "aborted"

    run(test)


def test_close_ends_everything():
    async def body():
        engine = FakeEngine()
        service = GenerationService(fake_model(engine))
        generation = await service.submit(request())
        await service.close()
        assert (await collect(generation)).finish_reason == "aborted"
        generation.close()
        await service.close()

    asyncio.run(body())
