"""One line of the log for each request that ends: who, what it took, how it ended. Never what it said, unless the
operator asks for the beginnings of prompts."""

import logging

from llmsrv.records import RequestRecord

PROMPT_CHARS = 1000  # with --log-prompts

logger = logging.getLogger("llmsrv.requests")


def log_request(record: RequestRecord, trace_id: str = "") -> None:
    """`trace_id`: of the span that was made for it; else its caller's is shown."""
    level = logging.ERROR if record.outcome == "error" else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "request", extra={"fields": fields_of(record, trace_id)})


def fields_of(record: RequestRecord, trace_id: str = "") -> dict[str, object]:
    """What is known of it, in the order of the line. Times in seconds."""
    arrival, usage, timing, trace = record.arrival, record.usage, record.timing, record.arrival.origin.trace
    fields: dict[str, object | None] = {
        "outcome": record.outcome,
        "reason": record.reason or None,
        "request_id": record.request_id or None,
        "protocol": arrival.origin.protocol or None,
        "tenant": arrival.tenant or None,
        "model": record.model,
        "prompt_tokens": usage and usage.prompt_tokens,
        "cached_prompt_tokens": usage and usage.cached_prompt_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "queue_s": timing and round(timing.queue_s, 6),
        "ttft_s": None if record.first_token_s is None else round(record.first_token_s, 6),
        "total_s": round(record.total_s, 6),
        "preemptions": (timing and timing.preemptions) or None,
        "trace_id": trace_id or (trace and trace.trace_id),
        "parent_span_id": trace and trace.span_id,
        "prompt": arrival.prompt or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
