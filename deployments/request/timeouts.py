"""Time limits without a timer for each wait: one timer, which is set again if it fires too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts after which an endpoint counts as lost, seconds.

    connect_s, open_s: to reach it and to be admitted.
    first_s: for its first answer, prefill and queue included.
    step_s: longest for every later one, and for the first of a replaceable endpoint; shorter if another endpoint could
        continue, see `policies.reader.stall_timeout`.
    """

    connect_s: float = 5.0
    open_s: float = 15.0
    first_s: float = 120.0
    step_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request.

    replans: most times that it may continue elsewhere, after it has lost an endpoint that had admitted it, without a
        token in between.
    assign_s: timeout of an assignment; of finding an endpoint that admits a request; for a begun answer, of room, too.
    timeouts: timeouts at an endpoint.
    """

    replans: int = 4
    assign_s: float = 60.0
    timeouts: Timeouts = Timeouts()


LEAST_S = 0.1
"""Shortest interval at which an expired timeout looks whether endpoints can be reached again."""


def always() -> float:
    """Return the time since which endpoints that are never away can be reached: minus infinity."""
    return float("-inf")


class Deadline:
    """Time limit of one wait after another, each with a limit of its own.

        deadline.start(loop.time(), limit_s)
        try:
            ...  # a single wait, in this task
        except asyncio.CancelledError:
            if deadline.stop():
                raise TooLate from None
            raise
        deadline.stop()

    A limit that passes cancels the task, as `asyncio.timeout` does, and is told from a cancellation from outside as it
    does: where both arrive, the one from outside wins. But where limits are long and waits are short, which is nearly
    always, a wait costs two assignments: its end leaves the timer running, and a timer that fires before the limit of
    what is then waited for is set again.
    """

    __slots__ = (
        "_cancelling",
        "_expired",
        "_late",
        "_late_at",
        "_limit_at",
        "_limit_s",
        "_loop",
        "_reached_s",
        "_task",
        "_timer",
        "_timer_at",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reached_s: Callable[[], float] = always,
        late: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """Create a deadline.

        reached_s: time of the loop's clock since which endpoints can be reached, infinite while they cannot; a timeout
            starts again then.
        late: called when a wait is late; returns the seconds after which it is called again, if that is running still.
        """
        self._loop, self._reached_s, self._late = loop, reached_s, late
        self._late_at = float("inf")
        self._limit_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._limit_at = float("inf")  # times of the loop's clock
        self._task: asyncio.Task[object] | None = None  # that waits
        self._cancelling = 0
        self._expired = False

    @property
    def waiting(self) -> bool:
        """Whether a wait is running; there can be only one."""
        return self._task is not None

    def start(self, now_s: float, limit_s: float, late_s: float = float("inf")) -> None:
        """Begin a wait of the current task of at most `limit_s` seconds. now_s: on the loop's clock.

        late_s: seconds after which it is late.
        """
        assert self._task is None, "one wait at a time"
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task, self._cancelling, self._expired = task, task.cancelling(), False
        self._limit_s = limit_s
        self._limit_at, self._late_at = now_s + limit_s, now_s + late_s
        next_at = self._limit_at if limit_s < late_s else self._late_at
        if next_at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set(next_at)

    def stop(self) -> bool:
        """End the wait; return whether the timeout cancelled the task, and nothing else did."""
        task, self._task = self._task, None
        self._limit_at = self._late_at = float("inf")
        if not self._expired or task is None:
            return False
        return task.uncancel() <= self._cancelling

    def expire(self) -> None:
        """Have the limit of the wait that is running pass now."""
        if self._task is not None and not self._expired:
            self._expired = True
            self._task.cancel()

    def close(self) -> None:
        """Cancel all waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, float("inf")

    def _set(self, at: float) -> None:
        self._timer, self._timer_at = self._loop.call_at(at, self._fire, at), at

    def _fire(self, at: float) -> None:
        self._timer, self._timer_at = None, float("inf")
        if self._task is None or self._expired:
            return
        if self._limit_at <= at and (since_return := self._reached_s() + self._limit_s) > at:
            self._limit_at = min(since_return, at + max(self._limit_s, LEAST_S))
        if self._limit_at <= at:
            self.expire()
            return
        if self._late_at <= at:
            self._late_at = at + self._late()
        self._set(min(self._limit_at, self._late_at))
