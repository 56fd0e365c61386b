"""GenerateSession over a scripted engine: many requests on one stream, told apart by their ids."""

import asyncio
from collections import defaultdict

import grpc
import grpc.aio
import pytest
from fakes import FakeOutput, core_error, finish
from grpc_served import details, living, reason, run, run_without_collector, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmsrv.errors import Code, ServiceError
from llmsrv.generation import Generation
from llmsrv.serve import session as session_module
from llmsrv.v1 import inference_pb2


def start(request_id, text="hi", stream=None, **fields):
    request = inference_pb2.GenerateRequest(text=text, request_id=request_id, **fields)
    return inference_pb2.GenerateSessionRequest(
        start=inference_pb2.GenerateStreamRequest(request=request, stream=stream)
    )


def cancel(request_id):
    return inference_pb2.GenerateSessionRequest(cancel_request_id=request_id)


class Client:
    """One session, and everything that it has received, by request id."""

    def __init__(self, served, **call):
        self.served = served
        self.call = served.inference.GenerateSession(**call)
        self.messages = 0
        self.texts = defaultdict(str)
        self.ends = {}  # id -> "end", or the status of an error
        self.items = []

    async def send(self, *messages):
        for each in messages:
            await self.call.write(each)

    async def key(self, request_id):
        """The engine's key of a request that is in flight."""
        while True:
            for key, each in self.served.engine.live.items():
                if each == request_id:
                    return key
            await asyncio.sleep(0.005)

    async def read(self):
        message = await self.call.read()
        if message is grpc.aio.EOF:
            return False
        self.messages += 1
        for each in message.items:
            self.items.append(each)
            if each.HasField("error"):
                self.ends[each.request_id] = each.error
                continue
            self.texts[each.request_id] += "".join(delta.text for delta in each.response.deltas)
            if each.response.HasField("end"):
                self.ends[each.request_id] = "end"
        return True

    async def read_until(self, condition):
        while not condition():
            assert await self.read()


def test_requests_are_told_apart_and_the_session_ends_after_the_last():
    async def test(served):
        client = Client(served)
        await client.send(start("a", "one"), start("b", "two"))
        a, b = await client.key("a"), await client.key("b")
        served.engine.emit(a, b"A")
        served.engine.emit(b, b"B")
        await client.read_until(lambda: len(client.texts) == 2)
        await client.send(start("c", "three"))
        c = await client.key("c")
        await client.call.done_writing()
        served.engine.emit(b, b"b", finish=finish("length"), final=True)
        await client.read_until(lambda: "b" in client.ends)
        served.engine.emit(c, b"C", finish=finish("length"), final=True)
        served.engine.emit(a, b"a", finish=finish("length"), final=True)
        while await client.read():
            pass
        assert client.texts == {"a": "Aa", "b": "Bb", "c": "C"}
        assert client.ends == {"a": "end", "b": "end", "c": "end"}
        assert await client.call.code() is grpc.StatusCode.OK
        starts = [each.request_id for each in client.items if each.response.HasField("start")]
        assert sorted(starts) == ["a", "b", "c"]

    run(test)


def test_the_news_of_one_step_are_one_message():
    async def test(served):
        client = Client(served)
        names = [f"r{i}" for i in range(50)]
        await client.send(*(start(each) for each in names))
        await served.submitted(50)
        keys = [await client.key(each) for each in names]
        for round_number in range(1, 4):
            served.engine.push([FakeOutput(key, 0, [ord("x")]) for key in keys])
            await client.read_until(lambda n=round_number: all(len(client.texts[each]) == n for each in names))
        assert client.messages <= 6  # 150 items
        client.call.cancel()

    run(test)


def test_a_cancel_frees_one_request_and_no_other():
    async def test(served):
        client = Client(served)
        await client.send(start("a"), start("b"))
        a, b = await client.key("a"), await client.key("b")
        await client.send(cancel("a"))
        await client.read_until(lambda: "a" in client.ends)
        assert client.ends["a"].code == Code.CANCELLED
        assert ("abort", a) in served.engine.calls
        assert list(served.engine.live) == [b]
        await client.send(cancel("nobody"), cancel("a"), start("a", "again"))  # what has ended is nobody, too
        again = await client.key("a")
        served.engine.emit(again, b"x", finish=finish("length"), final=True)
        served.engine.emit(b, b"y", finish=finish("length"), final=True)
        await client.call.done_writing()
        while await client.read():
            pass
        assert client.texts == {"a": "x", "b": "y"}
        assert client.ends == {"a": "end", "b": "end"}
        assert served.service.outcomes == {"CANCELLED": 1, "length": 2}

    run(test)


def test_a_request_that_fails_ends_for_itself_after_what_it_delivered():
    async def test(served):
        client = Client(served)
        await client.send(start("a"), start("b"))
        a, b = await client.key("a"), await client.key("b")
        served.engine.push(
            [FakeOutput(a, 0, [ord("x")]), FakeOutput(a, error=core_error(Code.INTERNAL, "bad numbers"), final=True)]
        )
        await client.read_until(lambda: "a" in client.ends)
        assert client.texts["a"] == "x"
        assert client.ends["a"].code == Code.INTERNAL
        served.engine.emit(b, b"y", finish=finish("length"), final=True)
        await client.read_until(lambda: "b" in client.ends)
        client.call.cancel()

    run(test)


UNKNOWN_FIELD = inference_pb2.GenerateSessionRequest.FromString(b"\xf8\x06\x01")


@pytest.mark.parametrize(
    ("message", "request_id", "code", "field"),
    [
        (inference_pb2.GenerateSessionRequest(), "", Code.INVALID_ARGUMENT, "action"),
        (UNKNOWN_FIELD, "", Code.UNIMPLEMENTED, "111"),
        (start(""), "", Code.INVALID_ARGUMENT, "request_id"),
        (cancel(""), "", Code.INVALID_ARGUMENT, "cancel_request_id"),
        (
            start("a", sampling={"temperature": -1}),
            "a",
            Code.INVALID_ARGUMENT,
            "sampling.temperature",
        ),
        (start("a", sampling={"bad_words": ["x"]}), "a", Code.UNIMPLEMENTED, "sampling.bad_words"),
        (
            start("a", stream=inference_pb2.StreamOptions(max_coalesce_tokens=3)),
            *("a", Code.INVALID_ARGUMENT, "stream.max_coalesce_tokens"),
        ),
    ],
)
def test_what_is_refused_is_an_item(message, request_id, code, field):
    async def test(served):
        client = Client(served)
        await client.send(message, start("good"))
        key = await client.key("good")
        served.engine.emit(key, b"x", finish=finish("length"), final=True)
        await client.call.done_writing()
        while await client.read():
            pass
        assert client.ends["good"] == "end"
        error = client.ends[request_id]
        assert error.code == code
        assert [each.field for each in details(error)["BadRequest"].field_violations] == [field]

    run(test)


def test_a_request_id_in_flight_is_refused_here_and_elsewhere():
    async def test(served):
        client = Client(served)
        await client.send(start("a"), start("a"))
        await client.read_until(lambda: "a" in client.ends)
        assert reason(client.ends["a"]) == "REQUEST_ID_IN_USE"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.inference.Generate(inference_pb2.GenerateRequest(text="x", request_id="a"))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        other = Client(served)
        await other.send(start("a"))
        await other.read_until(lambda: "a" in other.ends)
        assert reason(other.ends["a"]) == "REQUEST_ID_IN_USE"
        assert list(served.engine.live.values()) == ["a"]  # the first goes on
        client.call.cancel()
        other.call.cancel()

    run(test)


def test_a_session_has_room_for_so_many(monkeypatch):
    monkeypatch.setattr(session_module, "IN_FLIGHT_MAX", 3)

    async def test(served):
        client = Client(served)
        await client.send(*(start(f"r{i}") for i in range(4)))
        await client.read_until(lambda: "r3" in client.ends)
        assert client.ends["r3"].code == Code.RESOURCE_EXHAUSTED
        assert reason(client.ends["r3"]) == "SESSION_FULL"
        assert "RetryInfo" in details(client.ends["r3"])
        served.engine.emit(await client.key("r0"), b"x", finish=finish("length"), final=True)
        await client.read_until(lambda: "r0" in client.ends)
        await client.send(start("r4"))
        await client.key("r4")
        client.call.cancel()

    run(test)


def test_who_does_not_read_is_not_read_from_either(monkeypatch):
    monkeypatch.setattr(session_module, "REFUSALS_MAX", 4)
    monkeypatch.setattr(session_module, "FLUSH_ITEMS", 2)

    async def test(served):
        client = Client(served)
        for _ in range(50):
            await client.send(start(""))
        await client.call.done_writing()
        while await client.read():
            pass
        assert len(client.items) == 50

    run(test)


@pytest.mark.parametrize("how", ["cancel", "deadline", "connection"])
def test_a_session_that_ends_early_frees_everything(how):
    async def test(served):
        client = Client(served, timeout=0.3 if how == "deadline" else None)
        await client.send(*(start(f"r{i}") for i in range(20)))
        await served.submitted(20)
        if how == "cancel":
            client.call.cancel()
        elif how == "connection":
            await served.channel.close()
        await until(lambda: not served.service.in_flight)
        assert served.engine.live == {}

    run(test)


def test_a_slow_reader_gets_few_large_messages():
    async def test(served):
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)]
        async with grpc.aio.insecure_channel(served.address, options) as channel:
            served.inference = type(served.inference)(channel)
            client = Client(served)
            await client.send(start("a"), start("b"))
            keys = [await client.key("a"), await client.key("b")]
            for _ in range(100):
                served.engine.push([FakeOutput(key, 0, list(b"x" * 2000)) for key in keys])
                await asyncio.sleep(0.001)
            for key in keys:
                served.engine.emit(key, b"", finish=finish("length"), final=True)
            await client.call.done_writing()
            while await client.read():
                pass
        assert {each: len(text) for each, text in client.texts.items()} == {"a": 200_000, "b": 200_000}
        assert client.messages < 80

    run(test)


@pytest.mark.parametrize("how", ["ok", "refused", "failed", "cancelled", "cut"])
def test_requests_are_freed_without_the_garbage_collector(how):
    """While the session goes on, too: a gateway's never ends."""

    async def test(served):
        client = Client(served)
        for i in range(5):
            temperature = -1 if how == "refused" else 1
            await client.send(start(f"r{i}", sampling={"temperature": temperature}))
            if how != "refused":
                key = await client.key(f"r{i}")
            if how == "ok":
                served.engine.emit(key, b"x", finish=finish("length"), final=True)
            elif how == "failed":
                error = core_error(Code.INTERNAL, "bad numbers")
                served.engine.push([FakeOutput(key, error=error, final=True)])
            elif how == "cancelled":
                await client.send(cancel(f"r{i}"))
            if how != "cut":
                await client.read_until(lambda name=f"r{i}": name in client.ends)
        if how == "cut":
            client.call.cancel()
        await until(lambda: not served.service.in_flight)
        await asyncio.sleep(0.05)
        assert living(Generation, ServiceError) == []
        client.call.cancel()

    run_without_collector(test)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "cancel", "token", "token", "finish", "fail"]), st.integers(0, 4)),
    max_size=40,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS)
def test_whatever_the_client_and_the_engine_do(actions):
    """Every accepted start gets exactly one end, with the text that the engine made; nothing is held afterwards."""

    async def test(served):
        client = Client(served)
        engine = served.engine
        for action, number in actions:
            name = f"r{number}"
            live = {request_id: key for key, request_id in engine.live.items()}
            if action == "start":
                await client.send(start(name))
            elif action == "cancel":
                await client.send(cancel(name))
            elif name in live and action == "token":
                engine.emit(live[name], b"x")
            elif name in live and action == "finish":
                engine.emit(live[name], b"", finish=finish("length"), final=True)
            elif name in live:
                error = core_error(Code.INTERNAL, "bad numbers")
                engine.push([FakeOutput(live[name], error=error, final=True)])
            await asyncio.sleep(0.001)
        await client.call.done_writing()
        reading = asyncio.create_task(read_all(client))
        while not reading.done():
            for key in list(engine.live):
                engine.emit(key, b"", finish=finish("length"), final=True)
            await asyncio.sleep(0.002)
        await reading
        starts = sum(action == "start" for action, _ in actions)
        ends = [each for each in client.items if each.HasField("error") or each.response.HasField("end")]
        assert len(ends) == starts
        assert served.service.in_flight == 0
        assert engine.live == {}

    run(test)


async def read_all(client):
    while await client.read():
        pass
    assert await client.call.code() is grpc.StatusCode.OK
