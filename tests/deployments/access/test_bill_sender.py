"""Bills go to the key service together, again until they are booked, and none overtakes another."""

from __future__ import annotations

import asyncio

from tandem.deployments.access.bill_sender import AGAIN_S, BillSender
from tandem.deployments.access.store import BillBatch
from tandem.deployments.outbox import DELAY_S
from tandem.deployments.request.bill import Bill
from tests.virtual import in_virtual_time, now_s


class Service:
    """away: it does not answer. heard: (number, requests) that it was sent, also where it did not confirm them."""

    def __init__(self) -> None:
        self.away = False
        self.heard: list[tuple[int, list[int]]] = []
        self.senders: set[str] = set()

    async def charge(self, batch: BillBatch) -> None:
        self.senders.add(batch.sender)
        self.heard.append((batch.number, [bill.requests for *_, bill in batch.charges]))
        await asyncio.sleep(0.01)
        if self.away:
            raise ConnectionError("it died")


def charge(requests: int) -> tuple[str, str, Bill]:
    return "me", "", Bill(requests=requests)


@in_virtual_time
async def test_bills_of_about_the_same_time_go_together() -> None:
    service = Service()
    sender = BillSender(service.charge)
    for requests in (1, 2):
        sender.add(charge(requests))
        await asyncio.sleep(DELAY_S / 4)
    await asyncio.sleep(DELAY_S)
    sender.add(charge(3))
    await sender.sent(10.0)
    assert service.heard == [(1, [1, 2]), (2, [3])]
    await sender.sent(10.0)
    assert now_s() < 1.0


@in_virtual_time
async def test_bills_outlive_a_service_that_dies() -> None:
    """A batch that may have been booked keeps its number, and later bills wait for their turn."""
    service = Service()
    service.away = True
    sender = BillSender(service.charge)
    sender.add(charge(1))
    await asyncio.sleep(DELAY_S + 0.005)
    sender.add(charge(2))
    await asyncio.sleep(2 * AGAIN_S)
    assert service.heard == [(1, [1])] * len(service.heard)
    service.away, tries = False, len(service.heard)
    assert tries > 1, "it failed"
    await sender.sent(10.0)
    assert service.heard[tries:] == [(1, [1]), (2, [2])]
    assert len(service.senders) == 1


@in_virtual_time
async def test_the_end_does_not_wait_for_a_service_that_is_gone_for_good() -> None:
    service = Service()
    service.away = True
    sender = BillSender(service.charge)
    sender.add(charge(1))
    began_s = now_s()
    await sender.sent(2.0)
    assert now_s() - began_s == 2.0
    sender.close()
