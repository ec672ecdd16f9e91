"""The executor: answers whose tokens come late, and that go on in a better way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.executor import Reconsider
from tandem.deployments.request.assignment import Assignment, Present, RoutingRequest, Unavailable
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import Sampling
from tandem.engine.null.engine import NullEngine
from tandem.policies.routing.objectives import Estimate, Prediction
from tests.deployments.faults import PROMPT, Failing, World, reference

pytestmark = pytest.mark.virtual_time

TOKENS = 60
QUICK, SLOW = 20.0, 4.0
"""Tokens/s of the device and of the cloud; the router has expected 20."""


class Expecting(World):
    """A world whose router expects of every way what the device gives."""

    reports: list[Report]

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        made = await super()._assign(wanted)
        return expecting(made)

    def _report(self, report: Report) -> None:
        self.reports = [*getattr(self, "reports", []), report]
        super()._report(report)


def expecting(made: Assignment) -> Assignment:
    expected = Prediction(Estimate(0.1), Estimate(1 / QUICK), tokens=TOKENS)
    forecast = Forecast(made.mode, made.device, expected, expected, (made.mode,))
    return Assignment(made.mode, made.endpoints, made.device, briefing=made.briefing, forecast=forecast)


def world(reconsider: Reconsider | None, phone: NullEngine | Failing | None = None) -> Expecting:
    return Expecting([NullEngine(SLOW)], [], {"phone": phone or NullEngine(QUICK)}, reconsider=reconsider)


async def answer(here: Expecting, mode: str | None = None, rate: float = 0.0) -> JobStats:
    ids: list[int] = []
    stats = None
    async for delta in here.executor.run(Job(7, PROMPT, Sampling(max_tokens=TOKENS, reader_rate=rate), mode)):
        ids += delta.ids
        stats = delta.stats
    assert ids == reference(PROMPT, TOKENS)
    assert stats is not None
    await here.executor.settled()
    return stats


def to_the_phone() -> tuple[Callable[[Expecting], None], Reconsider, list[Present]]:
    """Return a way to tell the router's world, its answer that the phone is better, and what it was asked."""
    asked: list[Present] = []
    there: list[Expecting] = []

    async def reconsider(wanted: RoutingRequest, present: Present) -> Assignment | None:
        asked.append(present)
        if present.mode == "device":
            return None
        made = there[0].router.assign_now(
            RoutingRequest("device", "phone", prompt_tokens=3, sent=wanted.sent)
        )
        return expecting(made)

    return there.append, reconsider, asked


async def test_a_late_answer_goes_on_where_it_is_better() -> None:
    tell, reconsider, asked = to_the_phone()
    here = world(reconsider)
    tell(here)
    stats = await answer(here)
    assert stats.by_origin[Origin.CLOUD] < 20 < stats.by_origin[Origin.DEVICE]
    assert (stats.mode, stats.device, stats.replans) == ("device", "phone", 0)
    assert [change.forecast.mode for change in stats.changes] == ["device"]
    assert [move[:2] for move in stats.moves] == [(stats.changes[0].position, "better")]
    assert stats.forecast is not None
    assert stats.forecast.mode == "cloud", "what was expected at first is still told"
    assert asked[0].tpot_s == pytest.approx(1 / SLOW)
    assert stats.total_s < TOKENS / SLOW
    assert [(await engine.stats()).sessions for engine in here.engines.values()] == [0, 0]


async def test_times_are_learnt_of_each_part() -> None:
    tell, reconsider, _ = to_the_phone()
    here = world(reconsider)
    tell(here)
    stats = await answer(here)
    (report,) = here.reports
    assert report.tpot_s == report.ttft_s == 0.0, "they are of two ways"
    cloud, phone = report.by_part()
    assert (cloud.mode, cloud.tokens) == ("cloud", stats.by_origin[Origin.CLOUD])
    assert cloud.tpot_s == pytest.approx(1 / SLOW)
    assert (phone.mode, phone.device, phone.tokens) == ("device", "phone", stats.by_origin[Origin.DEVICE])
    assert phone.tpot_s == pytest.approx(1 / QUICK)
    assert not cloud.whole
    assert not cloud.bill.requests, "it is one answer"


@pytest.mark.parametrize(("mode", "rate"), [("cloud", 0.0), (None, SLOW / 2)])
async def test_no_other_way_is_sought_where_one_is_named_or_nobody_waits(
    mode: str | None, rate: float
) -> None:
    tell, reconsider, asked = to_the_phone()
    here = world(reconsider)
    tell(here)
    stats = await answer(here, mode, rate)
    assert not asked
    assert not stats.changes


async def test_a_router_that_fails_or_hangs_is_none_of_the_answers_business() -> None:
    asked = 0

    async def reconsider(wanted: RoutingRequest, present: Present) -> Assignment | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("it is away")
        await asyncio.Event().wait()
        raise AssertionError

    stats = await answer(world(reconsider))
    assert asked >= 2
    assert stats.by_origin == {Origin.CLOUD: TOKENS}
    assert stats.tpot_s == pytest.approx(1 / SLOW), "nobody waited for it"


@pytest.mark.parametrize("operation", ["open", "generate"])
async def test_an_answer_outlives_the_loss_of_the_better_way(operation: str) -> None:
    tell, reconsider, _ = to_the_phone()
    phone = Failing(NullEngine(QUICK), operation)
    here = world(reconsider, phone)
    tell(here)
    stats = await answer(here)
    assert phone.fired
    assert stats.replans >= 1
    assert stats.by_origin == {Origin.CLOUD: TOKENS}
