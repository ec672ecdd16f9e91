"""Virtual time: an asyncio event loop whose clock jumps to the next timer.

Coroutines, tasks, futures and timers run unchanged, and take no time; only timers do. What is due at the same moment
runs in the order it was asked for, so that a run repeats to the byte. There are no sockets, threads or signals.

There are libraries for this (looptime, timeless_loop). They keep asyncio's own loops with their selector, which runs
timers of the same moment in any order and waits forever where nothing is left to happen.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


MOST_TIMERS = 1000  # before it is looked which of them are cancelled
MOST_AT_ONCE = 10_000_000  # callbacks at one moment, before it is a live-lock


class Deadlock(RuntimeError):
    """Nothing is left to happen, and what was to be run to its end is not there."""


class Livelock(RuntimeError):
    """Callbacks lead to callbacks without end."""


class Handle(list[Any]):
    """A callback to come, as [when, order of asking, callback, arguments]; what asyncio calls a (Timer)Handle. A list
    is made and compared faster than anything else."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2:] = None, ()

    def cancelled(self) -> bool:
        return self[2] is None

    def when(self) -> float:
        when: float = self[0]
        return when


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time. All of it runs in one context (`contextvars`), which nothing here makes use of.

    events: callbacks that have run so far.

    most_events: callbacks after which a run is taken for endless.

    failures: what `call_exception_handler` was told; `run` raises the first.
    """

    def __init__(self) -> None:
        self.events = 0
        self.most_events = sys.maxsize
        self.failures: list[dict[str, Any]] = []
        self._now = 0.0
        self._order = 0
        self._ready: deque[Handle] = deque()
        self._timers: list[Handle] = []
        self._most = MOST_TIMERS
        self._running = False
        self.timer = self  # its times are exact, see cluster.timer

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; raises what it raises, Deadlock, Livelock, or the first error that nobody took.

        Another loop may run in this thread, as in a notebook: it stands still meanwhile.
        """
        outside, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(None, None)
        self._running = True
        task = self.create_task(main)
        try:
            self._run_until(task)
            if self.failures:
                raise self.failures[0].get("exception") or RuntimeError(self.failures[0]["message"])
            return task.result()
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outside)

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        ready, timers, count = self._ready, self._timers, 0
        while True:
            limit = min(count + MOST_AT_ONCE, self.most_events)
            while ready:
                _, _, callback, args = ready.popleft()
                if callback is not None:
                    if count >= limit:
                        raise Livelock(
                            f"no end after {count} callbacks, at {self._now:g} s: next is {callback}"
                        )
                    count += 1
                    callback(*args)
            if task.done():
                break
            if not timers:
                raise Deadlock("nothing is left to happen")
            handle = heappop(timers)
            if handle[2] is not None:
                self._now = when = handle[0]
                ready.append(handle)
                while timers and timers[0][0] == when:  # asyncio, too, runs them before what they lead to
                    ready.append(heappop(timers))
        self.events += count

    # -- what asyncio asks of a loop --------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle((self._now, 0, callback, args))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        if when < self._now:
            when = self._now
        self._order = order = self._order + 1
        handle = Handle((when, order, callback, args))
        heappush(self._timers, handle)
        if len(self._timers) > self._most:
            self._forget_cancelled()
        return handle

    def _forget_cancelled(self) -> None:
        """Time limits are set for long and cancelled soon: where most timers are, those cost time and memory."""
        self._timers[:] = [handle for handle in self._timers if handle[2] is not None]
        heapify(self._timers)
        self._most = 2 * len(self._timers) + MOST_TIMERS

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _timer_handle_cancelled(self, handle: Handle) -> None:
        """It stays until its time comes, or until there are many."""

    async def shutdown_asyncgens(self) -> None:
        """Nothing: generators are closed by whoever iterates them."""
