"""A device's uplink: chunks of prompts wait where rounds go on, and never longer than what is ahead of them takes."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.request.uplink_queue import LOOK_S, SOON_S, UplinkQueue
from tandem.policies.split import DeviceMonitor
from tests.virtual import in_virtual_time, run

BYTES_S = 1e6


def uplink_queue() -> UplinkQueue:
    return UplinkQueue(DeviceMonitor(up_bytes_s=BYTES_S))


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_alone_a_prompt_goes_up_as_fast_as_it_may() -> None:
    uplink = uplink_queue()
    uplink.sent(1, 10**9)
    await uplink.turn(1, 0)
    assert now() == 0.0


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5))
def test_while_rounds_go_on_each_chunk_waits_for_those_before_it(sizes: list[int]) -> None:
    """Also where they are of several prompts, which ask at the same time."""

    async def main() -> None:
        uplink, ahead_s = uplink_queue(), list[float]()

        async def chunk(size: int) -> None:
            await uplink.turn(size, 0)
            ahead_s.append(uplink._free_s - now())
            uplink.sent(size, size)

        with uplink.rounds():
            await asyncio.gather(*map(chunk, sizes))
        assert max(ahead_s) <= SOON_S
        assert now() >= sum(sizes[:-1]) / BYTES_S - len(sizes) * SOON_S

    run(main())


@in_virtual_time
async def test_what_was_answered_has_left_whatever_was_reckoned() -> None:
    uplink = uplink_queue()
    first, last = uplink.sent(1, 10**6), uplink.sent(1, 10**9)
    with uplink.rounds():
        waiting = asyncio.create_task(uplink.turn(1, 0))
        await asyncio.sleep(1.0)
        uplink.arrived(first)
        await asyncio.sleep(2 * LOOK_S)
        assert not waiting.done()
        uplink.arrived(last)
        await waiting
        assert now() <= 1.0 + 3 * LOOK_S + SOON_S


@in_virtual_time
async def test_who_waits_for_rounds_that_are_over_goes() -> None:
    uplink = uplink_queue()
    uplink.sent(1, 10**9)
    with uplink.rounds():
        waiting = asyncio.create_task(uplink.turn(1, 0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
    await waiting
    assert now() <= 1.0 + LOOK_S


@in_virtual_time
async def test_who_follows_somebody_else_is_not_measured() -> None:
    uplink = uplink_queue()
    assert uplink.sent("a", 10**6).clear
    assert uplink.sent("a", 10**6).clear, "what went before was its own"
    assert not uplink.sent("b", 10).clear
    assert not uplink.sent("a", 10).clear
    await asyncio.sleep(3.0)
    assert uplink.sent("b", 10).clear


@in_virtual_time
async def test_a_chunk_waits_until_what_is_ahead_of_it_has_left() -> None:
    """Two uploads of a quarter of a second each, the second while the first is on its way."""
    uplink = uplink_queue()
    uplink.sent(1, 250_000)
    await asyncio.sleep(0.125)
    uplink.sent(2, 250_000)
    with uplink.rounds():
        await uplink.turn(1, 0)
        assert abs(now() - 0.5) <= 2 * SOON_S
        await asyncio.sleep(1.0)
        began_s = now()
        uplink.sent(3, 250_000)
        await uplink.turn(1, 0)
        assert abs(now() - began_s - 0.25) <= 2 * SOON_S, "time in which it was idle is not made up for"


@in_virtual_time
async def test_uploads_are_numbered_from_1() -> None:
    uplink = uplink_queue()
    assert [uplink.sent(1, 10).number for _ in range(3)] == [1, 2, 3]


@in_virtual_time
async def test_an_answer_long_after_the_upload_left_changes_nothing() -> None:
    uplink = uplink_queue()
    sent = uplink.sent(1, 500_000)
    await asyncio.sleep(2.0)
    uplink.arrived(sent)
    uplink.sent(1, 500_000)
    with uplink.rounds():
        await uplink.turn(1, 0)
    assert abs(now() - 2.5) <= 2 * SOON_S


@in_virtual_time
async def test_rounds_of_several_requests() -> None:
    uplink = uplink_queue()
    with uplink.rounds():
        with uplink.rounds():
            pass
        uplink.sent(1, 250_000)
        await uplink.turn(1, 0)
        assert now() > 0.2, "one of them is in its rounds still"
    uplink.sent(1, 10**9)
    began_s = now()
    await uplink.turn(1, 0)
    assert now() == began_s


@in_virtual_time
async def test_the_shortest_remaining_prompt_goes_first() -> None:
    """A chunk of a longer one waits until what is ahead of it has left, as long as the shorter one goes up."""
    uplink = uplink_queue()
    with uplink.prompt("long"):
        await uplink.turn("long", 1000)
        uplink.sent("long", 500_000)
        with uplink.prompt("short"):
            await uplink.turn("short", 10)
            assert now() == 0.0
            uplink.sent("short", 500_000)
            waiting = asyncio.create_task(uplink.turn("long", 900))
            await asyncio.sleep(0.9)
            assert not waiting.done()
        await waiting
        assert now() <= 0.9 + LOOK_S
        uplink.sent("long", 10**9)
        await uplink.turn("long", 800)
        assert now() <= 0.9 + LOOK_S, "alone it waits for nothing"
