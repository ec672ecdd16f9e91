"""The soak: what processes hold, and how it is told that they hold more and more."""

from __future__ import annotations

import os
import threading

import pytest

from tandem.app.cli.server.processes import Process, myself
from tandem.benchmarks.application import application
from tandem.benchmarks.robustness.soak import (
    MOST,
    SETTINGS,
    Sample,
    grown,
    growth,
    held,
    measure,
    most_useful,
)


def test_what_this_process_holds() -> None:
    before = held([myself()])
    assert before.memory > 1_000_000
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait)
    thread.start()
    read, write = os.pipe()
    try:
        more = held([myself()])
        assert more.threads == before.threads + 1
        assert more.descriptors == before.descriptors + 2
    finally:
        goes_on.set()
        thread.join()
        os.close(read)
        os.close(write)
    assert held([Process(2**22 + 1, 0)]) == (0, 0, 0), "one that has ended"


def test_growth_is_of_the_last_quarter_over_the_third() -> None:
    assert growth([5, 9, 2, 2, 10, 10, 11, 11]) == pytest.approx(0.1)
    assert growth([5, 9, 2, 2, 10, 10, 10, 10]) == 0.0
    with pytest.raises(ValueError, match="fewer than four"):
        growth([1, 2, 3])


def test_each_quantity_grows_by_itself() -> None:
    samples = [Sample(100, 10, 4)] * 3 + [Sample(120, 10, 5)]
    assert grown(samples) == pytest.approx(
        {"memory_growth": 0.2, "descriptors_growth": 0.0, "threads_growth": 0.25}
    )


async def test_the_capacity_is_where_more_clients_bring_hardly_more() -> None:
    async def rate(clients: int) -> float:
        return min(clients, 20.0)

    assert await most_useful(rate) == 32

    async def disturbed(clients: int) -> float:
        return 9.0 if clients == 16 else min(clients, 20.0)

    assert await most_useful(disturbed) == 32, "a single look is not believed"

    async def endless(clients: int) -> float:
        return clients

    assert await most_useful(endless) == MOST


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(2 * 3600)
async def test_an_hour_loses_nothing_and_nothing_grows() -> None:
    with application(SETTINGS) as address:
        figures = await measure(address, minutes=10, steady=60)
    assert figures["failed"] == figures["broken_streams"] == figures["sessions_left"] == 0
    assert figures["memory_growth"] <= 0.02
    assert figures["steady_memory_growth"] <= 0.02
    assert figures["steady_descriptors_growth"] <= 0.02
