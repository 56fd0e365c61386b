"""A span of OpenTelemetry for each request, sent to a collector. Needs the extra `otel`; imported only when asked for.

A span is made when its request ends, from its record, with the times that it had: nothing is done per token, and what
cannot be sent is dropped by the library's bounded queue.
"""

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import llmsrv
from llmsrv.records import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

CLOSE_S = 3.0
_FAILURES = ("error", "deadline")


class Tracing:
    """Sends spans from construction to close()."""

    def __init__(self, processor: "SpanProcessor") -> None:
        """REQUIRES: the extra is there."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "llmsrv", "service.version": llmsrv.__version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("llmsrv", llmsrv.__version__)

    @classmethod
    def to(cls, endpoint: str) -> "Tracing":
        """To a collector that speaks OTLP over gRPC. Raises ValueError without the extra."""
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ValueError("otlp_endpoint: needs the extra otel: pip install 'llmsrv[otel]'") from None
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http:"))))

    def note(self, record: RequestRecord) -> str:
        """Makes the span of a request that ended now; the id of its trace."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.status import StatusCode

        end_ns = time.time_ns()
        begin_ns = end_ns - int(record.total_s * 1e9)
        span = self._tracer.start_span(
            f"generate {record.model}",
            context=_context(record),
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=begin_ns,
        )
        if record.first_token_s is not None:
            span.add_event("first token", timestamp=begin_ns + int(record.first_token_s * 1e9))
        if record.outcome in _FAILURES:
            span.set_status(StatusCode.ERROR, record.reason)
        span.end(end_ns)
        return f"{span.get_span_context().trace_id:032x}"

    async def close(self) -> None:
        """Sends what waits, if that can be done in CLOSE_S: a collector that is gone must not hold up the end."""
        closing = threading.Thread(target=self._provider.shutdown, name="llmsrv-otel-close", daemon=True)
        closing.start()
        end = time.monotonic() + CLOSE_S
        while closing.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.01)


def _context(record: RequestRecord) -> "Context":
    """The caller's span as the parent, or none: never what happens to be current on this loop."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    parent = record.arrival.origin.trace
    if parent is None:
        return Context()
    ids = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, TraceFlags(parent.flags))
    return set_span_in_context(NonRecordingSpan(ids), Context())


def _attributes(record: RequestRecord) -> "dict[str, AttributeValue]":
    """Where OpenTelemetry has a name for it, that one."""
    arrival, usage, timing = record.arrival, record.usage, record.timing
    attributes: dict[str, AttributeValue] = {
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.response.finish_reasons": [record.outcome],
        "llmsrv.outcome": record.outcome,
        "llmsrv.protocol": arrival.origin.protocol,
        "llmsrv.tenant": arrival.tenant,
    }
    if record.outcome in (*_FAILURES, "rejected"):
        attributes["error.type"] = record.reason
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        attributes["llmsrv.cached_prompt_tokens"] = usage.cached_prompt_tokens
    if timing is not None:
        attributes["llmsrv.queue_s"] = timing.queue_s
        attributes["llmsrv.prefill_s"] = timing.prefill_s
        attributes["llmsrv.decode_s"] = timing.decode_s
        attributes["llmsrv.preemptions"] = timing.preemptions
    return attributes
