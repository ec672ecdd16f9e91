"""The fleet at this moment: replicas and devices, and who works for whom; once, or as a stream of events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tandem.app.api.admin.orders import add_orders, shown_orders, shown_replica
from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import OrderBackend, ServingBackend
from tandem.app.api.http.errors import api_error
from tandem.app.api.http.kept_streams import EVENT_STREAM
from tandem.app.api.http.sending import Sending
from tandem.deployments.control.orders import OrdersTold
from tandem.deployments.request.assignment import Unavailable

PERIOD_S = 0.5
"""Seconds between two looks at the fleet."""
IDLE_S = 15.0
"""Seconds after which a stream without news says that it is there."""
LONGEST_S = 600.0
"""Seconds after which a stream ends, so that its client shows its key again."""
BYTES_PER_S = 2**18
"""Bytes that a stream takes at most on average: a large fleet is told less often."""


def add_fleet(api: FastAPI, backend: ServingBackend, orders: OrderBackend | None) -> None:
    """Add the endpoints. orders: None where none are taken."""

    @api.get(
        "/v1/fleet",
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def fleet(request: Request, stream: bool = False) -> Response:
        """Show replicas by pool, devices, those missing, the answers that this process gives now, and the orders in
        force; with `stream` whenever that changes. For operators."""
        await operator(request, backend)
        return FleetStream(backend, orders) if stream else JSONResponse(await _shown(backend, orders))

    if orders is not None:
        add_orders(api, backend, orders)


class FleetStream(Response):
    """Events with the whole state, whenever it has changed, for as long as the client is there."""

    def __init__(self, backend: ServingBackend, orders: OrderBackend | None) -> None:
        super().__init__()
        self._backend, self._orders = backend, orders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Sending(receive, send).run(self._tell, lambda: None)

    async def _tell(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        last, told_s, ends_s = b"", loop.time(), loop.time() + LONGEST_S
        while loop.time() < ends_s:
            event = await self._event()
            if event == last and loop.time() - told_s > IDLE_S:
                event = b": nothing new\n\n"
            elif event != last:
                last = event
            else:
                event = b""
            if event:
                told_s = loop.time()
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(pause_s(len(last)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _event(self) -> bytes:
        try:
            told = await _shown(self._backend, self._orders)
        except Unavailable as error:  # the router restarts
            told = api_error(error).body()
        return b"data: %b\n\n" % json.dumps(told, separators=(",", ":")).encode()


def pause_s(size: int) -> float:
    """Return the seconds between two looks at a fleet whose event has that many bytes."""
    return max(PERIOD_S, size / BYTES_PER_S)


async def _shown(backend: ServingBackend, orders: OrderBackend | None) -> dict[str, Any]:
    snapshot = await backend.fleet()
    ordered = OrdersTold() if orders is None else await orders.orders()
    return {
        "object": "fleet",
        "pools": {
            pool: [shown_replica(each) for each in replicas] for pool, replicas in snapshot.pools.items()
        },
        "devices": await backend.devices(),
        "missing": sorted(snapshot.awaited),
        "requests": msgspec.to_builtins(backend.under_way()),
        **shown_orders(ordered),
    }
