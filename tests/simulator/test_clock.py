"""Virtual time: what asyncio promises, without waiting."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.simulator.clock import MOST_TIMERS, Deadlock, Livelock, VirtualLoop


def run(main):
    loop = VirtualLoop()  # type: ignore[abstract]
    return loop.run(main), loop


async def test_this_test_runs_on_a_real_loop():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)


async def test_it_runs_inside_another_loop_as_in_a_notebook():
    async def main() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    outside, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
    assert VirtualLoop().run(main()) == 3600.0  # type: ignore[abstract]
    assert asyncio.get_running_loop() is outside
    assert sys.get_asyncgen_hooks() == hooks
    await asyncio.sleep(0)


def test_the_clock_jumps_to_the_next_timer():
    async def main() -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        for seconds in (3600.0, 0.0, 1e-9):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert run(main())[0] == [3600.0, 3600.0, 3600.0 + 1e-9]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_what_is_due_together_runs_in_the_order_it_was_asked_for(delays: list[int]):
    async def main() -> list[int]:
        loop, ran = asyncio.get_running_loop(), []
        for i, delay in enumerate(delays):
            loop.call_later(float(delay), ran.append, i)
        await asyncio.sleep(10)
        return ran

    expected = [i for _, i in sorted((delay, i) for i, delay in enumerate(delays))]
    assert run(main())[0] == expected


def test_a_cancelled_timer_does_not_fire():
    async def main() -> list[str]:
        loop, ran = asyncio.get_running_loop(), []
        loop.call_later(1, ran.append, "kept")
        handle = loop.call_later(1, ran.append, "cancelled")
        soon = loop.call_soon(ran.append, "soon")
        handle.cancel()
        soon.cancel()
        assert handle.cancelled()
        await asyncio.sleep(2)
        return ran

    assert run(main())[0] == ["kept"]


def test_cancelled_timers_do_not_pile_up():
    loop, ran = VirtualLoop(), list[int]()  # type: ignore[abstract]

    async def main() -> None:
        for i in range(5 * MOST_TIMERS):
            loop.call_later(7200.0, ran.append, -1).cancel()
            if i % 10 == 0:
                loop.call_later(7000.0 - i, ran.append, i)
        assert len(loop._timers) < 3 * MOST_TIMERS
        await asyncio.sleep(7300.0)

    loop.run(main())
    assert ran == sorted(range(0, 5 * MOST_TIMERS, 10), reverse=True)


def test_timeouts_cancellation_and_primitives_work():
    async def main() -> list[object]:
        said: list[object] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        said.append(asyncio.get_running_loop().time())
        lock, order = asyncio.Lock(), []

        async def locked(name: str) -> None:
            async with lock:
                await asyncio.sleep(1)
                order.append(name)

        tasks = [asyncio.create_task(locked(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        said += [order, asyncio.get_running_loop().time()]
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(n)) for n in (1, 2)], return_when=asyncio.FIRST_COMPLETED
        )
        said += [len(done), len(pending)]
        await asyncio.wait(pending)

        async def count():
            try:
                for i in range(3):
                    yield i
            finally:
                said.append("closed")

        async with aclosing(count()) as numbers:
            async for number in numbers:
                said.append(number)
                break
        return said

    assert run(main())[0] == [5.0, ["a", "c"], 7.0, 1, 1, 0, "closed"]


def test_tasks_are_known_to_asyncio():
    async def main() -> tuple[int, bool]:
        task = asyncio.create_task(asyncio.sleep(1), name="sleeper")
        found = len(asyncio.all_tasks()), asyncio.current_task() in asyncio.all_tasks()
        await task
        return found

    assert run(main())[0] == (2, True)


def test_an_error_of_the_main_coroutine_is_raised():
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(main())


def test_an_error_of_a_callback_is_raised():
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_nothing_left_to_happen_is_a_deadlock():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main())


@pytest.mark.parametrize(
    ("period_s", "says"),
    [(0.0, "no end after 100 callbacks, at 0 s"), (0.5, "no end after 1000 callbacks, at 500 s")],
)
def test_what_goes_on_for_ever_is_a_live_lock(
    period_s: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks repeat at one moment, and as time goes by."""
    monkeypatch.setattr("tandem.simulator.clock.MOST_AT_ONCE", 100)
    loop = VirtualLoop()  # type: ignore[abstract]
    loop.most_events = 1000

    def again() -> None:
        if period_s:
            loop.call_later(period_s, again)
        else:
            loop.call_soon(again)

    async def main() -> None:
        again()
        await loop.create_future()

    with pytest.raises(Livelock, match=f"{says}: next is .*again"):
        loop.run(main())


def test_loops_do_not_nest_and_leave_nothing_behind():
    run(asyncio.sleep(1))
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_events_are_counted():
    _, loop = run(asyncio.sleep(1))
    assert loop.events >= 2


def test_what_others_do_in_a_thread_takes_no_time():
    def fail() -> None:
        raise ValueError("it cannot be done")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, max, 1, 2) == 2
        with pytest.raises(ValueError, match="cannot be done"):
            await loop.run_in_executor(None, fail)
        return loop.time()

    assert run(main())[0] == 0.0
