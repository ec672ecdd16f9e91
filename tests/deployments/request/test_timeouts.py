"""Deadlines: who is cut off and when, what is told from a cancellation from outside, and how few timers it takes."""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.request.timeouts import LEAST_S, Deadline
from tests.virtual import run


async def wait(deadline: Deadline, limit_s: float, takes_s: float) -> bool:
    """Whether it came in time."""
    deadline.start(asyncio.get_running_loop().time(), limit_s)
    try:
        await asyncio.sleep(takes_s)
    except asyncio.CancelledError:
        if deadline.stop():
            return False
        raise
    deadline.stop()
    return True


waits = st.lists(st.tuples(st.floats(0.01, 9), st.floats(0, 9), st.floats(0, 3)), max_size=12)


@given(waits)
def test_a_wait_ends_at_its_limit_or_before(steps: list[tuple[float, float, float]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop)
        for limit_s, takes_s, pause_s in steps:
            began_s = loop.time()
            in_time = await wait(deadline, limit_s, takes_s)
            assert loop.time() - began_s == pytest.approx(min(limit_s, takes_s), abs=1e-6)
            assert in_time == (takes_s < limit_s) or takes_s == pytest.approx(limit_s)
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
            await asyncio.sleep(pause_s)
        deadline.close()

    run(main())


def test_short_waits_with_long_limits_share_a_timer() -> None:
    async def main() -> None:
        deadline = Deadline(asyncio.get_running_loop())
        for _ in range(1000):
            assert await wait(deadline, 30.0, 0.0)
        deadline.close()

    assert run(main()).armed == 1


def test_it_is_set_again_when_it_came_too_early() -> None:
    async def main() -> None:
        deadline = Deadline(asyncio.get_running_loop())
        for _ in range(100):
            assert await wait(deadline, 30.0, 1.0)
        deadline.close()

    assert run(main()).armed <= 100 + 1 + 100 // 29 + 1, "100 of them are the sleeps"


@pytest.mark.parametrize("outside_first", [True, False])
def test_a_cancellation_from_outside_wins_at_the_same_moment(outside_first: bool) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline, told = Deadline(loop), []

        async def waiting() -> None:
            try:
                told.append(await wait(deadline, 1.0, 9.0))
            except asyncio.CancelledError:
                told.append("cancelled")
                raise

        if outside_first:
            loop.call_at(1.0, lambda: task.cancel())
        task = loop.create_task(waiting())
        await asyncio.sleep(0)
        if not outside_first:
            loop.call_at(1.0, lambda: task.cancel())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == ["cancelled"]
        assert loop.time() == 1.0
        deadline.close()

    run(main())


def test_a_cancellation_from_outside_before_the_limit_passes_through() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop)
        task = loop.create_task(wait(deadline, 5.0, 9.0))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not deadline.waiting
        assert await wait(deadline, 5.0, 4.5), "the old limit is of no account"
        deadline.close()

    run(main())


def test_inside_a_cancelled_task_it_still_works() -> None:
    """A cancelled request still closes its endpoints."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline, told = Deadline(loop), []

        async def leaving() -> None:
            try:
                await asyncio.sleep(99)
            finally:
                told.append(await wait(deadline, 1.0, 9.0))

        task = loop.create_task(leaving())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == [False]
        deadline.close()

    run(main())


def test_an_answer_that_comes_with_the_limit_is_late_or_not_but_never_both() -> None:
    def come(answer: asyncio.Future[None]) -> None:
        if not answer.done():
            answer.set_result(None)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for order in (1, 2):
            deadline, answer = Deadline(loop), loop.create_future()

            async def waiting(deadline: Deadline = deadline, answer: asyncio.Future[None] = answer) -> bool:
                deadline.start(loop.time(), 1.0)
                try:
                    await answer
                except asyncio.CancelledError:
                    assert deadline.stop()
                    return False
                deadline.stop()
                return True

            if order == 1:
                loop.call_later(1.0, come, answer)
            task = loop.create_task(waiting())
            await asyncio.sleep(0)
            if order == 2:
                loop.call_later(1.0, come, answer)
            await task
            assert task.cancelling() == 0
            deadline.close()

    run(main())


@given(st.floats(0.01, 5), st.floats(0, 40), st.floats(0, 60))
def test_nobody_is_late_while_nobody_can_be_reached(limit_s: float, away_s: float, takes_s: float) -> None:
    """The limit begins anew when they can be reached again."""
    patience_s = away_s + limit_s

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline = Deadline(loop, lambda: inf if loop.time() < began_s + away_s else began_s + away_s)
        in_time = await wait(deadline, limit_s, takes_s)
        if takes_s < patience_s - 1e-6:
            assert in_time
        elif takes_s > patience_s + LEAST_S + 1e-6:
            assert not in_time
        waited_s = loop.time() - began_s
        assert in_time or patience_s - 1e-6 <= waited_s <= patience_s + LEAST_S + 1e-6
        deadline.close()

    run(main())


def test_a_short_limit_looks_ten_times_a_second_whether_anybody_can_be_reached() -> None:
    async def main() -> None:
        loop, looked_s = asyncio.get_running_loop(), list[float]()

        def reached_s() -> float:
            looked_s.append(loop.time())
            return inf if loop.time() < 1.0 else 1.0

        deadline = Deadline(loop, reached_s)
        assert not await wait(deadline, 0.01, 9.0)
        assert looked_s == pytest.approx([0.01 + 0.1 * n for n in range(11)])
        deadline.close()

    run(main())


def test_a_wait_that_is_late_is_told_of_again_and_again() -> None:
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), list[float]()

        def late() -> float:
            told.append(loop.time())
            return 0.5

        deadline = Deadline(loop, late=late)
        deadline.start(loop.time(), 9.0, 2.0)
        await asyncio.sleep(3.2)
        assert not deadline.stop()
        assert told == pytest.approx([2.0, 2.5, 3.0])
        deadline.start(loop.time(), 9.0)
        await asyncio.sleep(8.0)
        assert not deadline.stop()
        assert len(told) == 3, "a wait without it"
        deadline.close()

    run(main())


def test_a_limit_may_pass_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop)
        deadline.expire()  # nothing is waiting
        loop.call_later(1.0, deadline.expire)
        assert not await wait(deadline, 9.0, 5.0)
        assert loop.time() == pytest.approx(1.0)
        deadline.close()

    run(main())
