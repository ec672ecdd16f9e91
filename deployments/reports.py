"""What answers have taught, on its way to the router.

A call to another process costs far more than what it carries: under load, one takes along what several answers have
to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tandem.deployments.access.accounts import Bill

T = TypeVar("T")

DELAY_S = 0.1
"""How long one may wait for others."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer has taught and cost, told to the router once it is over, however it ended.

    account: who pays.
    device: that took part; "" if none did.
    tokens: of the answer.
    whole: it came to its end.
    bill: what it has cost, whatever became of it.
    taught: by mode, what its `ModeRun.report` says.
    request: the job's id.
    """

    account: str
    device: str
    tokens: int
    whole: bool
    bill: Bill
    taught: Mapping[str, object] = field(default_factory=dict)
    request: int = 0


class Outbox(Generic[T]):
    """What was not sent yet. send: sends it."""

    def __init__(self, send: Callable[[Sequence[T]], object]) -> None:
        self._send = send
        self._kept: list[T] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T) -> None:
        """Send it soon."""
        self._kept.append(item)
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
