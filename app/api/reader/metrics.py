"""Arrival times of an answer's tokens, and how well they serve a reader of a given speed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from tandem.deployments.docstrings import describe
from tandem.deployments.request.job import Delta
from tandem.engine.distribution import TOKEN_S, Distribution
from tandem.policies.reader.quality import buffers, effective_tokens, stall_s


@dataclass(frozen=True, slots=True)
class Reading:
    """Arrival of an answer as its reader sees it.

    rate: tokens/s that the reader takes in; 0 if there is no reader.
    tokens: tokens that the figures rest on.
    stall_s: seconds that the reader waited for tokens after the first.
    effective_tokens: tokens that came when they were needed: with at most 10 % of the output unread a token counts in
        full, from 20 % on not at all.
    buffer_max: the most tokens unread at once.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=describe)

    rate: float = 0.0
    tokens: int = 0
    stall_s: float = 0.0
    effective_tokens: float = 0.0
    buffer_max: int = 0

    @classmethod
    def join(cls, readings: Sequence[Reading]) -> Reading | None:
        """Combine the readings of one request's choices, all of one rate; None if there are none."""
        if not readings:
            return None
        return cls(
            readings[0].rate,
            sum(reading.tokens for reading in readings),
            round(sum(reading.stall_s for reading in readings), 6),
            round(sum(reading.effective_tokens for reading in readings), 3),
            max(reading.buffer_max for reading in readings),
        )


class Arrivals:
    """Times at which the tokens of one choice came from the executor; a paced client gets them later.

    rate: tokens/s that the reader takes in; 0 if there is no reader, and then only gaps are kept.
    gaps_s: times between tokens, or groups of them that came together; bounds are TOKEN_S.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self.gaps_s = Distribution.over(TOKEN_S)
        self._last_s: float | None = None
        self._times_s = array("d")  # on the event loop's clock

    async def noted(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yield `deltas` unchanged, and note when each comes."""
        now_s = asyncio.get_running_loop().time
        async with aclosing(deltas):
            async for delta in deltas:
                self.note(len(delta.ids), now_s())
                yield delta

    def note(self, tokens: int, now_s: float) -> None:
        """Note that `tokens` tokens came at `now_s` on the event loop's clock."""
        if not tokens:
            return
        if self._last_s is not None:
            self.gaps_s.add(now_s - self._last_s, TOKEN_S)
        self._last_s = now_s
        if self.rate:
            self._times_s.extend([now_s] * tokens)

    def reading(self, tokens: int) -> Reading:
        """Return how the first `tokens` tokens came; later ones follow a stop string and are not read."""
        times_s = self._times_s[:tokens]
        if not times_s:
            return Reading(self.rate)
        return Reading(
            self.rate,
            len(times_s),
            stall_s(times_s, self.rate),
            effective_tokens(times_s, self.rate),
            int(buffers(times_s, self.rate).max()),
        )
