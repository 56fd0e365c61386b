"""A collector of OpenTelemetry spans for tests: takes what is sent to it over OTLP and keeps it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc


class Collector:
    """Needs the extra otel."""

    def __init__(self):
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

        self.spans = []
        self._changed = threading.Condition()
        self._answer = messages.ExportTraceServiceResponse
        self._server = grpc.server(ThreadPoolExecutor(1))
        services.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request, context):
        with self._changed:
            for resource in request.resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return self._answer()

    def wait_for(self, count, timeout_s=60.0):
        """So many spans."""
        end = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: len(self.spans) >= count, end - time.monotonic())
        assert len(self.spans) == count
        return self.spans

    def stop(self):
        self._server.stop(0).wait()
