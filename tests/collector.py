"""A collector of OpenTelemetry's traces, which takes in OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


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

    def tree(self, root: Span | None = None) -> dict[str, Any]:
        """Return names below names, from the only root on; equal names of one parent have a list's place each."""
        if root is None:
            ids = {span.id for span in self.spans}
            (root,) = [span for span in self.spans if span.parent not in ids]
        found: dict[str, Any] = {}
        for span in sorted(self.spans, key=lambda span: span.began_ns):
            if span.parent == root.id:
                found[span.name] = self.tree(span)[span.name]
        return {root.name: found}

    def named(self, name: str) -> Span:
        """Return the only span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


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
