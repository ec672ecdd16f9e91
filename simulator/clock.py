"""Virtual time: an asyncio event loop whose clock jumps to the next timer.

Coroutines, tasks, futures and timers run unchanged, and take no time; only timers do. Callbacks of the same moment run
in the order they were scheduled, so that a run repeats to the byte. There are no sockets, threads or signals.

Libraries for this (looptime, timeless_loop) keep asyncio's own loops with their selector, which runs timers of the
same moment in any order and waits forever when no timer is left.
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


MOST_TIMERS = 1000  # before cancelled ones are removed
MOST_AT_ONCE = 10_000_000  # callbacks at one moment that count as a live-lock


class Deadlock(RuntimeError):
    """No callback is left, and the coroutine to run has not ended."""


class Livelock(RuntimeError):
    """Callbacks schedule callbacks without end."""


class Handle(list[Any]):
    """A scheduled callback, as [when, order, callback, arguments]; asyncio's (Timer)Handle. A list is made and
    compared faster than anything else."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2:] = None, ()

    def cancelled(self) -> bool:
        return self[2] is None

    def when(self) -> float:
        when: float = self[0]
        return when


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time. It runs in one context (`contextvars`), which nothing here uses.

    events: callbacks run so far.
    most_events: callbacks after which a run counts as endless.
    failures: calls of `call_exception_handler`; `run` raises the first.
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
        """Run a coroutine to its end; raises what it raises, Deadlock, Livelock, or the first unhandled error of a
        task.

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
                while (
                    timers and timers[0][0] == when
                ):  # like asyncio, run them before the callbacks that they schedule
                    ready.append(heappop(timers))
        self.events += count

    # -- asyncio's event loop interface --------------------------------------------------------------------

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
        """Remove cancelled timers: timeouts are long and cancelled soon, and many of them cost time and memory."""
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

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call at once, in this thread: what others would do takes no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _timer_handle_cancelled(self, handle: Handle) -> None:
        """Ignore it: a cancelled timer stays until its time comes, or until there are many."""

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: generators are closed by their consumers."""
