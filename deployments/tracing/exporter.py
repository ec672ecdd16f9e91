"""Export of spans over OTLP (HTTP or gRPC), as OpenTelemetry's own environment variables say; off while they name no
collector.

OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT switch it on. The libraries read the others
themselves: headers, certificates, timeouts, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("ray.serve")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP, GRPC = "http/protobuf", "grpc"
CLOSE_S = 2.0
"""Longest wait for a collector at a process's end."""


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment asks for traces, and names a collector that is spoken to here."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    if not any(environment.get(name) for name in ENDPOINTS):
        return False
    if (protocol := _protocol(environment)) not in (HTTP, GRPC):
        logger.warning("no traces: OTLP goes out as %s or %s here, not as %s", HTTP, GRPC, protocol)
        return False
    return True


def _protocol(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in PROTOCOLS if environment.get(name)), HTTP)


def _sender() -> SpanExporter:
    """Return the library's exporter over the protocol that the environment names."""
    # Here, so that only traced processes wait for these imports.
    if _protocol(os.environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Exporter:
    """A process's spans on their way to the collector.

    tracer: begins them.
    """

    def __init__(self, part: str) -> None:
        """part: of the application, in `service.instance.id`."""
        # Here, so that only traced processes wait for these imports.
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        version = metadata.version("tandem-llm")
        here = f"{part}@{socket.gethostname()}:{os.getpid()}"
        own = {"service.name": "tandem", "service.version": version, "service.instance.id": here}
        given = OTELResourceDetector().detect().attributes
        resource = Resource.create({**own, **given})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._sender: SpanExporter = _sender()
        self._provider.add_span_processor(BatchSpanProcessor(self._sender))
        self.tracer = self._provider.get_tracer("tandem", version)

    @classmethod
    def of_environment(cls, part: str) -> Exporter | None:
        """Return the process's exporter, or None."""
        return cls(part) if wanted() else None

    async def close(self) -> None:
        """Export what is left, and stop; what a collector does not take within CLOSE_S is lost."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has not waited
                loop.call_soon_threadsafe(over.set)

        # Of no executor, for whose threads the end of the process would wait.
        threading.Thread(target=shut_down, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await over.wait()
        if not over.is_set():
            logger.warning("the collector of traces takes too long: the last spans are lost")
            self._sender.shutdown()
