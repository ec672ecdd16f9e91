"""Course of an answer: how its tokens come in each way in which it is given, beside what was forecast, and the search
for a better way when they come late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tandem.deployments.learning.report import Part
from tandem.deployments.request.assignment import Assignment, Present, RoutingRequest
from tandem.deployments.request.forecast import Forecast
from tandem.engine.base import EngineError
from tandem.policies.routing.pace import Pace

Reconsider = Callable[[RoutingRequest, Present], Awaitable[Assignment | None]]


class _Part:
    """Part of an answer that is given in one way."""

    def __init__(self, forecast: Forecast, rate: float, began_s: float) -> None:
        self._forecast, self._began_s = forecast, began_s
        self._pace = Pace(forecast.expected.tpot_s, rate)
        self._tokens = 0
        self._first_s = self._last_s = self._first_stall_s = self._last_stall_s = 0.0

    def delivered(self, tokens: int, stall_s: float, ahead_s: float, now_s: float) -> float:
        if not self._tokens:
            self._first_s, self._first_stall_s = now_s, stall_s
        self._tokens += tokens
        self._last_s, self._last_stall_s = now_s, stall_s
        return self._pace.delivered(tokens, ahead_s, now_s)

    def so_far(self) -> Part | None:
        """Return what has come; None if nothing has."""
        if not self._tokens:
            return None
        later = self._tokens - 1
        return Part(
            self._forecast,
            self._tokens,
            self._first_s - self._began_s,
            (self._last_s - self._first_s) / later if later else 0.0,
            self._last_stall_s - self._first_stall_s,
        )


class Course:
    """Course of one answer whose way the router has chosen among several.

    reconsider: asks the router for another assignment for the rest; None where the answer had better go on as it does.
    rate: tokens/s of its reader; 0 without one.
    timeout_s: longest that the router is waited for, in the background.
    parts: in the ways that it has left, the first one first.
    """

    def __init__(self, reconsider: Reconsider, rate: float, timeout_s: float) -> None:
        self._reconsider, self._rate, self._timeout_s = reconsider, rate, timeout_s
        self._part: _Part | None = None
        self._asked: asyncio.Task[Assignment | None] | None = None
        self.parts: list[Part] = []

    def begin(self, forecast: Forecast | None, now_s: float) -> None:
        """Begin a part, after `end_part`. forecast: of it; None if there is none, and nothing better is sought then."""
        self._part = None if forecast is None else _Part(forecast, self._rate, now_s)

    def delivered(self, tokens: int, stall_s: float, ahead_s: float, now_s: float) -> float:
        """Record that tokens have come; return the seconds per token lately if a better way is to be sought, as
        `Pace.delivered`; 0 otherwise. stall_s: that the reader has waited up to now."""
        if self._part is None:
            return 0.0
        tpot_s = self._part.delivered(tokens, stall_s, ahead_s, now_s)
        return tpot_s if self._asked is None or self._asked.done() else 0.0

    def seek(self, wanted: RoutingRequest, present: Present) -> None:
        """Ask for a better way, in the background."""
        self._asked = asyncio.get_running_loop().create_task(self._answer(wanted, present))

    @property
    def better(self) -> Assignment | None:
        """Assignment for the rest in a better way; None if none has been found."""
        return self._asked.result() if self._asked is not None and self._asked.done() else None

    def end_part(self) -> None:
        """End the part that is under way, and the search for a better one."""
        if self._asked is not None:
            self._asked.cancel()
        if self._part is not None and (part := self._part.so_far()) is not None:
            self.parts.append(part)
        self._part = self._asked = None

    async def _answer(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reconsider(wanted, present)
        except (EngineError, TimeoutError):  # the answer goes on as it does
            return None
