"""Operators' orders for devices and their links; hosts hear them whenever they register."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tandem.cluster.link.link import LinkProfile


class LinkOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Order for an emulated link.

    cut: whether it carries nothing.
    profile: its properties in place of the configured ones; None: those.
    """

    cut: bool = False
    profile: LinkProfile | None = None


class DeviceOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Orders for all devices.

    stopped: names of devices that take no work.
    links: by the device's name.
    """

    stopped: frozenset[str] = frozenset()
    links: dict[str, LinkOrder] = {}

    def link(self, device: str) -> LinkOrder:
        """Return the order for a device's link."""
        return self.links.get(device, AS_CONFIGURED)

    def unreachable(self, device: str) -> bool:
        """Return whether a device cannot be worked with."""
        return device in self.stopped or self.link(device).cut


class Registration(NamedTuple):
    """Reply to devices that have registered.

    version: of the snapshot from which on they are in it.
    moved: names of those that have dialled another gateway since.
    """

    version: int
    orders: DeviceOrders
    moved: frozenset[str] = frozenset()


AS_CONFIGURED = LinkOrder()
NO_ORDERS = DeviceOrders()
