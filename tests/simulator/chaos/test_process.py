"""A process that dies: its calls fail there, and are answered by its successor."""

from __future__ import annotations

import asyncio

import pytest

from tandem.simulator.chaos.process import Process

pytestmark = pytest.mark.virtual_time


class Asked:
    """times: how often it was asked."""

    def __init__(self) -> None:
        self.times = 0

    async def answer(self) -> int:
        self.times += 1
        await asyncio.sleep(1.0)
        return self.times


async def test_a_call_that_dies_with_it_is_answered_by_the_successor() -> None:
    process, asked = Process(), Asked()
    call = asyncio.ensure_future(process.ask(asked.answer))
    await asyncio.sleep(0.5)
    assert process.kill()
    assert not process.kill(), "it is dead already"
    await asyncio.sleep(5.0)
    assert not process.up
    assert asked.times == 1
    process.replace()
    assert await call == 2
    assert asyncio.get_running_loop().time() == 6.5


async def test_a_caller_that_leaves_ends_its_call() -> None:
    process, asked = Process(), Asked()
    call = asyncio.ensure_future(process.ask(asked.answer))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await process.ask(asked.answer) == 2
