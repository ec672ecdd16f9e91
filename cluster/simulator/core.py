"""The simulator's loop: virtual time, and processes written as generators.

A process is a generator. It yields either a time (a float, in seconds from the start: wake me then) or an
`Event` (wake me when it fires, with its value). Leaner than a general framework on purpose: one heap entry a
wait, no objects for timeouts, so that a million speculative rounds take a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

Wait = Any  # float | Event; kept loose because generators of both are mixed freely
Process = Generator[Wait, Any, None]


class Event:
    """Something that happens once, and whoever waits for it. At most one process waits."""

    __slots__ = ("_fired", "_value", "_waiter")

    def __init__(self) -> None:
        self._fired = False
        self._value: Any = None
        self._waiter: Callable[[Any], None] | None = None

    @property
    def fired(self) -> bool:
        """Whether it has happened."""
        return self._fired

    def fire(self, value: Any = None) -> None:
        """It happens now: the waiting process goes on at once, before this returns."""
        if self._fired:
            raise RuntimeError("an event fires once")
        self._fired, self._value = True, value
        if self._waiter is not None:
            self._waiter(value)


class Simulation:
    """Virtual time in seconds. What happens at the same time happens in the order it was scheduled in."""

    __slots__ = ("_heap", "_order", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0  # how many have happened
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def at(self, time_s: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call it then; raises ValueError for a time that is past (an effect before its cause)."""
        if time_s < self.now:
            raise ValueError(f"cannot schedule at {time_s} s: it is {self.now} s already")
        self._order += 1
        heappush(self._heap, (time_s, self._order, call, argument))

    def spawn(self, process: Process) -> None:
        """Start a process now."""

        def resume(value: Any) -> None:
            try:
                wait = process.send(value)
                while type(wait) is not float:
                    if not wait._fired:
                        wait._waiter = resume
                        return
                    wait = process.send(wait._value)
            except StopIteration:
                return
            self.at(wait, resume)

        resume(None)

    def run(self) -> None:
        """Until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, call, argument = heappop(heap)
            self.events += 1
            call(argument)
