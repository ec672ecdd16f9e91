"""Timers of an event loop that are exact to some ten microseconds.

asyncio's own timers round up to a millisecond, and uvloop's clock counts in milliseconds: a tenth of a short link's
round trip. Linux's timerfd wakes the loop like any other descriptor; elsewhere the loop's own timers are used. Waking
takes time, too, and longer on a busy machine: the timer learns the median of it, and fires earlier by that.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import time
import weakref
from collections.abc import Callable
from typing import Protocol

_FIRST_LEAD_S, _MOST_LEAD_S, _STEP_S = 0.00006, 0.0005, 0.00001
_CLOCK_MONOTONIC, _ABSOLUTE, _NONBLOCK_CLOEXEC = 1, 1, 0o2004000


class Timer(Protocol):
    """Clock and timers of emulated times. A loop in virtual time is one, as its times are exact."""

    def time(self) -> float:
        """Return the seconds of the event loop's clock."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], None], /) -> object:
        """Run `callback` at `when_s`; callbacks of equal times run in order of the calls."""
        ...


class _Timerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "s", "ns")]


class PreciseTimer:
    """The Timer of an event loop in real time, whose clock is `time.monotonic()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._libc = ctypes.CDLL(None)
        self._lead_s = _FIRST_LEAD_S
        self._fd = -1
        if hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)
            loop.add_reader(self._fd, _fire, weakref.ref(self))

    def time(self) -> float:
        return time.monotonic()

    def call_at(self, when_s: float, callback: Callable[[], None], /) -> None:
        """Run `callback` at `when_s`, never more than half a millisecond before it."""
        heapq.heappush(self._due, (when_s, next(self._order), callback))
        if self._due[0][0] == when_s:
            self._arm(when_s)

    def _arm(self, when_s: float) -> None:
        early_s = when_s - self._lead_s
        if self._fd < 0:
            asyncio.get_running_loop().call_later(max(0.0, early_s - time.monotonic()), self.fire)
            return
        whole = int(early_s)
        spec = _Timerspec(0, 0, whole, max(1, int((early_s - whole) * 1e9)))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def fire(self) -> None:
        """Run due callbacks and set the clock for the next."""
        now_s = time.monotonic()
        if self._due:
            late = now_s > self._due[0][0]
            self._lead_s = min(_MOST_LEAD_S, max(0.0, self._lead_s + (_STEP_S if late else -_STEP_S)))
        try:
            while self._due and self._due[0][0] <= now_s + self._lead_s:
                heapq.heappop(self._due)[2]()
        finally:  # a callback that raises must not stop the clock for the others
            if self._due:
                self._arm(self._due[0][0])


def _fire(timer: weakref.ref[PreciseTimer]) -> None:
    if (alive := timer()) is not None:
        try:
            os.read(alive._fd, 8)
        except BlockingIOError:
            return  # it was set anew while this call waited its turn
        alive.fire()


_timers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PreciseTimer] = weakref.WeakKeyDictionary()


def precise_timer() -> Timer:
    """Return the running loop's timer; a loop in virtual time has its own, as an attribute `timer`."""
    loop = asyncio.get_running_loop()
    if (own := getattr(loop, "timer", None)) is not None:
        timer: Timer = own
        return timer
    if loop not in _timers:
        _timers[loop] = PreciseTimer(loop)
    return _timers[loop]
