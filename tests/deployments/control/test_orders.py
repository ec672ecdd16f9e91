"""Operators' orders: what is kept, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from tandem.cluster.devices.orders import LinkOrder
from tandem.cluster.link.link import LinkProfile
from tandem.deployments.control.orders import (
    DeviceOrder,
    NoSuchEndpoint,
    OrderRefused,
    Orders,
    drain,
    forget,
    order,
)
from tandem.deployments.request.assignment import EndpointInfo

ONE, TWO, OTHER = (
    EndpointInfo(f"verifier {n}", f"v:{n}", "verifier", model) for n, model in ((1, "a"), (2, "a"), (3, "b"))
)
POOLS = {"verifier": (ONE, TWO, OTHER)}
THROTTLED = DeviceOrder(link=LinkOrder(profile=LinkProfile(rtt_s=0.2, up_trace=((0.0, 5.0),), loss=0.1)))


def test_orders_add_up_travel_and_are_taken_back() -> None:
    orders = drain(Orders(), ONE.name, True, POOLS)
    orders = order(orders, "phone", DeviceOrder(stopped=True), {"phone"}, {"phone"})
    orders = order(orders, "phone", THROTTLED, {"phone"}, {"phone"})
    orders = msgspec.json.decode(msgspec.json.encode(orders), type=Orders)
    assert orders.drained == {ONE.name}
    assert orders.devices.unreachable("phone")
    assert orders.devices.link("phone") == THROTTLED.link
    orders = drain(orders, ONE.name, False, POOLS)
    assert order(orders, "phone", DeviceOrder(False, LinkOrder()), {"phone"}, {"phone"}) == Orders()


def test_requests_keep_a_replica() -> None:
    with pytest.raises(OrderRefused, match="last"):
        drain(Orders(), OTHER.name, True, POOLS)
    orders = drain(Orders(), ONE.name, True, POOLS)
    assert drain(orders, ONE.name, True, POOLS) == orders  # again: nothing changes
    with pytest.raises(OrderRefused, match="last"):
        drain(orders, TWO.name, True, POOLS)
    assert forget(orders, {ONE.name}) == Orders()  # it has died


def test_what_is_not_there_takes_no_orders() -> None:
    with pytest.raises(NoSuchEndpoint):
        drain(Orders(), "verifier 9", True, POOLS)
    with pytest.raises(NoSuchEndpoint):
        order(Orders(), "phone", DeviceOrder(stopped=True), {"laptop"}, ())
    with pytest.raises(OrderRefused, match="real"):
        order(Orders(), "laptop", THROTTLED, {"laptop"}, ())
    assert order(Orders(), "laptop", DeviceOrder(stopped=True), {"laptop"}, ()).devices.stopped == {"laptop"}
