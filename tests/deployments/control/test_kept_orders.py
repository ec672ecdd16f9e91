"""Orders that are kept in Ray's store, which may be away."""

from __future__ import annotations

import asyncio

import pytest

from tandem.cluster.note import Note, NoteError
from tandem.deployments.control.kept_orders import KeptOrders
from tandem.deployments.control.orders import DeviceOrder, Orders, drain, order
from tandem.deployments.request.assignment import Unavailable
from tests.deployments.control.test_orders import ONE, POOLS


class Store(Note):
    """Ray's store, which may be away."""

    def __init__(self) -> None:
        self.away = False
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data

    def write(self, data: bytes) -> None:
        if self.away:
            raise NoteError("away")
        self.data = data


async def test_what_cannot_be_kept_for_a_successor_is_not_ordered() -> None:
    store = Store()
    kept = KeptOrders(store)
    await kept.change(lambda orders: drain(orders, ONE.name, True, POOLS))
    successor = KeptOrders(store)
    await successor.read()
    assert successor.now == kept.now == Orders(frozenset({ONE.name}))
    store.away = True
    with pytest.raises(Unavailable, match="away"):
        await kept.change(lambda orders: drain(orders, ONE.name, False, POOLS))
    await kept.forget({ONE.name})  # says so in the log, and ends
    assert kept.now.drained == {ONE.name}
    store.away = False
    await kept.forget({ONE.name})
    assert not kept.now.drained


async def test_orders_at_once_lose_none_of_them() -> None:
    kept = KeptOrders(Store())
    names = {f"phone-{n}" for n in range(8)}

    def stop(name: str) -> asyncio.Task[None]:
        wanted = DeviceOrder(stopped=True)
        return asyncio.create_task(
            kept.change(lambda orders: order(orders, name, wanted, names, frozenset()))
        )

    await asyncio.gather(*map(stop, names))
    assert kept.now.devices.stopped == names
