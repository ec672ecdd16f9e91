"""Experiments over HTTP, for operators: those that there are, and one that runs, as events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from tandem.app.api.experiments.catalogue import Value, experiment, experiments
from tandem.app.api.experiments.process import Event, simulated
from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.app.api.http.errors import ApiError
from tandem.app.api.http.kept_streams import EVENT_STREAM
from tandem.app.api.http.sending import Sending
from tandem.deployments.docstrings import describe

AT_ONCE = 2
"""Experiments that a replica of the API runs at once, of different keys."""


class ExperimentForm(BaseModel):
    """An experiment to run.

    experiment: its name.
    settings: values of settings that can be moved, by key.
    vary: values of which every combination is simulated, by key; left out: those of the experiment.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe)

    experiment: str
    settings: dict[str, Value] = Field(default_factory=dict)
    vary: dict[str, list[Value]] | None = None

    def order(self) -> Event:
        """Return the order for the process. Raises ApiError for what is not offered."""
        found = experiment(self.experiment)
        vary = found.vary if self.vary is None else self.vary
        found.check(self.settings, vary)
        return {
            "config": found.config,
            "fixed": [f"{key}={json.dumps(value)}" for key, value in self.settings.items()],
            "vary": [f"{key}={','.join(map(json.dumps, values))}" for key, values in vary.items()],
        }


def add_experiments(api: FastAPI, backend: ServingBackend) -> None:
    """Add the endpoints."""
    running: set[str] = set()

    @api.get("/v1/experiments")
    async def offered(request: Request) -> dict[str, Any]:
        """List the experiments, their settings and what they vary. For operators."""
        await operator(request, backend)
        return {"object": "list", "data": [_shown(name) for name in experiments()]}

    @api.post(
        "/v1/experiments",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
        openapi_extra=described(ExperimentForm),
    )
    async def run(request: Request) -> Response:
        """Run an experiment in a process of its own: events with its progress and the figures of each simulation. It
        ends when the client leaves. For operators, one at a time."""
        account = (await operator(request, backend)).account
        order = (await body_of(request, ExperimentForm, backend.api)).order()
        if account in running or len(running) >= AT_ONCE:
            raise ApiError(
                429, "an experiment is running", "rate_limit_error", "overloaded", retry_after_s=5.0
            )
        running.add(account)
        try:
            events = simulated(order)
            first = await anext(events)
            if first["type"] in ("refused", "failed"):
                await events.aclose()
                raise ApiError(400, first["message"], code="invalid_value", param="settings")
        except BaseException:
            running.discard(account)
            raise
        return ExperimentStream(first, events, lambda: running.discard(account))


class ExperimentStream(Response):
    """Events of an experiment, which ends with its client.

    over: called when it has ended.
    """

    def __init__(self, first: Event, events: AsyncGenerator[Event, None], over: Callable[[], object]) -> None:
        super().__init__()
        self._first, self._events, self._over = first, events, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._events):
                await Sending(receive, send).run(self._tell, lambda: None)
        finally:
            self._over()

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        await send(_body(self._first))
        async for event in self._events:
            await send(_body(event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(event: Event) -> dict[str, Any]:
    data = json.dumps(event, separators=(",", ":")).encode()
    return {"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True}


def _shown(name: str) -> dict[str, Any]:
    found = experiment(name)
    return {
        "name": name,
        "title": found.title,
        "about": found.about,
        "settings": [msgspec.to_builtins(each) | {"default": found.default(each)} for each in found.settings],
        "vary": found.vary,
        "labels": found.labels | {each.key: each.label for each in found.settings},
    }
