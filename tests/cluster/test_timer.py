from __future__ import annotations

import asyncio
import time

import pytest

from cluster.timer import PreciseTimer, precise_timer


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
async def test_sleeps_long_enough(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = PreciseTimer(asyncio.get_running_loop())
    if portable:
        monkeypatch.setattr(timer, "_fd", -1)
    for pause_s in (0.003, 0.0, 0.01):
        due_s = time.monotonic() + pause_s
        await timer.sleep_until(due_s)
        assert time.monotonic() >= due_s - 0.0005


async def test_a_cancelled_sleeper_disturbs_nobody() -> None:
    timer = precise_timer()
    due_s = time.monotonic() + 0.01
    sleeper = asyncio.create_task(timer.sleep_until(due_s))
    await asyncio.sleep(0)
    sleeper.cancel()
    await timer.sleep_until(due_s + 0.001)
    assert sleeper.cancelled()


async def test_one_a_loop() -> None:
    assert precise_timer() is precise_timer()
