"""Operators' orders: what is kept, and what is refused."""

from __future__ import annotations

import pytest

from tandem.cluster.devices.orders import LinkOrder
from tandem.cluster.link.link import LinkProfile
from tandem.deployments.control.orders import DeviceOrder, NoSuchEndpoint, OrderBook, OrderRefused, Orders
from tandem.deployments.request.assignment import EndpointInfo
from tests.app.api.null_backend import Kept

ONE, TWO, OTHER = (
    EndpointInfo(f"verifier {n}", f"v:{n}", "verifier", model) for n, model in ((1, "a"), (2, "a"), (3, "b"))
)
POOLS = {"verifier": (ONE, TWO, OTHER)}
THROTTLED = DeviceOrder(link=LinkOrder(profile=LinkProfile(rtt_s=0.2, up_trace=((0.0, 5.0),), loss=0.1)))


def test_a_successor_follows_the_orders() -> None:
    store = Kept()
    book = OrderBook(store)
    book.drain(ONE.name, True, POOLS)
    book.order("phone", DeviceOrder(stopped=True), {"phone"}, {"phone"})
    book.order("phone", THROTTLED, {"phone"}, {"phone"})
    successor = OrderBook(store)
    assert successor.orders == book.orders
    assert successor.orders.devices.unreachable("phone")
    assert successor.orders.devices.link("phone") == THROTTLED.link
    successor.drain(ONE.name, False, POOLS)
    successor.order("phone", DeviceOrder(False, LinkOrder()), {"phone"}, {"phone"})
    assert successor.orders == OrderBook(store).orders == Orders()
    successor.close()
    assert store.data is None


def test_requests_keep_a_replica() -> None:
    book = OrderBook(Kept())
    with pytest.raises(OrderRefused, match="last"):
        book.drain(OTHER.name, True, POOLS)
    book.drain(ONE.name, True, POOLS)
    book.drain(ONE.name, True, POOLS)  # again: nothing changes
    with pytest.raises(OrderRefused, match="last"):
        book.drain(TWO.name, True, POOLS)
    book.forget({ONE.name}.__contains__)  # it has died
    assert not book.orders.drained


def test_what_is_not_there_takes_no_orders() -> None:
    book = OrderBook(Kept())
    with pytest.raises(NoSuchEndpoint):
        book.drain("verifier 9", True, POOLS)
    with pytest.raises(NoSuchEndpoint):
        book.order("phone", DeviceOrder(stopped=True), {"laptop"}, ())
    with pytest.raises(OrderRefused, match="real"):
        book.order("laptop", THROTTLED, {"laptop"}, ())
    book.order("laptop", DeviceOrder(stopped=True), {"laptop"}, ())
