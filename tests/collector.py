"""A collector of OpenTelemetry's traces, which takes in OTLP over HTTP or gRPC and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True)
class Span:
    """A span as it arrived; ids in hexadecimal, `parent` empty at a root, times in nanoseconds since the epoch."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    began_ns: int
    ended_ns: int
    failed: bool


@dataclass
class Collector:
    """address: for OTEL_EXPORTER_OTLP_ENDPOINT; headers: of the last export."""

    address: str = ""
    spans: list[Span] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Return the spans' names behind those of the spans above them, sorted."""
        by_id = {span.id: span for span in self.spans}

        def path(span: Span) -> str:
            above = by_id.get(span.parent)
            return span.name if above is None else f"{path(above)}/{span.name}"

        return sorted(path(span) for span in self.spans)

    def named(self, name: str) -> Span:
        """Return the only span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


class Recorder:
    """Keeps the spans of a tracer in this process."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    def recorded(self) -> Collector:
        """Return the spans so far as a collector would have them."""
        return Collector(spans=list(spans(encode_spans(self._kept.get_finished_spans()))))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            collector.headers = {name.lower(): value for name, value in self.headers.items()}
            collector.spans += spans(ExportTraceServiceRequest.FromString(body))
            reply = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def collecting_over_grpc() -> Iterator[Collector]:
    """Run a collector that speaks gRPC on a free port."""
    collector = Collector()

    class Service(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            collector.headers = dict(context.invocation_metadata())
            collector.spans += spans(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Service(), server)
    collector.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """Yield the spans of an export."""
    for resource in request.resource_spans:
        about = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes=attributes(span.attributes),
                    resource=about,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    failed=span.status.code == 2,
                )


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
