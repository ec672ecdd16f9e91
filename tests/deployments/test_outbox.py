"""Reports go to the router together, and none is lost or sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tandem.deployments.learning.report import Report
from tandem.deployments.outbox import DELAY_S, Outbox
from tandem.deployments.request.bill import Bill
from tests.virtual import in_virtual_time, now_s


def report(tokens: int) -> Report:
    return Report("me", "", tokens, True, Bill())


@in_virtual_time
async def test_what_comes_at_about_the_same_time_goes_together() -> None:
    sent: list[tuple[float, list[int]]] = []

    def send(reports: Sequence[Report]) -> None:
        sent.append((now_s(), [r.tokens for r in reports]))

    outbox = Outbox(send)
    for tokens in (1, 2, 3):
        outbox.add(report(tokens))
        await asyncio.sleep(DELAY_S / 4)
    assert not sent
    await asyncio.sleep(1.0)
    outbox.add(report(4))
    outbox.flush()
    outbox.flush()
    await asyncio.sleep(1.0)
    assert sent == [(DELAY_S, [1, 2, 3]), (DELAY_S * 0.75 + 1.0, [4])]
