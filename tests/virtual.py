"""Tests in virtual time, on the simulator's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tandem.simulator.clock import VirtualLoop

P = ParamSpec("P")


class Clock(VirtualLoop):
    """armed: how many timers were set."""

    def __init__(self) -> None:
        super().__init__()
        self.most_events = 10_000_000
        self.armed = 0

    def call_at(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.armed += 1
        return super().call_at(*args, **options)


def run(main: Coroutine[Any, Any, object]) -> Clock:
    """Run it in virtual time."""
    clock = Clock()  # type: ignore[abstract]
    clock.run(main)
    return clock


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in virtual time."""

    @wraps(test)
    def in_time(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_time


def now_s() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
