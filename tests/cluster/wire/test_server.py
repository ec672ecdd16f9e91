"""The serving half of a connection: which sessions end so that others find a place."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from tandem.cluster.wire.server import QUIET_S, EngineHandler, _end_silent


def connection(**changes: Any) -> Mock:
    """Return a connection on which nothing comes, and that does not answer."""
    handler = Mock(EngineHandler, sessions=changes.pop("sessions", 1), end_sessions=AsyncMock())
    answers = AsyncMock(return_value=changes.pop("answers", False))
    said = {"quiet_s": QUIET_S + 0.1, "peer": None, "away": False, "handler": handler, **changes}
    return Mock(answers=answers, **said)


@pytest.mark.parametrize(
    "changes",
    [
        {"answers": True},
        {"quiet_s": QUIET_S},
        {"peer": "a device that has shown who it is"},
        {"away": True},
        {"handler": None},
        {"sessions": 0},
    ],
    ids=["answers", "heard lately", "known", "away", "serves no engines", "has no sessions"],
)
async def test_one_that_may_be_there_keeps_its_sessions(changes: dict[str, Any]) -> None:
    there = connection(**changes)
    assert not await _end_silent([there])
    if there.handler is not None:
        there.handler.end_sessions.assert_not_awaited()
    assert there.answers.await_count == ("answers" in changes), "no other is asked"


async def test_one_that_is_stopped_loses_them_after_less_than_half_a_second() -> None:
    there, silent = connection(answers=True), connection()
    assert await _end_silent([there, silent])
    silent.handler.end_sessions.assert_awaited_once()
    there.handler.end_sessions.assert_not_awaited()
    silent.answers.assert_awaited_once_with(0.4)
