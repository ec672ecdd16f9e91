"""Engines whose sessions are spans: below the request's own, and only where it has one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.request.job import Job
from tandem.deployments.tracing.engine import TracedEngine, traced
from tandem.deployments.tracing.trace import Trace
from tandem.engine.base import NoCapacity, Sampling
from tandem.engine.null.engine import NullEngine
from tests import engine_contract
from tests.collector import Recorder
from tests.deployments.faults import PROMPT, Failing, World

pytestmark = pytest.mark.virtual_time

JOB = Job(11, PROMPT, Sampling(max_tokens=24), mode="speculative", device="phone")


async def run(world: World, job: Job) -> None:
    async for _ in world.executor.run(job):
        pass
    await world.executor.settled()


async def test_sessions_are_below_the_mode() -> None:
    here, there = Recorder(), Recorder()
    target, phone = (TracedEngine(NullEngine(50), there.tracer) for _ in range(2))
    world = World([target], devices={"phone": phone})
    root = Trace(here.tracer, "request")
    await run(world, replace(JOB, trace=root))
    mode, found = here.recorded().named("speculative"), there.recorded()
    sessions = [span for span in found.spans if span.name.startswith("session ")]
    assert {(span.trace, span.parent) for span in sessions} == {(mode.trace, mode.id)}
    assert {span.attributes["tandem.tokens_in"] for span in sessions} == {len(PROMPT)}
    assert {"verify", "draft"} < {span.name for span in found.spans}
    assert found.named("verify").attributes["tandem.tokens"] == 24
    for engine in (target, phone):
        assert (await engine.stats()).sessions == 0


async def test_requests_without_a_trace_leave_none() -> None:
    there = Recorder()
    engine = TracedEngine(NullEngine(50), there.tracer)
    await run(World([engine]), replace(JOB, mode="cloud", device=None))
    async with engine_contract.session(engine, PROMPT, Sampling(max_tokens=4, trace="nonsense")) as session:
        await engine_contract.drain(session)
    assert [span.parent for span in there.recorded().spans if span.name.startswith("session ")] == [""]


async def test_an_engine_without_room_fails_the_span() -> None:
    there = Recorder()
    full = Failing(NullEngine(50), "open", error=lambda: NoCapacity("full"))
    engine = TracedEngine(full, there.tracer)
    sampling = Sampling(max_tokens=4, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with pytest.raises(NoCapacity):
        await engine.open(PROMPT, sampling)
    (span,) = there.recorded().spans
    assert (span.failed, span.attributes["error.type"]) == (True, "NoCapacity")


async def test_an_engine_of_a_process_that_exports_nothing_is_itself() -> None:
    engine = NullEngine()
    assert traced(engine, None) is engine
