"""What answers have taught, on its way to the router.

A call to another process costs far more than what it carries: under load, one takes along what several answers have
to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from deployments.experience import Report

DELAY_S = 0.1
"""How long a report may wait for others."""


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
