"""Operators' orders: replicas that drain, devices that are stopped, links that are changed.

The scheduler keeps them in the cluster's store, so that its successor follows them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tandem.cluster.devices.orders import AS_CONFIGURED, DeviceOrders, LinkOrder
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import EngineError


class NoSuchEndpoint(EngineError):
    """No replica or device has that name."""

    code = "endpoint_not_found"


class OrderRefused(EngineError):
    """An order that would leave requests without an endpoint, or cannot be carried out."""

    code = "order_refused"


class DeviceOrder(NamedTuple):
    """Change of the orders for a device; None leaves a part as it is."""

    stopped: bool | None = None
    link: LinkOrder | None = None


class Orders(msgspec.Struct, frozen=True):
    """Orders in force.

    drained: names of replicas that take no new sessions.
    """

    drained: frozenset[str] = frozenset()
    devices: DeviceOrders = DeviceOrders()


class OrdersTold(NamedTuple):
    """Orders as operators see them.

    drained: replicas that drain or have drained, by pool.
    """

    drained: Mapping[str, Sequence[EndpointInfo]] = {}
    devices: DeviceOrders = DeviceOrders()


def drain(orders: Orders, name: str, on: bool, pools: Mapping[str, Sequence[EndpointInfo]]) -> Orders:
    """Have a replica take no new sessions, or take them again; return the orders with that.

    pools: all replicas that are up, drained ones included.
    Raises NoSuchEndpoint, and OrderRefused for the last one of its pool and model.
    """
    pool, replica = _find(name, pools)
    drained = orders.drained
    if on and not any(_replaces(each, replica, drained) for each in pools[pool]):
        raise OrderRefused(f"{name} is the last replica of its pool that takes requests")
    return msgspec.structs.replace(orders, drained=drained | {name} if on else drained - {name})


def order(
    orders: Orders, name: str, wanted: DeviceOrder, known: Collection[str], hosted: Collection[str]
) -> Orders:
    """Stop a device or start it again, and change its link; return the orders with that.

    known: names of all devices; hosted: of those whose links are emulated.
    Raises NoSuchEndpoint, and OrderRefused for the link of a device that is not hosted.
    """
    if name not in known:
        raise NoSuchEndpoint(f"no device is called {name!r}")
    stopped, links = orders.devices.stopped, dict(orders.devices.links)
    if wanted.stopped is not None:
        stopped = stopped | {name} if wanted.stopped else stopped - {name}
    if wanted.link is not None:
        if name not in hosted:
            raise OrderRefused(f"{name} is a program of its own: its link is real, not emulated")
        links[name] = wanted.link
        if wanted.link == AS_CONFIGURED:
            del links[name]
    return msgspec.structs.replace(orders, devices=DeviceOrders(stopped, links))


def forget(orders: Orders, gone: Collection[str]) -> Orders:
    """Return the orders without those for replicas that are gone."""
    return msgspec.structs.replace(orders, drained=orders.drained.difference(gone))


def _find(name: str, pools: Mapping[str, Sequence[EndpointInfo]]) -> tuple[str, EndpointInfo]:
    for pool, replicas in pools.items():
        for each in replicas:
            if each.name == name:
                return pool, each
    raise NoSuchEndpoint(f"no replica is called {name!r}")


def _replaces(other: EndpointInfo, replica: EndpointInfo, drained: Collection[str]) -> bool:
    """Return whether another replica takes a replica's requests."""
    same = other.model == replica.model and other.split == replica.split
    return same and other.name != replica.name and other.name not in drained and other.refusal is None
