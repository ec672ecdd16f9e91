from __future__ import annotations

import asyncio
import time

import pytest

from tandem.cluster.link.timer import PreciseTimer, precise_timer
from tests.virtual import run


async def test_in_order_of_time_then_of_asking() -> None:
    timer, order, done = precise_timer(), list[str](), asyncio.Event()
    now_s = time.monotonic()
    timer.call_at(now_s + 0.02, done.set)
    timer.call_at(now_s + 0.01, lambda: order.append("b"))
    timer.call_at(now_s + 0.01, lambda: order.append("c"))
    timer.call_at(now_s + 0.005, lambda: order.append("a"))
    timer.call_at(now_s - 1, lambda: order.append("past"))
    await done.wait()
    assert order == ["past", "a", "b", "c"]


@pytest.mark.parametrize("portable", [False, True])
async def test_calls_when_it_is_time(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = PreciseTimer(asyncio.get_running_loop())
    if portable:
        monkeypatch.setattr(timer, "_fd", -1)
    for pause_s in (0.003, 0.0, 0.01):
        called = asyncio.Event()
        due_s = timer.time() + pause_s
        timer.call_at(due_s, called.set)
        await called.wait()
        assert time.monotonic() >= due_s - 0.0005


async def test_one_a_loop() -> None:
    assert precise_timer() is precise_timer()


def test_a_loop_may_bring_its_own() -> None:
    async def itself() -> None:
        assert precise_timer() is asyncio.get_running_loop()

    run(itself())


@pytest.mark.parametrize("portable", [False, True])
async def test_one_that_raises_stops_no_other(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, raised, called = asyncio.get_running_loop(), list[str](), asyncio.Event()
    loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
    timer = PreciseTimer(loop)
    if portable:
        monkeypatch.setattr(timer, "_fd", -1)

    def fail() -> None:
        raise RuntimeError("injected fault")

    timer.call_at(timer.time(), fail)
    timer.call_at(timer.time() + 0.01, called.set)
    async with asyncio.timeout(5.0):
        await called.wait()
    assert raised == ["injected fault"]
