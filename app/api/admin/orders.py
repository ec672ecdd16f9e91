"""Orders of operators over HTTP: drain a replica, stop a device, throttle or cut an emulated link, and undo it."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import OrderBackend, ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.cluster.devices.orders import LinkOrder
from tandem.deployments.config.settings import LinkSettings
from tandem.deployments.control.orders import DeviceOrder, OrdersTold
from tandem.deployments.docstrings import describe
from tandem.deployments.request.assignment import EndpointInfo

_TOLD_LOAD = ("waiting", "room", "blocks_free", "blocks_total", "preempted")


class ReplicaChange(BaseModel):
    """Order for a replica.

    drained: whether it takes no new requests; those under way end there, or go on elsewhere after `endpoint.drain_s`.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe)

    drained: bool


class LinkChange(LinkSettings):
    """Emulated properties of a device's link, in place of the configured ones.

    cut: whether it carries nothing.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    cut: bool = False

    def order(self) -> LinkOrder:
        """Return the order for the link; what is not said of it stays as configured, if nothing is said."""
        said = self.model_fields_set - {"cut"}
        return LinkOrder(self.cut, self.profile() if said else None)


class DeviceChange(BaseModel):
    """Order for a device; what is left out stays.

    stopped: whether it takes no work; answers that it works for go on elsewhere.
    link: of a device that the settings list; null: as configured.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe)

    stopped: bool | None = None
    link: LinkChange | None = None

    def order(self) -> DeviceOrder:
        """Return the order for the device."""
        link = LinkOrder() if self.link is None else self.link.order()
        return DeviceOrder(self.stopped, link if "link" in self.model_fields_set else None)


def add_orders(api: FastAPI, backend: ServingBackend, orders: OrderBackend) -> None:
    """Add the endpoints."""

    @api.patch("/v1/fleet/replicas/{name}", openapi_extra=described(ReplicaChange))
    async def replica(request: Request, name: str) -> dict[str, Any]:
        """Drain a replica, or have it take requests again; show the orders in force."""
        await operator(request, backend)
        change = await body_of(request, ReplicaChange, backend.api)
        return shown_orders(await orders.order_replica(name, change.drained))

    @api.patch("/v1/fleet/devices/{name}", openapi_extra=described(DeviceChange))
    async def device(request: Request, name: str) -> dict[str, Any]:
        """Stop a device or start it, and throttle, cut or restore its emulated link; show the orders in force."""
        await operator(request, backend)
        change = await body_of(request, DeviceChange, backend.api)
        return shown_orders(await orders.order_device(name, change.order()))


def shown_orders(told: OrdersTold) -> dict[str, Any]:
    """Return the orders in force as a JSON object."""
    return {
        "drained": {
            pool: [shown_replica(each) for each in replicas] for pool, replicas in told.drained.items()
        },
        "stopped": sorted(told.devices.stopped),
        "links": msgspec.to_builtins(told.devices.links),
    }


def shown_replica(replica: EndpointInfo) -> dict[str, Any]:
    """Return a replica's state and load."""
    return {
        "name": replica.name,
        "model": replica.model,
        "sessions": replica.sessions,
        "rests": replica.rests,
        "refusal": replica.refusal,
        **{name: getattr(replica.load, name) for name in _TOLD_LOAD},
    }
