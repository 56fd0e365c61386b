"""What an administrator does, over a scripted engine: Drain and Resume with a health watcher attached, Abort, stats."""

import asyncio

import grpc
import grpc.aio
import pytest
from fakes import finish
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2
from grpc_served import NOT_SERVING, SERVING, details, reason, rest_of, run, until

from llmsrv.serve.health import SERVICES
from llmsrv.service import State
from llmsrv.v1 import admin_pb2, inference_pb2, types_pb2

DRAINING, DRAINED = admin_pb2.SERVER_STATE_DRAINING, admin_pb2.SERVER_STATE_DRAINED
SERVING_STATE = admin_pb2.SERVER_STATE_SERVING


def generate(served, text="hi"):
    return served.inference.Generate(inference_pb2.GenerateRequest(text=text))


def drain(served, timeout_s=None):
    request = admin_pb2.DrainRequest()
    if timeout_s is not None:
        request.timeout.FromMilliseconds(round(timeout_s * 1000))
    return served.admin.Drain(request)


async def resume(served):
    return (await served.admin.Resume(admin_pb2.ResumeRequest())).state


async def refused(served):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(served)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details(caught.value)["RetryInfo"].retry_delay.seconds == 1
    return reason(caught.value)


async def last(call):
    messages = await rest_of(call)
    return messages[-1].state, messages[-1].in_flight


async def answered(served, call):
    key = max(served.engine.live)
    served.engine.emit(key, b"x", finish=finish("length"), final=True)
    return (await call).completions[0].text


async def listed(served):
    answer = await served.health.List(health_pb2.HealthListRequest())
    return {name: each.status for name, each in answer.statuses.items()}


def test_a_drain_tells_watchers_refuses_waits_and_is_taken_back():
    async def test(served):
        watch = served.health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        running = generate(served)
        await served.submitted()
        draining = drain(served)
        first = await draining.read()
        assert (first.state, first.in_flight) == (DRAINING, 1)
        assert (await watch.read()).status == NOT_SERVING
        assert await refused(served) == "DRAINING"
        assert await served.state() == NOT_SERVING
        assert await listed(served) == dict.fromkeys(SERVICES, NOT_SERVING)
        assert await answered(served, running) == "x"  # what ran goes on to its end
        assert await last(draining) == (DRAINED, 0)  # although the watch is open
        assert await refused(served) == "DRAINING"
        assert await resume(served) == SERVING_STATE
        assert (await watch.read()).status == SERVING
        assert await listed(served) == dict.fromkeys(SERVICES, SERVING)
        running = generate(served)
        await served.submitted(2)
        assert await answered(served, running) == "x"
        watch.cancel()

    run(test)


def test_what_is_left_after_the_timeout_is_aborted():
    async def test(served):
        running = generate(served)
        await served.submitted()
        assert await last(drain(served, 0.1)) == (DRAINED, 0)
        assert (await running).completions[0].finish.reason == types_pb2.FINISH_REASON_ABORTED

    run(test)


def test_a_second_drain_hurries_the_first():
    async def test(served):
        running = generate(served)
        await served.submitted()
        patient = drain(served)
        await patient.read()
        assert await last(drain(served, 0.1)) == (DRAINED, 0)
        assert await last(patient) == (DRAINED, 0)
        assert (await running).completions[0].finish.reason == types_pb2.FINISH_REASON_ABORTED

    run(test)


def test_who_stops_looking_does_not_stop_the_drain():
    async def test(served):
        running = generate(served)
        await served.submitted()
        looking = drain(served)
        await looking.read()
        looking.cancel()
        await asyncio.sleep(0.05)
        assert await refused(served) == "DRAINING"
        assert await answered(served, running) == "x"

    run(test)


def test_resume_in_mid_drain_spares_what_runs():
    async def test(served):
        running = generate(served)
        await served.submitted()
        draining = drain(served, 0.3)
        await draining.read()
        assert await resume(served) == SERVING_STATE
        assert await last(draining) == (SERVING_STATE, 1)
        await asyncio.sleep(0.4)  # the old limit
        assert ("abort", 1) not in served.engine.calls
        assert await answered(served, running) == "x"
        assert await resume(served) == SERVING_STATE  # nothing to take back is no error

    run(test)


def test_requests_are_taken_during_the_withdrawal():
    async def test(served):
        draining = drain(served)
        assert (await draining.read()).state == DRAINING
        assert await served.state() == NOT_SERVING
        late = generate(served)
        await served.submitted()
        assert await answered(served, late) == "x"
        assert await last(draining) == (DRAINED, 0)
        assert await refused(served) == "DRAINING"

    run(test, drain_withdrawal=1.0)


def test_the_daemons_own_drain_is_not_taken_back():
    async def test(served):
        running = generate(served)
        await served.submitted()
        patient = drain(served)
        await patient.read()
        finishing = asyncio.create_task(served.server.drain(30.0))
        await until(lambda: served.server.drainer.finishing)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await resume(served)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert reason(caught.value) == "SHUTTING_DOWN"
        hurried = drain(served, 0.0)  # does not shorten what the daemon gives its requests
        assert (await hurried.read()).in_flight == 1
        assert await answered(served, running) == "x"
        await finishing
        assert [await last(each) for each in (patient, hurried)] == [(DRAINED, 0)] * 2

    run(test)


def test_a_failed_engine_is_not_resumed():
    async def test(served):
        served.engine.fail_all("a broken invariant")
        await until(lambda: served.service.state is State.FAILED)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await resume(served)
        assert reason(caught.value) == "ENGINE_FAILED"
        assert await last(drain(served)) == (admin_pb2.SERVER_STATE_FAILED, 0)

    run(test)


def test_a_negative_timeout_is_refused():
    async def test(served):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drain(served, -0.5).read()
        assert [each.field for each in details(caught.value)["BadRequest"].field_violations] == ["timeout"]
        assert await served.state() == SERVING

    run(test)


def test_watching_stats_goes_on_through_a_drain():
    async def test(served):
        watch = served.admin.WatchStats(admin_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000)))
        assert (await watch.read()).stats.state == SERVING_STATE
        assert await last(drain(served)) == (DRAINED, 0)
        while (await watch.read()).stats.state != DRAINED:
            pass
        await resume(served)
        while (await watch.read()).stats.state != SERVING_STATE:
            pass
        await served.server.drain(1.0)
        *_, final = await rest_of(watch)
        assert final.stats.state == DRAINED  # the daemon ends, and the stream with it

    run(test)


def test_samples_come_as_often_as_asked():
    async def test(served):
        times = {}
        for interval_ms in (100, 400):
            request = admin_pb2.WatchStatsRequest()
            request.interval.FromMilliseconds(interval_ms)
            watch = served.admin.WatchStats(request)
            first = (await watch.read()).stats.time.ToMilliseconds()
            times[interval_ms] = (await watch.read()).stats.time.ToMilliseconds() - first
            watch.cancel()
        assert times[100] >= 95
        assert times[400] >= 395

    run(test)


def test_abort_ends_those_that_are_named():
    async def test(served):
        calls = [
            served.inference.Generate(inference_pb2.GenerateRequest(text="hi", request_id=f"r{i}")) for i in range(3)
        ]
        await served.submitted(3)
        some = admin_pb2.AbortRequest(ids=admin_pb2.AbortRequest.Ids(request_ids=["r1", "nobody"]))
        assert list((await served.admin.Abort(some)).aborted_request_ids) == ["r1"]
        assert sorted(served.engine.live.values()) == ["r0", "r2"]
        every = admin_pb2.AbortRequest(all=admin_pb2.AbortRequest.All())
        assert sorted((await served.admin.Abort(every)).aborted_request_ids) == ["r0", "r2"]
        answers = await asyncio.gather(*calls)
        assert {each.completions[0].finish.reason for each in answers} == {types_pb2.FINISH_REASON_ABORTED}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.admin.Abort(admin_pb2.AbortRequest())
        assert [each.field for each in details(caught.value)["BadRequest"].field_violations] == ["target"]

    run(test)
