"""The gate as a replica of the API sees it: what it has begun it says, and that it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tandem.deployments.admission.client import CLOSING_S, SIGN_S, Entrance
from tandem.deployments.admission.controller import Entry, LimitReached, Passage
from tests.virtual import in_virtual_time


class Router:
    """told: (method, requests) that it was told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.full = self.counted = self.away = False

    async def enter(self, replica: str, entry: Entry) -> Passage:
        if self.full:
            raise LimitReached("full", 1.0)
        return Passage(counted=self.counted)

    async def leave(self, replica: str, requests: Sequence[int]) -> None:
        await asyncio.sleep(1e9 if self.away else 0.001)
        self.left(replica, requests)

    def left(self, replica: str, requests: Sequence[int]) -> None:
        self.told.append(("left", list(requests)))

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        self.told.append(("under_way", [entry.request for entry in entries]))


def entry(number: int) -> Entry:
    return Entry(number, "a", 1, 10)


@in_virtual_time
async def test_what_ends_is_told_together() -> None:
    router = Router()
    entrance = Entrance(router)
    for number in (1, 2):
        async with entrance.pass_through(entry(number)):
            assert not router.told
    await asyncio.sleep(0.5)
    assert router.told == [("left", [1, 2])]
    entrance.close()


@in_virtual_time
@pytest.mark.parametrize("closes", [True, False])
async def test_a_place_is_taken_until_its_sessions_are_closed(closes: bool) -> None:
    """Whoever came next might find the engine full. Where they do not close in time, nobody is there any more."""
    router, closed = Router(), asyncio.Event()
    closing = asyncio.ensure_future(closed.wait())
    entrance = Entrance(router, lambda: {closing})
    async with entrance.pass_through(entry(1)):
        pass
    await asyncio.sleep(CLOSING_S / 2)
    assert not router.told
    if closes:
        closed.set()
    await asyncio.sleep(CLOSING_S / 2 + (0.5 if not closes else 0.0))
    assert router.told == [("left", [1])]
    closing.cancel()
    entrance.close()


@in_virtual_time
async def test_what_is_under_way_is_told_again_and_again() -> None:
    router = Router()
    entrance = Entrance(router)
    async with entrance.pass_through(entry(1)), entrance.pass_through(entry(2)):
        await asyncio.sleep(2.5 * SIGN_S)
    assert router.told == [("under_way", [1, 2])] * 2
    await asyncio.sleep(5 * SIGN_S)
    assert router.told[2:] == [("left", [2, 1])]
    entrance.close()


@in_virtual_time
async def test_whoever_is_turned_away_leaves_as_well() -> None:
    """It may have been waiting when it gave up."""
    router = Router()
    router.full = True
    entrance = Entrance(router)
    with pytest.raises(LimitReached):
        async with entrance.pass_through(entry(1)):
            pass
    entrance.close()
    assert router.told == [("left", [1])]


@in_virtual_time
async def test_a_counted_place_is_free_before_the_answer_ends() -> None:
    """Otherwise the account's next request would be refused."""
    router = Router()
    router.counted = True
    entrance = Entrance(router)
    async with entrance.pass_through(entry(1)):
        assert not router.told
    assert router.told == [("left", [1])]
    await asyncio.sleep(0.5)
    assert router.told == [("left", [1])]
    entrance.close()


@in_virtual_time
async def test_a_router_that_is_away_keeps_no_answer_from_ending() -> None:
    router = Router()
    router.counted = router.away = True
    entrance = Entrance(router)
    async with entrance.pass_through(entry(1)):
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(CLOSING_S)
    await asyncio.sleep(0.5)
    assert router.told == [("left", [1])]
    entrance.close()
