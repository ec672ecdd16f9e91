"""The core's thread and the event loop: outcomes in order, and a loop that is called once until it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tandem.engine.config import EngineConfig
from tandem.engine.core.step import Core
from tandem.engine.core.thread import ThreadDriver
from tests.engine.core.plain_runner import PlainRunner


async def test_a_loop_that_has_been_called_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a thread of short steps keeps it at emptying the pipe by which it is woken."""
    driver = ThreadDriver(Core(PlainRunner(8, 4), EngineConfig(kv_blocks=8, block_size=4)), "engine-thread")
    calls: list[Callable[[], None]] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_soon_threadsafe", lambda call, *_: calls.append(call)
    )
    received: list[int] = []

    def tell(*outcomes: int) -> None:
        for outcome in outcomes:
            driver.submit(partial(driver.deliver, received.append, outcome))
        for _ in range(2):  # what is submitted after the first has been carried out comes after its flush
            done = threading.Event()
            driver.submit(done.set)
            assert done.wait(10)

    def broke(error: Any) -> None:
        raise AssertionError(error)

    driver.start(broke)
    tell(1, 2)
    tell(3)
    assert len(calls) == 1
    assert not received
    calls.pop()()
    assert received == [1, 2, 3]
    tell(4)
    calls.pop()()
    assert received == [1, 2, 3, 4]
    assert not calls
    monkeypatch.undo()
    await driver.stop()
