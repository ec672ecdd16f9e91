"""Bills go to the key service together, again until they are booked, and none overtakes another."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.access.client.bill_sender import AGAIN_S, BillSender
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch, Ledger
from tandem.deployments.access.usage import Spent
from tandem.deployments.request.bill import Bill, Charge
from tests.virtual import in_virtual_time, now_s
from tests.virtual import run as run_virtually


class Service:
    """away: it does not answer. heard: (number, requests) that it was sent, also where it did not confirm them."""

    def __init__(self) -> None:
        self.away = False
        self.heard: list[tuple[int, list[int]]] = []
        self.senders: set[str] = set()

    async def charge(self, batch: BillBatch) -> dict[str, Standing]:
        self.senders.add(batch.sender)
        self.heard.append((batch.number, [charge.bill.requests for charge in batch.charges]))
        await asyncio.sleep(0.01)
        if self.away:
            raise ConnectionError("it died")
        return {"me": Standing(Spent("2026-11-01", float(batch.number)))}


def charge(requests: int) -> Charge:
    return Charge("me", "", Bill(requests=requests))


@in_virtual_time
async def test_a_bill_goes_at_once_and_those_that_come_meanwhile_go_together() -> None:
    service = Service()
    sender = BillSender(service.charge)
    sender.add(charge(1))
    await asyncio.sleep(0.001)
    for requests in (2, 3):
        sender.add(charge(requests))
    await sender.booked(10.0)
    assert service.heard == [(1, [1]), (2, [2, 3])]
    await sender.booked(10.0)
    assert now_s() < 0.03


@in_virtual_time
async def test_each_bill_tells_when_it_is_booked_what_its_account_has_spent() -> None:
    service, told = Service(), list[tuple[int, Standing]]()
    service.away = True
    sender = BillSender(service.charge)
    for requests in (1, 2, 3):
        sender.add(charge(requests), lambda standing, requests=requests: told.append((requests, standing)))  # type: ignore[misc]
    sender.add(Charge("you", "", Bill(requests=4)), lambda standing: told.append((4, standing)))
    await asyncio.sleep(AGAIN_S)
    assert not told
    assert sender.last is not None
    assert not sender.last.done()
    service.away = False
    await sender.last
    mine = Standing(Spent("2026-11-01", 1.0))
    assert told == [(1, mine), (2, mine), (3, mine), (4, Standing())]


@in_virtual_time
async def test_nobody_waits_for_bills_that_came_later() -> None:
    service = Service()
    sender = BillSender(service.charge)
    sender.add(charge(1))
    first = asyncio.create_task(sender.booked(10.0))
    for requests in range(2, 30):
        await asyncio.sleep(0.005)
        sender.add(charge(requests))
    assert first.done()
    assert not sender._last or not sender._last.done()
    sender.close()


@in_virtual_time
async def test_bills_outlive_a_service_that_dies() -> None:
    """A batch that may have been booked keeps its number, and later bills wait for their turn."""
    service = Service()
    service.away = True
    sender = BillSender(service.charge)
    sender.add(charge(1))
    await asyncio.sleep(0.005)
    sender.add(charge(2))
    await asyncio.sleep(2 * AGAIN_S)
    assert service.heard == [(1, [1])] * len(service.heard)
    service.away, tries = False, len(service.heard)
    assert tries > 1, "it failed"
    await sender.booked(10.0)
    assert service.heard[tries:] == [(1, [1]), (2, [2])]
    assert len(service.senders) == 1


@in_virtual_time
async def test_the_end_does_not_wait_for_a_service_that_is_gone_for_good() -> None:
    service = Service()
    service.away = True
    sender = BillSender(service.charge)
    sender.add(charge(1))
    began_s = now_s()
    await sender.booked(2.0)
    assert now_s() - began_s == 2.0
    sender.close()


fates = st.lists(st.sampled_from(["booked", "lost before", "lost after"]), max_size=30)


@given(fates=fates, pauses=st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_every_bill_is_booked_once_however_often_the_service_dies(
    fates: list[str], pauses: list[float]
) -> None:
    """A service may die before it has written a batch, or after that and before it has said so."""
    left, ledger = iter(fates), Ledger()

    async def send(batch: BillBatch) -> dict[str, Standing]:
        await asyncio.sleep(0.01)
        fate = next(left, "booked")
        if fate != "lost before":
            ledger.charge([batch])
        if fate != "booked":
            raise ConnectionError("it died")
        return {}

    async def run() -> None:
        senders = [BillSender(send), BillSender(send)]
        for number, pause_s in enumerate(pauses):
            senders[number % 2].add(charge(2**number))
            await asyncio.sleep(pause_s)
        for sender in senders:
            await sender.booked(1000.0)

    run_virtually(run())
    assert [bill.requests for _, _, bill, *_ in ledger.bills()] == [2 ** len(pauses) - 1]
    ledger.close()
