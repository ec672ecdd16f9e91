"""Writing: the target's pace is that after its first token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from tandem.deployments.modes.sketch.questions import SketchBriefing
from tandem.deployments.modes.sketch.writing import Writer
from tandem.deployments.modes.speculative.mode import PairBriefing, Speculation, SpeculativeMode
from tandem.deployments.request.job import Job
from tandem.deployments.request.session import EndpointSession
from tandem.engine.base import Sampling, Tokens
from tandem.policies.estimators.moving_average import MovingAverage
from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.window import StaticWindow

pytestmark = pytest.mark.virtual_time


async def test_the_targets_pace_is_that_after_its_first_token() -> None:
    async def stream() -> AsyncGenerator[Tokens, None]:
        for token, pause_s in enumerate((1.0, 0.25, 0.75)):
            await asyncio.sleep(pause_s)
            yield Tokens([token])

    target = Mock(EndpointSession, generate=stream, open=AsyncMock(), cancel=AsyncMock())
    sessions = MagicMock(get={"target": target}.get)
    sessions.__getitem__.return_value = target
    seen_s = MovingAverage()
    writer = Writer(Mock(SpeculativeMode), seen_s)
    writer.assigned(sessions, SketchBriefing())
    assert not writer.speculates
    found = [
        (delta.position, writer.pace_s)
        async for delta in writer.write(Job(1, (5,), Sampling(), mode="sketch"), [7, 8])
    ]
    assert [position for position, _ in found] == [2, 3, 4]
    assert [pace_s for _, pace_s in found] == pytest.approx([0.0, 0.25, 0.5])
    assert seen_s.value == pytest.approx(0.5)
    assert target.cancel.await_count == 1, "what was open before"


def test_it_speculates_where_there_is_a_pair() -> None:
    writer = Writer(Mock(SpeculativeMode), MovingAverage())
    pair = PairBriefing(0.0, 8, PairHistory(StaticWindow()).snapshot())
    for briefing, speculates in ((SketchBriefing(pair), True), (SketchBriefing(), False), (None, False)):
        writer.assigned(MagicMock(), briefing)
        assert writer.speculates is speculates


def test_what_all_its_rounds_taught_is_reported() -> None:
    writer = Writer(Mock(SpeculativeMode), MovingAverage())
    assert (writer.report(), writer.drafts) == ([], (0, 0))
    writer._runs = [
        Mock(report=Mock(return_value=taught), figures=Speculation(drafted=4, accepted=3))
        for taught in (["one"], None, ["two", "three"])
    ]
    assert writer.report() == ["one", "two", "three"]
    assert writer.drafts == (12, 9)
