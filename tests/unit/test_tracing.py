"""Spans of requests, in memory and sent to a collector that is a stand-in."""

import asyncio
import sys
import threading

import pytest
from otlp_collector import Collector

from llmsrv.config import ServeConfig
from llmsrv.origin import Origin, TraceParent
from llmsrv.params import Timing, Usage
from llmsrv.records import Arrival, RequestRecord
from llmsrv.serve.daemon import Daemon

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def record(trace=None, **fields):
    arrival = Arrival(tenant="alice", origin=Origin("http", trace))
    made = {"request_id": "id", "model": "smol", "outcome": "length", "reason": "", "total_s": 2.0, **fields}
    return RequestRecord(arrival=arrival, **made)


def test_without_the_extra_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    daemon = Daemon(ServeConfig(model="none", port=0, otlp_endpoint="http://127.0.0.1:4317"))
    with pytest.raises(ValueError, match=r"otlp_endpoint: needs the extra otel: pip install 'llmsrv\[otel\]'"):
        asyncio.run(daemon.start())


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4317", "ftp://x", "http://", "http://x/v1/traces"])
def test_endpoints_that_are_none(endpoint):
    with pytest.raises(ValueError, match="otlp_endpoint: must be http"):
        ServeConfig(model="none", otlp_endpoint=endpoint)


def test_a_daemon_that_connects_nowhere_sends_no_spans():
    with pytest.raises(ValueError, match="otlp_endpoint: cannot be combined with permission_mode strict"):
        ServeConfig(model="none", otlp_endpoint="http://127.0.0.1:4317", permission_mode="strict")


@pytest.fixture
def spans():
    """(what to note, what was exported)."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from llmsrv.serve.tracing import Tracing

    exporter = InMemorySpanExporter()
    return Tracing(SimpleSpanProcessor(exporter)), exporter


def test_a_span_has_the_times_and_figures_of_its_request(spans):
    tracing, exporter = spans
    timing = Timing(queue_s=0.25, prefill_s=0.5, decode_s=1.0, preemptions=1)
    trace_id = tracing.note(record(usage=Usage(10, 20, 4), timing=timing, first_token_s=0.5))
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == trace_id
    assert span.parent is None
    assert (span.name, span.kind.name) == ("generate smol", "SERVER")
    assert span.end_time - span.start_time == pytest.approx(2e9, abs=1e3)
    assert span.events[0].timestamp - span.start_time == pytest.approx(0.5e9, abs=1e3)
    assert dict(span.attributes) == {
        "gen_ai.request.model": "smol",
        "gen_ai.response.id": "id",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "llmsrv.cached_prompt_tokens": 4,
        "llmsrv.outcome": "length",
        "llmsrv.protocol": "http",
        "llmsrv.tenant": "alice",
        "llmsrv.queue_s": 0.25,
        "llmsrv.prefill_s": 0.5,
        "llmsrv.decode_s": 1.0,
        "llmsrv.preemptions": 1,
    }


def test_a_span_belongs_to_its_callers_trace_unless_that_is_not_sampled(spans):
    tracing, exporter = spans
    assert tracing.note(record(TraceParent(TRACE, SPAN, 1))) == TRACE
    assert tracing.note(record(TraceParent(TRACE, SPAN, 0))) == TRACE
    (span,) = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN


@pytest.mark.parametrize(
    ("outcome", "reason", "status"),
    [("error", "INTERNAL", "ERROR"), ("deadline", "DEADLINE_PASSED", "ERROR"), ("rejected", "QUEUE_FULL", "UNSET")],
)
def test_failures_say_why(spans, outcome, reason, status):
    tracing, exporter = spans
    tracing.note(record(outcome=outcome, reason=reason))
    (span,) = exporter.get_finished_spans()
    assert span.attributes["error.type"] == reason
    assert span.status.status_code.name == status
    assert span.events == ()


def test_spans_reach_a_collector_before_the_end():
    from llmsrv.serve.tracing import Tracing

    collector = Collector()

    async def test():
        tracing = Tracing.to(collector.endpoint)
        tracing.note(record())
        await tracing.close()

    asyncio.run(test())
    (span,) = collector.wait_for(1)
    collector.stop()
    assert span.name == "generate smol"


def test_a_collector_that_is_gone_does_not_hold_up_the_end(monkeypatch):
    from opentelemetry.sdk.trace import SpanProcessor

    from llmsrv.serve import tracing

    released = threading.Event()

    class Waits(SpanProcessor):
        def shutdown(self):
            released.wait(60)

    monkeypatch.setattr(tracing, "CLOSE_S", 0.05)
    asyncio.run(tracing.Tracing(Waits()).close())
    assert not released.is_set()
    released.set()
