"""A request's trace: spans under spans, and the spans of its operations at endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

TRACEPARENT = "traceparent"
"""W3C's header, and the key under which others carry its value."""
_PROPAGATOR = TraceContextTextMapPropagator()

Attributes = Mapping[str, AttributeValue]


class Trace:
    """A span, and where further ones begin below it.

    trace_id, span_id: in hexadecimal, as logs have them.
    recorded: whether the span is exported; the sampler decides it for the whole tree.
    """

    __slots__ = ("_context", "_span", "_tracer", "recorded", "span_id", "trace_id")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: Context | None = None,
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        began_ns: int | None = None,
    ) -> None:
        """Begin a span. context: of its parent; None: it is a root. began_ns: since the epoch; None: now."""
        self._tracer = tracer
        self._span = tracer.start_span(
            name, context or Context(), kind, attributes=attributes, start_time=began_ns
        )
        self._context = set_span_in_context(self._span, Context())
        of = self._span.get_span_context()
        self.trace_id, self.span_id = f"{of.trace_id:032x}", f"{of.span_id:016x}"
        self.recorded = self._span.is_recording()

    def child(
        self,
        name: str,
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        began_ns: int | None = None,
    ) -> Trace:
        """Begin a span below this one."""
        return Trace(self._tracer, name, self._context, attributes, kind, began_ns)

    def operations(self, attributes: Attributes) -> OperationSpans:
        """Return the spans below this one of a session's operations. attributes: of all of them."""
        return OperationSpans(self, attributes)

    def rename(self, name: str) -> None:
        """Give the span another name than it began with."""
        self._span.update_name(name)

    def set(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Add attributes to the span; those that are None are left out."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def fail(self, kind: str, why: str = "") -> None:
        """Mark the span as failed. kind: the error's code or class, of which there are few."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, why or kind))

    def end(self, ended_ns: int | None = None) -> None:
        """End the span, at once or at an earlier time."""
        self._span.end(ended_ns)

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields by which a log line is found with the span."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}

    @property
    def traceparent(self) -> str:
        """The value of W3C's header `traceparent`, by which another process continues the trace below this span."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return carrier.get(TRACEPARENT, "")


def continued(headers: Mapping[str, str]) -> Context:
    """Return the context that W3C's headers name; empty without them."""
    return _PROPAGATOR.extract(headers, Context())


@contextmanager
def spanned(trace: Trace | None, name: str, attributes: Attributes | None = None) -> Iterator[Trace | None]:
    """Begin a span below `trace` and end it with the block, as failed if that raises; None without a trace."""
    if trace is None:
        yield None
        return
    with _ending(trace.child(name, attributes)) as span:
        yield span


@contextmanager
def served(tracer: Tracer, name: str, traceparent: str) -> Iterator[Trace]:
    """Begin a span below that of a caller elsewhere and end it with the block, as `spanned` does."""
    with _ending(Trace(tracer, name, continued({TRACEPARENT: traceparent}), kind=SpanKind.SERVER)) as span:
        yield span


@contextmanager
def _ending(span: Trace) -> Iterator[Trace]:
    try:
        yield span
    except (asyncio.CancelledError, GeneratorExit):  # nothing went wrong
        raise
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


@dataclass(slots=True)
class _Calls:
    """Calls of one operation. began_s, ended_s: of the first and the last one, on the event loop's clock."""

    began_s: float
    ended_s: float = 0.0
    calls: int = 0
    busy_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    error: str = ""


class OperationSpans:
    """Spans of a session's operations: one for all calls of a kind, as there may be one for every token.

    Such a span lasts from the first call's beginning to the last one's end; `tandem.busy_s` has their sum.
    """

    __slots__ = ("_attributes", "_calls", "_loop", "_parent")

    def __init__(self, parent: Trace, attributes: Attributes) -> None:
        """attributes: of all of them."""
        self._parent, self._attributes = parent, attributes
        self._loop = asyncio.get_running_loop()
        self._calls: dict[str, _Calls] = {}

    @property
    def traceparent(self) -> str:
        """Return the name of the span above, for the session's other end."""
        return self._parent.traceparent

    def called(self, operation: str, began_s: float, took_s: float) -> None:
        """Add a call that is over."""
        calls = self._calls.get(operation)
        if calls is None:
            calls = self._calls[operation] = _Calls(began_s)
        calls.calls += 1
        calls.busy_s += took_s
        calls.ended_s = began_s + took_s

    def count(self, operation: str, counts: Mapping[str, int]) -> None:
        """Add what a call that is over has given, by name."""
        found = self._calls[operation].counts
        for name, count in counts.items():
            found[name] = found.get(name, 0) + count

    def fail(self, operation: str, error: BaseException) -> None:
        """Mark an operation as failed; one that was cancelled is not."""
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._calls[operation].error = type(error).__name__

    def end(self) -> None:
        """Export the spans; what is called afterwards begins new ones."""
        calls, self._calls = self._calls, {}
        origin_ns = time.time_ns() - round(self._loop.time() * 1e9)
        for operation, each in calls.items():
            attributes: dict[str, Any] = {
                **self._attributes,
                "tandem.calls": each.calls,
                "tandem.busy_s": round(each.busy_s, 6),
                **{f"tandem.{name}": count for name, count in each.counts.items()},
            }
            span = self._parent.child(
                operation, attributes, SpanKind.CLIENT, origin_ns + round(each.began_s * 1e9)
            )
            if each.error:
                span.fail(each.error)
            span.end(origin_ns + round(each.ended_s * 1e9))
