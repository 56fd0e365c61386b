"""BatchGenerate over a scripted engine: each item ends for itself, few are in flight, nothing is left behind."""

import asyncio

import grpc
import grpc.aio
import pytest
from fakes import FakeOutput, core_error, finish
from grpc_served import details, living, reason, run, run_without_collector, until

from llmsrv.errors import Code
from llmsrv.generation import Generation
from llmsrv.serve.batch import ITEMS_MAX
from llmsrv.v1 import inference_pb2, types_pb2


def item(text="hi", **fields):
    return inference_pb2.GenerateRequest(text=text, **fields)


def batch(served, items, **call):
    return served.inference.BatchGenerate(inference_pb2.BatchGenerateRequest(requests=items), **call)


def answer_all(served):
    """Lets the engine end what it has; each answer repeats its prompt."""
    for key in list(served.engine.live):
        prompt = served.engine.submitted[key].prompt
        served.engine.push([FakeOutput(key, 0, list(prompt), finish=finish("length"), final=True)])


async def keep_answering(served):
    while True:
        answer_all(served)
        await asyncio.sleep(0.002)


def test_every_item_gets_its_own_answer_in_the_order_of_their_ends():
    async def test(served):
        call = batch(served, [item("a"), item("b"), item("c")])
        await served.submitted(3)
        for key in (2, 3, 1):
            prompt = bytes(served.engine.submitted[key].prompt)
            served.engine.emit(key, prompt, finish=finish("length"), final=True)
            answer = await call.read()
            assert answer.response.completions[0].text == "abc"[answer.request_index]
            assert bytes([b"abc"[answer.request_index]]) == prompt
        assert await call.read() is grpc.aio.EOF

    run(test)


def test_a_bad_item_hurts_no_other():
    async def test(served):
        unknown = item("unknown field")
        unknown.MergeFromString(b"\xf8\x06\x01")
        items = [
            item("good"),
            item("bad", sampling=types_pb2.SamplingParams(temperature=-1)),
            inference_pb2.GenerateRequest(),
            item("later", sampling=types_pb2.SamplingParams(bad_words=["x"])),
            item("elsewhere", model="other"),
            unknown,
            item("fails"),
            item("also good"),
        ]
        call = batch(served, items)
        await served.submitted(3)
        for key, request in served.engine.submitted.items():
            if bytes(request.prompt) == b"fails":
                error = core_error(Code.INTERNAL, "bad numbers")
                served.engine.push([FakeOutput(key, error=error, final=True)])
        answer_all(served)
        answers = {each.request_index: each async for each in call}
        assert sorted(answers) == list(range(8))
        assert [answers[i].response.completions[0].text for i in (0, 7)] == ["good", "also good"]
        codes = {i: each.error.code for i, each in answers.items() if each.HasField("error")}
        assert codes == {1: 3, 2: 3, 3: 12, 4: 5, 5: 12, 6: 13}
        assert [each.field for each in details(answers[1].error)["BadRequest"].field_violations] == [
            "sampling.temperature"
        ]
        assert served.service.outcomes == {
            "length": 2,
            "INVALID_ARGUMENT": 2,
            "UNIMPLEMENTED": 2,
            "NOT_FOUND": 1,
            "INTERNAL": 1,
        }

    run(test)


def test_a_bug_of_ours_in_one_item_tells_nothing():
    async def test(served):
        def broken(*_, **__):
            raise KeyError("secret detail")

        served.engine.build = broken
        (answer,) = [each async for each in batch(served, [item()])]
        assert (answer.error.code, "secret" in answer.error.message) == (Code.INTERNAL, False)

    run(test)


def test_one_id_twice_is_refused_whatever_became_of_the_first():
    async def test(served):
        call = batch(served, [item("a", request_id="x"), item("b", request_id="x"), item("c", request_id="y")])
        answering = asyncio.create_task(keep_answering(served))
        answers = {each.request_index: each async for each in call}
        answering.cancel()
        assert {i for i, each in answers.items() if each.HasField("response")} == {0, 2}
        assert reason(answers[1].error) == "REQUEST_ID_IN_USE"

    run(test)


@pytest.mark.parametrize("count", [0, ITEMS_MAX + 1])
def test_a_batch_has_a_length(count):
    async def test(served):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await batch(served, [item()] * count).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [each.field for each in details(caught.value)["BadRequest"].field_violations] == ["requests"]
        assert served.engine.submitted == {}

    run(test)


def test_few_items_are_in_flight_and_few_answers_wait_for_a_slow_reader():
    async def test(served):
        width = 4  # twice as many as run, and no more than may wait
        big = "x" * 4000
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]
        async with grpc.aio.insecure_channel(served.address, options) as channel:
            call = type(served.inference)(channel).BatchGenerate(
                inference_pb2.BatchGenerateRequest(requests=[item(big)] * 100)
            )
            await served.submitted(width)
            await asyncio.sleep(0.05)
            assert len(served.engine.submitted) == len(served.engine.live) == width
            answering = asyncio.create_task(keep_answering(served))
            await asyncio.sleep(0.5)  # nothing is read: what the connection does not hold is not begun
            begun = len(served.engine.submitted)
            assert begun < 80
            indexes = [each.request_index async for each in call]
            answering.cancel()
        assert sorted(indexes) == list(range(100))

    run(test, max_num_seqs=2, max_queued_requests=8)


@pytest.mark.parametrize("how", ["cancel", "deadline", "connection"])
def test_a_batch_that_ends_early_frees_everything(how):
    async def test(served):
        call = batch(served, [item()] * 100, timeout=0.3 if how == "deadline" else None)
        await served.submitted(8)
        if how == "cancel":
            call.cancel()
        elif how == "connection":
            await served.channel.close()
        await until(lambda: not served.service.in_flight)
        assert served.engine.live == {}
        begun = len(served.engine.submitted)
        await asyncio.sleep(0.05)
        assert (len(served.engine.submitted), served.service.in_flight) == (begun, 0)  # no further item begins

    run(test, max_num_seqs=4)


def test_the_deadline_of_the_call_reaches_every_item():
    async def test(served):
        call = batch(served, [item()] * 3, timeout=20.0)
        await served.submitted(3)
        assert all(5 < each.deadline_s < 21 for each in served.engine.submitted.values())
        call.cancel()

    run(test)


def test_items_are_freed_without_the_garbage_collector():
    async def test(served):
        items = [item(), item("bad", sampling=types_pb2.SamplingParams(temperature=-1))] * 5
        call = batch(served, items)
        await served.submitted(5)
        answer_all(served)
        assert len([each async for each in call]) == 10
        await asyncio.sleep(0.05)
        assert living(Generation) == []

    run_without_collector(test)
