"""An event loop whose clock leaps: it stands still while anything can run, then goes to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Leaping(selectors.DefaultSelector):
    """Instead of waiting, adds the time that it should have waited. now_s: seconds since the loop's beginning."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits and no timer is set"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


def timeless(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` with such a clock; it must wait for nothing outside the loop."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
