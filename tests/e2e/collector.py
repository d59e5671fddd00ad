"""The double of an OpenTelemetry collector: takes spans over HTTP as a real one does, and keeps them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class CollectorDouble(ThreadingHTTPServer):
    """POST /v1/traces, with OTLP in protobuf."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []
        self.service: dict[str, str] = {}  # what the latest request says of its sender

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def of_trace(self, trace_id: str) -> list[Span]:
        """By their begin, the request's own span first."""
        found = [span for span in list(self.spans) if span.trace_id.hex() == trace_id]
        return sorted(found, key=lambda span: (span.kind != Span.SPAN_KIND_SERVER, span.start_time_unix_nano))


class Receiver(BaseHTTPRequestHandler):
    server: CollectorDouble

    def do_POST(self) -> None:
        assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["content-length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.service = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[CollectorDouble]:
    """One that listens on a free port of this machine."""
    with CollectorDouble() as double:
        thread = threading.Thread(target=double.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield double
        finally:
            double.shutdown()
            thread.join()
