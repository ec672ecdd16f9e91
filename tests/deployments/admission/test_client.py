"""The gate as a replica of the API sees it: what it has begun it says, and that it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tandem.deployments.access.accounts import Terms
from tandem.deployments.admission.client import CLOSING_S, Entrance
from tandem.deployments.admission.controller import LEAVING_S, SIGN_S, Gate
from tandem.deployments.admission.entry import Entry, LimitReached, Passage
from tandem.deployments.config.settings import GateSettings
from tandem.deployments.outbox import DELAY_S
from tandem.deployments.request.assignment import RoutingRequest
from tests.virtual import in_virtual_time, now_s


class Router:
    """told: (method, requests) that it was told of."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.full = False

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest] = ()
    ) -> Passage:
        if left:
            self.told.append(("enter", list(left)))
        if self.full:
            raise LimitReached("full", 1.0)
        return Passage()

    def left(self, replica: str, requests: Sequence[int]) -> None:
        self.told.append(("left", list(requests)))

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        self.told.append(("under_way", [entry.request for entry in entries]))


def all_booked() -> None:
    """Say that no bill waits to be booked."""


def entry(number: int, concurrent: int | None = None) -> Entry:
    return Entry(number, "a", 1, 10, Terms(0.5, 1e-7, concurrent=concurrent))


@in_virtual_time
async def test_what_ends_is_told_together() -> None:
    router = Router()
    entrance = Entrance(router, all_booked)
    for number in (1, 2):
        await entrance.enter(entry(number))
    for number in (1, 2):
        entrance.leave(number)
        assert not router.told
    await asyncio.sleep(0.5)
    assert router.told == [("left", [1, 2])]
    entrance.close()


@in_virtual_time
@pytest.mark.parametrize("usd", [1.0, None])
async def test_the_gate_is_told_of_what_is_over_until_it_is_booked(usd: float | None) -> None:
    router, booked = Router(), asyncio.get_running_loop().create_future()
    entrance = Entrance(router, lambda: booked)
    await entrance.enter(Entry(1, "a", 1, 10, Terms(0.5, 1e-7, usd=usd)))
    entrance.leave(1, finished=True)
    await asyncio.sleep(1.5 * SIGN_S)
    assert router.told == [("left", [1]), *[("under_way", [1])] * (usd is not None)]
    booked.set_result(None)
    await asyncio.sleep(2 * SIGN_S)
    assert len(router.told) == 1 + (usd is not None)
    entrance.close()


@in_virtual_time
@pytest.mark.parametrize("closes", [True, False])
async def test_a_place_is_taken_until_its_sessions_are_closed(closes: bool) -> None:
    """The next request might otherwise find the engine full. Sessions that do not close in time count as gone."""
    router, closed = Router(), asyncio.Event()
    closing = asyncio.ensure_future(closed.wait())
    entrance = Entrance(router, all_booked, lambda: {closing})
    await entrance.enter(entry(1))
    entrance.leave(1)
    await asyncio.sleep(CLOSING_S / 2)
    assert not router.told
    if closes:
        closed.set()
    await asyncio.sleep(CLOSING_S / 2 + (0.5 if not closes else 0.0))
    assert [told for told in router.told if told[0] == "left"] == [("left", [1])]
    closing.cancel()
    entrance.close()


@in_virtual_time
async def test_what_is_under_way_is_told_again_and_again() -> None:
    router = Router()
    entrance = Entrance(router, all_booked)
    for number in (1, 2):
        await entrance.enter(entry(number))
    await asyncio.sleep(2.5 * SIGN_S)
    for number in (2, 1):
        entrance.leave(number)
    assert router.told == [("under_way", [1, 2])] * 2
    await asyncio.sleep(5 * SIGN_S)
    assert router.told[2:] == [("left", [2, 1])]
    entrance.close()


@in_virtual_time
async def test_whoever_is_turned_away_leaves_as_well() -> None:
    """The request may have been waiting when it gave up."""
    router = Router()
    router.full = True
    entrance = Entrance(router, all_booked)
    with pytest.raises(LimitReached):
        await entrance.enter(entry(1))
    entrance.close()
    assert router.told == [("left", [1])]


CALL_S = 0.005


class Gated:
    """A router behind calls that take their time. calls: to it."""

    def __init__(self) -> None:
        self.gate = Gate({"": lambda: 100}, GateSettings(), now_s)
        self.calls = 0

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest] = ()
    ) -> Passage:
        self.calls += 1
        await asyncio.sleep(CALL_S)
        for request in left:
            self.gate.leave(replica, request)
        passage = await self.gate.enter(replica, entry)
        await asyncio.sleep(CALL_S)
        return passage

    def left(self, replica: str, requests: Sequence[int]) -> None:
        self.calls += 1
        loop = asyncio.get_running_loop()
        for request in requests:
            loop.call_later(CALL_S, self.gate.leave, replica, request)

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None: ...


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("limit", [1, 4])
@in_virtual_time
async def test_as_many_clients_as_the_limit_are_never_refused(limit: int, replicas: int) -> None:
    """Each asks again as soon as it has its answer, of whichever replica of the API: none comes back too late."""
    router = Gated()
    entrances = [Entrance(router, all_booked) for _ in range(replicas)]
    begun_s = now_s()

    async def client(first: int) -> None:
        for number in range(first, first + 20):
            here = entrances[number % replicas]
            await here.enter(entry(number, limit))
            await asyncio.sleep(0.01)
            here.leave(number, finished=True)

    await asyncio.gather(*(client(100 * n) for n in range(limit)))
    answer_s = 0.01 + 2 * CALL_S
    most_s = answer_s if replicas == 1 else answer_s + DELAY_S + CALL_S
    assert now_s() - begun_s <= 20 * most_s + 1e-6
    if replicas == 1:
        assert router.calls == 20 * limit, "what is over goes along with what begins"
    await asyncio.sleep(1.0)
    assert router.gate._fair[""].under_way == 0
    for entrance in entrances:
        entrance.close()


@in_virtual_time
async def test_more_than_the_limit_are_refused() -> None:
    """One that waits for an answer that goes on, after a while; and at once where one waits already."""
    entrance = Entrance(Gated(), all_booked)
    await entrance.enter(entry(1, 1))
    waiting = asyncio.create_task(entrance.enter(entry(2, 1)))
    await asyncio.sleep(2 * CALL_S)
    begun_s = now_s()
    with pytest.raises(LimitReached, match="1 answers"):
        await entrance.enter(entry(3, 1))
    assert now_s() - begun_s < LEAVING_S / 10
    with pytest.raises(LimitReached, match="1 answers"):
        await waiting
    assert now_s() - begun_s == pytest.approx(LEAVING_S, abs=0.1)
    entrance.close()


@in_virtual_time
async def test_what_is_over_is_said_again_where_a_call_has_failed() -> None:
    router = Router()
    entrance = Entrance(router, all_booked)
    await entrance.enter(entry(1))
    entrance.leave(1)
    router.full = True
    with pytest.raises(LimitReached):
        await entrance.enter(entry(2))
    await asyncio.sleep(0.5)
    assert router.told == [("enter", [1]), ("left", [1, 2])]
    entrance.close()
