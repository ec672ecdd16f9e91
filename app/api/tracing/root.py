"""The root of a request's trace: a span with OpenTelemetry's attributes for generative AI."""

from __future__ import annotations

from opentelemetry import trace as current
from opentelemetry.context import get_current
from opentelemetry.trace import SpanKind, Tracer
from starlette.requests import Request

from tandem.deployments.control.observation import Observation
from tandem.deployments.tracing.trace import Trace, continued
from tandem.engine.base import Sampling

OPERATIONS = {"/v1/completions": "text_completion"}
"""`gen_ai.operation.name` by the end of the path; others are chats."""


class RequestTrace:
    """Trace of one request, from its arrival to its end.

    fields: of a log line about the request.
    """

    def __init__(self, tracer: Tracer, request: Request) -> None:
        """Begin it, below the client's span if the request names one."""
        path = request.url.path
        self._operation = next((name for end, name in OPERATIONS.items() if path.endswith(end)), "chat")
        attributes = {
            "http.request.method": request.method,
            "url.path": path,
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": "tandem",
        }
        context = get_current()  # where Serve traces, its span of the request, which is below the client's
        if not current.get_current_span(context).get_span_context().is_valid:
            context = continued(request.headers)
        self._root = Trace(tracer, self._operation, context, attributes, SpanKind.SERVER)
        self._gate: Trace | None = None
        self.fields = self._root.fields

    def admitted(self, answer: str, model: str, sampling: Sampling, answers: int, prompt_tokens: int) -> None:
        """Note that the request can be run and waits at the gate. answer: id of the response. model: its name, as the
        client has called it."""
        self._root.rename(f"{self._operation} {model}")
        self._root.set(
            {
                "gen_ai.response.id": answer,
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.choice.count": answers if answers > 1 else None,
                "gen_ai.usage.input_tokens": prompt_tokens,
            }
        )
        self._gate = self._root.child("gate")

    def passed_gate(self, error: str | None = None) -> None:
        """Note that the request waits at the gate no more. error: code of its refusal."""
        gate, self._gate = self._gate, None
        if gate is not None:
            if error is not None:
                gate.fail(error)
            gate.end()

    @property
    def of_jobs(self) -> Trace | None:
        """Return the span below which the request's jobs are traced; None if the sampler has left it out."""
        return self._root if self._root.recorded else None

    def end(self, seen: Observation, error: str | None) -> None:
        """End the trace. error: code of the failure, if any."""
        self.passed_gate(error)
        self._root.set(
            {
                "http.response.status_code": seen.status,
                "error.type": error,
                "gen_ai.response.model": seen.model or None,
                "gen_ai.response.finish_reasons": seen.finished or None,
                "gen_ai.usage.output_tokens": sum(seen.origins.values()) if seen.model else None,
                "gen_ai.response.time_to_first_chunk": seen.ttft_s,
                "tandem.mode": seen.mode,
                "tandem.device": seen.device or None,
                "tandem.replans": seen.replans,
                "tandem.usd": seen.usd or None,
            }
        )
        if error is not None and seen.status >= 500:
            self._root.fail(error)
        self._root.end()


def begin(tracer: Tracer | None, request: Request) -> RequestTrace | None:
    """Begin the trace of a request; None where nothing is traced."""
    return None if tracer is None else RequestTrace(tracer, request)
