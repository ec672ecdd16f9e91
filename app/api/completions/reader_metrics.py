"""How an answer came for the one who reads it: the times of its tokens, and what a reader makes of them."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from tandem.deployments.request.job import Delta
from tandem.policies.reader.quality import buffers, effective_tokens, stall_s


@dataclass(frozen=True, slots=True)
class Reading:
    """One choice, as a reader of `rate` tokens/s met it; all of it is 0 where nobody reads along (rate 0).

    tokens: those that the figures rest on. stall_s: seconds the reader waited after the first token;
    effective_tokens: tokens that came neither long before they were needed (the 10 %/20 % rule of
    `policies.reader.quality`); buffer_max: the most tokens that were there unread.
    """

    rate: float = 0.0
    tokens: int = 0
    stall_s: float = 0.0
    effective_tokens: float = 0.0
    buffer_max: int = 0


class Arrivals:
    """When the tokens of one choice came from the executor, which a paced delivery may be long before the
    client had them. rate: its reader's tokens/s, or 0 for nobody."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self._times_s = array("d")  # of the event loop's clock

    async def noted(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """`deltas`, unchanged."""
        now_s = asyncio.get_running_loop().time
        async with aclosing(deltas):
            async for delta in deltas:
                self.note(len(delta.ids), now_s())
                yield delta

    def note(self, tokens: int, now_s: float) -> None:
        """So many tokens came at once."""
        if self.rate:
            self._times_s.extend([now_s] * tokens)

    def reading(self, tokens: int) -> Reading:
        """Of the first so many tokens: what came after a stop string, nobody read."""
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
