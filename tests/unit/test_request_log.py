"""What is recorded of requests that end, over a scripted engine: every outcome, both protocols, and never a prompt."""

import asyncio
import contextlib
import re

import grpc
import pytest
from fakes import EOS, FakeEngine, FakeOutput, core_error, fake_model, finish
from http_client import JSON, post
from hypothesis import given
from hypothesis import strategies as st

from llmsrv.caller import CALL, Call, Caller, Limits
from llmsrv.config import ServeConfig
from llmsrv.errors import Code, ServiceError
from llmsrv.generation import collect
from llmsrv.origin import TraceParent
from llmsrv.params import ChatPrompt, GenerationRequest, SamplingParams, TextPrompt, TokenPrompt
from llmsrv.records import excerpt
from llmsrv.serve.grpc_server import GrpcServer
from llmsrv.serve.http_api.server import HttpServer
from llmsrv.serve.request_log import fields_of
from llmsrv.service import GenerationService
from llmsrv.v1 import inference_pb2, inference_pb2_grpc

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def recorded(test, prompt_chars=0, **model):
    """The records of what `test(service, engine)` does."""
    records = []

    async def body():
        engine = FakeEngine()
        service = GenerationService(fake_model(engine, **model))
        service.record_ends(records.append, prompt_chars=prompt_chars)
        try:
            await asyncio.wait_for(test(service, engine), 20)
        finally:
            await service.close()

    asyncio.run(body())
    return records


def request(text="the prompt", **fields):
    params = SamplingParams(**fields.pop("params", {}))
    return GenerationRequest(prompt=TextPrompt(text), params=params, **fields)


def ends(**fields):
    """A test whose one request gets "abc" and this end."""

    async def test(service, engine):
        generation = await service.submit(request(params={"stop": "c"} if fields.pop("by_text", False) else {}))
        engine.emit(generation.key, b"abc", **fields)
        with contextlib.suppress(ServiceError):
            await collect(generation)
        generation.close()

    return test


async def refused_fields(service, engine):
    with pytest.raises(ServiceError):
        await service.submit(request(params={"temperature": -1.0}))


async def refused_when_full(service, engine):
    engine.queued = 10**9
    with pytest.raises(ServiceError):
        await service.submit(request())


async def refused_by_its_transport(service, engine):
    service.count_refusal(ServiceError(Code.INVALID_ARGUMENT, "no", reason="INVALID_JSON"))


async def too_late(service, engine):
    with pytest.raises(ServiceError):
        await service.submit(request(deadline_s=-1.0))


async def client_left(service, engine):
    generation = await service.submit(request())
    engine.emit(generation.key, b"ab")
    await generation.__anext__()
    generation.close()


async def ended_by_the_server(service, engine):
    generation = await service.submit(request(request_id="mine"))
    service.abort_ids(["mine"])
    await collect(generation)
    generation.close()


@pytest.mark.parametrize(
    ("test", "outcome", "reason"),
    [
        (ends(finish=finish("stop", EOS, by_eos=True), final=True), "stop", ""),
        (ends(by_text=True, finish=finish("length"), final=True), "stop", ""),
        (ends(finish=finish("length"), final=True), "length", ""),
        (ends(finish=finish("time_limit"), final=True), "time_limit", ""),
        (ended_by_the_server, "aborted", "ENDED_BY_SERVER"),
        (client_left, "aborted", "CLIENT_LEFT"),
        (refused_fields, "rejected", "INVALID_FIELD"),
        (refused_when_full, "rejected", "QUEUE_FULL"),
        (refused_by_its_transport, "rejected", "INVALID_JSON"),
        (ends(error=core_error(Code.RESOURCE_EXHAUSTED), final=True), "rejected", "QUEUE_TIMEOUT"),
        (too_late, "deadline", "DEADLINE_PASSED"),
        (ends(error=core_error(Code.DEADLINE_EXCEEDED), final=True), "deadline", "DEADLINE_PASSED"),
        (ends(error=core_error(Code.INTERNAL), final=True), "error", "INTERNAL"),
    ],
)
def test_every_outcome_is_one_record(test, outcome, reason):
    (record,) = recorded(test)
    assert (record.outcome, record.reason) == (outcome, reason)
    assert record.total_s >= 0
    assert "the prompt" not in str(fields_of(record))


def test_what_a_request_took():
    (record,) = recorded(ends(finish=finish("length"), final=True))
    fields = fields_of(record)
    assert fields.pop("request_id").startswith("req-")
    assert 0 <= fields.pop("ttft_s") <= fields.pop("total_s")
    counts = {"prompt_tokens": len("the prompt"), "cached_prompt_tokens": 0, "completion_tokens": 3}
    assert fields == {"outcome": "length", "model": "fake", **counts, "queue_s": 0.25}


def test_what_one_that_was_given_up_took_so_far():
    (record,) = recorded(client_left)
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.timing) == (10, 2, None)
    assert fields_of(record)["ttft_s"] >= 0


def test_a_cache_salt_is_not_shown_and_a_tenants_name_is():
    async def test(service, engine):
        for salt in ("alice", "a secret", "a secret", ""):
            generation = await service.submit(request(cache_salt=salt))
            generation.close()

    weights = {"scheduling_policy": "fair", "tenant_weights": {"alice": 2.0}}
    named, salted, again, nobody = recorded(test, config=ServeConfig(model="fake", **weights))
    assert fields_of(named)["tenant"] == "alice"
    assert salted.arrival.tenant == again.arrival.tenant != "a secret"
    assert "secret" not in str(fields_of(salted))
    assert "tenant" not in fields_of(nobody)


def test_a_keys_name_is_the_tenant_of_what_it_did_and_of_what_it_was_refused():
    async def test(service, engine):
        CALL.set(Call(Caller("alice", Limits(max_concurrent_streams=1))))
        generation = await service.submit(request(cache_salt="a secret"))
        with pytest.raises(ServiceError):
            await service.submit(request())
        generation.close()

    refused, done = recorded(test)
    assert (refused.outcome, refused.reason) == ("rejected", "TOO_MANY_STREAMS")
    assert refused.arrival.tenant == done.arrival.tenant == "alice"


def test_prompts_are_shown_only_when_asked_for_and_never_whole():
    async def test(service, engine):
        for text in ("short", "long" * 100):
            generation = await service.submit(request(text))
            generation.close()

    short, long = recorded(test, prompt_chars=20)
    assert fields_of(short)["prompt"] == "short"
    assert fields_of(long)["prompt"] == "longlonglonglongl..."


@given(
    prompt=st.one_of(
        st.builds(TextPrompt, st.text()),
        st.builds(TokenPrompt, st.lists(st.integers())),
        st.builds(ChatPrompt, st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.text()}))),
    ),
    chars_max=st.integers(3, 50),
)
def test_an_excerpt_is_bounded_whatever_the_prompt(prompt, chars_max):
    assert len(excerpt(prompt, chars_max)) <= chars_max
    assert excerpt(prompt, 0) == ""


# --- trace context ---


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",  # no trace
        f"00-{TRACE}-{'0' * 16}-01",  # no span
        f"ff-{TRACE}-b7ad6b7169203331-01",  # no version
        f"00-{TRACE.upper()}-b7ad6b7169203331-01",
        f"{TRACEPARENT}-more",  # version 00 has no more
        f"{TRACEPARENT}\n",
        f" {TRACEPARENT}",
    ],
)
def test_trace_headers_that_are_none(header):
    assert TraceParent.parse(header) is None


def test_trace_headers_of_this_and_later_versions():
    assert TraceParent.parse(TRACEPARENT) == TraceParent(TRACE, "b7ad6b7169203331", 1)
    assert TraceParent.parse(f"cc-{TRACE}-b7ad6b7169203331-00-more") == TraceParent(TRACE, "b7ad6b7169203331", 0)


def both_protocols(call):
    """The records of `call(grpc channel, http port, engine)` against both servers at once."""

    async def test(service, engine):
        servers = [GrpcServer(ServeConfig(model="fake", port=0)), HttpServer(ServeConfig(model="fake", http_port=0))]
        grpc_port, http_port = [await each.start() for each in servers]
        for each in servers:
            await each.serve(service)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            await call(channel, http_port, engine)
        for each in servers:
            await each.stop()

    return recorded(test)


async def answer(engine, count):
    while len(engine.submitted) < count:
        await asyncio.sleep(0.005)
    engine.push([FakeOutput(count, 0, [65], finish=finish("length"), final=True)])


def test_the_protocol_and_the_trace_of_each_call():
    async def call(channel, port, engine):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        message = inference_pb2.GenerateRequest(text="x", request_id="one")
        for count, metadata in enumerate(([("traceparent", TRACEPARENT)], []), 1):
            calling = asyncio.ensure_future(stub.Generate(message, metadata=metadata))
            await answer(engine, count)
            await calling
        for count, headers in enumerate(({**JSON, "traceparent": TRACEPARENT}, JSON), 3):
            calling = asyncio.ensure_future(asyncio.to_thread(post, port, "/v1/completions", {"prompt": "x"}, headers))
            await answer(engine, count)
            assert (await calling).status == 200

    shown = [fields_of(each) for each in both_protocols(call)]
    assert [each["protocol"] for each in shown] == ["grpc", "grpc", "http", "http"]
    assert [each.get("trace_id") for each in shown] == [TRACE, None, TRACE, None]
    assert [each.get("parent_span_id") for each in shown] == ["b7ad6b7169203331", None] * 2
    assert shown[0]["request_id"] == "one"
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", shown[2]["request_id"])


def test_refusals_of_the_transports_have_it_too():
    async def call(channel, port, engine):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        message = inference_pb2.GenerateRequest(text="x")
        message.sampling.bad_words.append("no")
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(message, metadata=[("traceparent", TRACEPARENT)])
        headers = {**JSON, "traceparent": TRACEPARENT}
        await asyncio.to_thread(post, port, "/v1/completions", {"prompt": 7}, headers)

    by_grpc, by_http = (fields_of(each) for each in both_protocols(call))
    assert (by_grpc["protocol"], by_grpc["reason"], by_grpc["trace_id"]) == ("grpc", "NOT_IMPLEMENTED", TRACE)
    assert (by_http["protocol"], by_http["reason"], by_http["trace_id"]) == ("http", "INVALID_FIELD", TRACE)
    assert by_grpc["outcome"] == by_http["outcome"] == "rejected"
