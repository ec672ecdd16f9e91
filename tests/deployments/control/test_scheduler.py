"""The scheduler, without Ray: when a successor says what is up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.control.orders import Orders
from tandem.deployments.control.scheduler import EXPIRY_S, GATHER_S, Scheduler
from tandem.deployments.routing.directory import Directory
from tests.virtual import in_virtual_time, now_s

PHONE = DeviceRecord(name="phone", address="10.0.0.1:1", profile="native", model="m", vocabulary="v")


class Listed(Scheduler):
    """A scheduler that has listed its replicas. inherited: whether it has a predecessor."""

    def __init__(self, inherited: bool) -> None:
        self._directory = Directory(EXPIRY_S, version=1000)
        self._news, self._listed, self._asked_s = asyncio.Event(), asyncio.Event(), None
        self._edge: Any = SimpleNamespace(inherited=inherited)
        self._orders: Any = SimpleNamespace(now=Orders())
        self._listed.set()

    def __del__(self) -> None:  # type: ignore[override]
        """Leave out Ray."""


@in_virtual_time
@pytest.mark.parametrize("inherited", [False, True])
async def test_a_successor_answers_when_devices_have_had_time_to_register(inherited: bool) -> None:
    """Routers would take them for gone meanwhile, and go on with what its predecessor knew."""
    made = Listed(inherited)
    await asyncio.sleep(100.0)
    first = asyncio.ensure_future(made.snapshot(after=7))
    await asyncio.sleep(0.9 * GATHER_S)
    assert first.done() != inherited
    await made.register([PHONE])
    assert set((await first).devices) == ({"phone"} if inherited else set())
    assert now_s() - 100.0 == pytest.approx(GATHER_S if inherited else 0.9 * GATHER_S, abs=0.1)
    assert set((await made.snapshot()).devices) == {"phone"}
