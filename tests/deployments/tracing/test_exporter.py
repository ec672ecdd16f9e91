"""Export of spans: when there is one, under which names, and that a collector that is away holds nobody up."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

import pytest

from tandem.deployments.tracing import exporter as exporting
from tandem.deployments.tracing.exporter import Exporter, wanted
from tandem.deployments.tracing.trace import Trace
from tests.collector import collecting, collecting_over_grpc

AT = "OTEL_EXPORTER_OTLP_ENDPOINT"
THERE = {AT: "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({AT: ""}, False),
        (THERE, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        (THERE | {"OTEL_SDK_DISABLED": "true"}, False),
        (THERE | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (THERE | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (THERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (THERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        (THERE | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, False),
    ],
)
def test_the_environment_decides(environment: Mapping[str, str], expected: bool) -> None:
    assert wanted(environment) == expected


async def test_the_resource_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv(AT, collector.address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "answers")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        exporter = Exporter.of_environment("verifier")
        assert exporter is not None
        Trace(exporter.tracer, "a").end()
        await exporter.close()
        await exporter.close()
    (span,) = collector.spans
    assert span.resource["service.name"] == "answers"
    assert span.resource["deployment.environment"] == "test"
    assert span.resource["service.instance.id"].startswith("verifier@")


async def test_a_collector_may_speak_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting_over_grpc() as collector:
        monkeypatch.setenv(AT, collector.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=ours")
        exporter = Exporter.of_environment("verifier")
        assert exporter is not None
        Trace(exporter.tracer, "a").end()
        await exporter.close()
    (span,) = collector.spans
    assert span.resource["service.instance.id"].startswith("verifier@")
    assert collector.headers["api-key"] == "ours"


async def test_a_collector_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(AT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        exporter = Exporter.of_environment("test")
        assert exporter is not None
        for _ in range(3000):  # more than are kept
            Trace(exporter.tracer, "a").end()
        began_s = time.monotonic()
        await exporter.close()
        assert time.monotonic() - began_s < 5.0, "the library alone waits for 30 s"
