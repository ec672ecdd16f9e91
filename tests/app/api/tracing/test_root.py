"""Requests to the API as a collector of traces sees them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from starlette.requests import Request

from tandem.app.api.tracing.root import begin
from tandem.deployments.control.observation import Observation
from tandem.deployments.tracing.exporter import Exporter
from tandem.engine.base import EngineStopped
from tandem.engine.null.engine import NullEngine
from tests.app.api.null_backend import TOKENIZER, NullBackend
from tests.collector import Collector, Recorder, collecting
from tests.deployments.faults import World

CHAT = "/v1/chat/completions"
HELLO = {
    "model": "null",
    "messages": [{"role": "user", "content": "Hello?"}],
    "max_tokens": 9,
    "temperature": 0,
}
BELOW = ("", "/assign", "/cloud", "/cloud/connect", "/cloud/decode", "/cloud/open", "/gate")
"""The spans of a request in mode cloud, below its own."""
TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
async def exporter(
    backend: NullBackend, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Exporter]:
    """Return what the backend exports with, to the collector."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    exporter = Exporter.of_environment("test")
    assert exporter is not None
    backend.tracer = exporter.tracer
    yield exporter
    await exporter.close()


async def test_a_request_is_a_tree(
    http: httpx.AsyncClient,
    backend: NullBackend,
    exporter: Exporter,
    collector: Collector,
    serve_log: list[logging.LogRecord],
) -> None:
    world = World([NullEngine(vocab_size=TOKENIZER.vocab_size)])
    backend.run = world.executor.run  # type: ignore[method-assign]
    reply = await http.post(CHAT, json=HELLO, headers={"traceparent": f"00-{TRACE}-{CLIENT}-01"})
    await exporter.close()
    assert collector.headers["api-key"] == "secret"
    assert collector.paths == [f"chat null{below}" for below in BELOW]
    root = collector.named("chat null")
    assert (root.trace, root.parent) == (TRACE, CLIENT)
    assert root.resource["service.name"] == "tandem"
    usage = reply.json()["usage"]
    assert (
        root.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tandem",
            "gen_ai.request.model": "null",
            "gen_ai.request.max_tokens": 9,
            "gen_ai.response.id": reply.json()["id"],
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 9,
            "http.response.status_code": 200,
            "tandem.mode": "cloud",
        }.items()
    )
    decode = collector.named("decode").attributes
    assert (decode["tandem.tokens"], decode["tandem.endpoint"]) == (9, "verifier:0")
    for span in collector.spans:
        assert span.trace == TRACE
        assert root.began_ns <= span.began_ns <= span.ended_ns <= root.ended_ns
    (line,) = [record for record in serve_log if record.getMessage().startswith("request ")]
    assert (line.trace_id, line.span_id) == (TRACE, root.id)  # type: ignore[attr-defined]
    said = str([(span.attributes, span.resource) for span in collector.spans])
    assert "Hello" not in said


async def test_answers_to_one_request_are_told_apart(
    http: httpx.AsyncClient, backend: NullBackend, exporter: Exporter, collector: Collector
) -> None:
    backend.run = World([NullEngine(vocab_size=TOKENIZER.vocab_size)]).executor.run  # type: ignore[method-assign]
    assert (await http.post(CHAT, json=HELLO | {"n": 2})).status_code == 200
    await exporter.close()
    jobs = [span.attributes["tandem.job"] for span in collector.spans if span.name == "cloud"]
    assert len(set(jobs)) == 2
    root = collector.named("chat null").attributes
    assert (root["gen_ai.request.choice.count"], root["gen_ai.usage.output_tokens"]) == (2, 18)


async def test_a_client_that_leaves_leaves_no_span_open(
    http: httpx.AsyncClient, backend: NullBackend, exporter: Exporter, collector: Collector
) -> None:
    engine = NullEngine(20, vocab_size=TOKENIZER.vocab_size)
    world = World([engine])
    backend.run = world.executor.run  # type: ignore[method-assign]
    async with http.stream("POST", CHAT, json=HELLO | {"stream": True, "max_tokens": 400}) as stream:
        await anext(stream.aiter_bytes())
    async with asyncio.timeout(10):
        while not backend.observations or (await engine.stats()).sessions:  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(0.01)
    await exporter.close()
    assert collector.paths == [f"chat null{below}" for below in BELOW]
    assert collector.named("chat null").attributes["http.response.status_code"] == 499
    assert not any(span.failed for span in collector.spans)


async def test_a_failure_is_marked(
    http: httpx.AsyncClient, backend: NullBackend, exporter: Exporter, collector: Collector
) -> None:
    backend.fail_after = (3, EngineStopped("gone"))
    assert (await http.post(CHAT, json=HELLO)).status_code == 503
    assert (await http.post(CHAT, json=HELLO | {"model": "nobody's"})).status_code == 404
    await exporter.close()
    failed, unknown = [span for span in collector.spans if span.name.startswith("chat")]
    assert (failed.failed, failed.attributes["error.type"]) == (True, "engine_stopped")
    assert (unknown.failed, unknown.attributes["http.response.status_code"]) == (False, 404)


async def test_a_client_that_does_not_sample_is_not_traced(
    http: httpx.AsyncClient, backend: NullBackend, exporter: Exporter, collector: Collector
) -> None:
    await http.post(CHAT, json=HELLO, headers={"traceparent": f"00-{TRACE}-{CLIENT}-00"})
    assert backend.jobs[-1].trace is None
    await http.post("/v1/completions", json={"model": "null", "prompt": "Hi", "max_tokens": 2})
    await exporter.close()
    assert {span.name for span in collector.spans} == {"text_completion null", "gate"}


def test_serves_own_span_of_the_request_is_above_it() -> None:
    recorder = Recorder()
    headers = [(b"traceparent", f"00-{TRACE}-{CLIENT}-01".encode())]
    request = Request({"type": "http", "method": "POST", "path": CHAT, "headers": headers})
    with recorder.tracer.start_as_current_span("serve") as serve:
        trace = begin(recorder.tracer, request)
    assert trace is not None
    trace.end(Observation("cloud", 200), None)
    root = recorder.recorded().named("chat")
    assert root.parent == f"{serve.get_span_context().span_id:016x}"
