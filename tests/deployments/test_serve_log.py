"""Serve's log has the lines of modules that know nothing of Ray, with their fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from ray import serve

from tandem.deployments.request.job import Job
from tandem.deployments.serve_log import join_serves_log
from tandem.deployments.tracing.trace import Trace
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine
from tests.collector import Recorder
from tests.deployments.faults import PROMPT, Failing, World


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """Yield the logger above those of all modules, and put it back to its place."""
    logger = logging.getLogger("tandem")
    before = logger.parent
    yield logger
    logger.parent = before


async def test_a_line_about_a_request_has_its_trace(
    ours: logging.Logger, serve_log: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "get_replica_context", object)
    join_serves_log()
    world = World([Failing(NullEngine(50), "generate", after=5), NullEngine(50)])
    root = Trace(Recorder().tracer, "request")
    job = Job(11, PROMPT, Sampling(max_tokens=24), mode="cloud", trace=root)
    async for _ in world.executor.run(job):
        pass
    async for _ in world.executor.run(replace(job, trace=None)):
        pass
    replans = [record for record in serve_log if record.getMessage().startswith("replan")]
    assert replans[0].__dict__.items() >= root.fields.items()
    assert all("trace_id" not in record.__dict__ for record in replans[1:])


def test_other_processes_keep_their_logs(ours: logging.Logger) -> None:
    before = ours.parent
    join_serves_log()
    assert ours.parent is before
