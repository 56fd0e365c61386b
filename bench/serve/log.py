"""What a request costs the event loop after its end: its line in the log, and its span.

    python bench/serve/log.py

Processor time of this process per request, the writing thread's (and, for spans, the sending thread's) included; lines
go to /dev/null, spans to a collector that takes and forgets them in another process's stead: in this one, without a
network. `share` is of one core, at --rate requests per second: 1,280 are 64 clients that each have 20 answers a second.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.origin import Origin, TraceParent
from llmsrv.params import Timing, Usage
from llmsrv.records import Arrival, RequestRecord
from llmsrv.serve.logs import logging_to
from llmsrv.serve.request_log import log_request

TRACE = TraceParent("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)


def record():
    return RequestRecord(
        arrival=Arrival(tenant="alice", origin=Origin("http", TRACE)),
        request_id="cmpl-29d630d962adf090b8cdf13a",
        model="smollm2-135m",
        outcome="length",
        reason="",
        usage=Usage(128, 64, 16),
        timing=Timing(0.01, 0.05, 0.2, 0),
        first_token_s=0.06,
        total_s=0.26,
    )


def us_each(note, count):
    before = time.process_time()
    for _ in range(count):
        note(record())
        if _ % 100 == 0:
            time.sleep(0.002)  # as in a daemon, the other threads have their turns
    return (time.process_time() - before) / count * 1e6


def nothing(_):
    """The record alone."""


def span_note():
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from llmsrv.serve.tracing import Tracing

    class Forgets(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    return Tracing(BatchSpanProcessor(Forgets())).note


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of one run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1280.0, help="requests per second")
    parser.add_argument("--json", help="append one JSON line per result to this file")
    options = parser.parse_args()
    report = Report("log", options.json, cores=os.cpu_count(), rate=options.rate)
    null = os.open(os.devnull, os.O_WRONLY)
    kinds = [("text", "info", log_request), ("json", "info", log_request), ("text", "warning", log_request)]
    kinds.append(("no line, a span", "warning", span_note()))
    found = {(form, level): [] for form, level, _ in kinds}
    for _ in range(options.rounds):
        for form, level, note in kinds:
            with logging_to(null, form="json" if form == "json" else "text", level=level):
                base = us_each(nothing, options.requests)
                found[form, level].append(us_each(note, options.requests) - base)
    for (form, level), values in found.items():
        cost = statistics.median(values)
        share = cost * options.rate / 1e6
        report.add(
            f"{form}, level {level}: {cost:.1f} us per request, {share:.2%} of a core at {options.rate:.0f} requests/s",
            kind=form,
            level=level,
            us_per_request=round(cost, 2),
            share=round(share, 5),
        )


if __name__ == "__main__":
    main()
