"""An engine whose sessions are spans of the requests that opened them, in the engine's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from opentelemetry.trace import SpanKind, Tracer

from tandem.deployments.tracing.exporter import Exporter
from tandem.deployments.tracing.trace import TRACEPARENT, OperationSpans, Trace, continued
from tandem.engine.base import Engine, EngineInfo, EngineStats, Operation, R, Sampling, Session, Tokens


class TracedEngine:
    """The Engine protocol over another engine, for requests that name their span.

    Beside the spans of the same operations at the caller, these are without the way there and back.
    """

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._engine, self._tracer = engine, tracer

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        if not sampling.trace:
            return await self._engine.open(prompt, sampling, log)
        span = Trace(
            self._tracer,
            f"session {self.info.model}",
            continued({TRACEPARENT: sampling.trace}),
            {"tandem.model": self.info.model, "tandem.tokens_in": len(prompt) + len(log)},
            SpanKind.SERVER,
        )
        try:
            session = await self._engine.open(prompt, sampling, log)
        except BaseException as error:
            span.fail(type(error).__name__)
            span.end()
            raise
        return _TracedSession(session, span)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()


class _TracedSession(Session):
    def __init__(self, session: Session, span: Trace) -> None:
        self._session, self._span = session, span
        self._spans: OperationSpans | None = span.operations({})
        self._now = asyncio.get_running_loop().time

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        began_s = self._now()
        async with aclosing(self._session.generate()) as stream:
            async for tokens in stream:
                self._called("decode", began_s, {"tokens": len(tokens.ids)})
                yield tokens
                began_s = self._now()

    async def call(self, operation: Operation[R]) -> R:
        began_s = self._now()
        result = await self._session.call(operation)
        self._called(operation.name, began_s, operation.counts(result))
        return result

    async def cancel(self) -> None:
        spans, self._spans = self._spans, None
        try:
            await self._session.cancel()
        finally:
            if spans is not None:
                spans.end()
                self._span.end()

    def _called(self, operation: str, began_s: float, counts: dict[str, int]) -> None:
        if self._spans is not None:
            self._spans.called(operation, began_s, self._now() - began_s)
            self._spans.count(operation, counts)


def made_traced(make: Callable[[], Engine], part: str) -> Engine:
    """Return the engine that `make` makes, traced if this process is to export spans. part: of the application."""
    return traced(make(), Exporter.of_environment(part))


def traced(engine: Engine, exporter: Exporter | None) -> Engine:
    """Return the engine with its sessions traced; itself without an exporter."""
    return engine if exporter is None else TracedEngine(engine, exporter.tracer)
