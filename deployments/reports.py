"""What answers have taught, on its way to the router.

A call to another process costs far more than what it carries: under load, one takes along what several answers have
to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.cost import Used

DELAY_S = 0.1
"""How long a report may wait for others."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer has taught and cost, told to the router once it is over, however it ended.

    tokens: of a complete answer; 0 of one that was broken off.
    used: tokens taken in and given out, whatever became of them.
    server_usd: dollars that the server asks for them.
    joules: that they cost the device.
    device_usd: what those are worth.
    taught: by mode, what its `ModeRun.report` says.
    """

    account: str
    tokens: int
    used: Used
    server_usd: float
    joules: float
    device_usd: float
    taught: Mapping[str, object] = field(default_factory=dict)


class Outbox:
    """Reports that were not sent yet. send: sends them."""

    def __init__(self, send: Callable[[Sequence[Report]], object]) -> None:
        self._send = send
        self._kept: list[Report] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, report: Report) -> None:
        """Send it soon."""
        self._kept.append(report)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self.flush)

    def flush(self) -> None:
        """Send all of them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if kept := self._kept:
            self._kept = []
            self._send(kept)
