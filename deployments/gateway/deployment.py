"""The gateway: endpoint for devices that are programs of their own, outside of Ray and mostly behind NAT.

It listens at a known port for devices, each with a key of its own, and inside the cluster it serves their engines like
any device host. It forwards their traffic without looking into it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

import msgspec
from pydantic import Field, model_validator
from ray.serve.handle import DeploymentHandle

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.address import is_loopback, joined, reachable
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.peers import Peers
from tandem.cluster.wire.server import EngineHandler
from tandem.deployments.admission.client import Entrance
from tandem.deployments.config.settings import LimitSettings, ServerTls, Strict
from tandem.deployments.control.access_client import AccessClient
from tandem.deployments.control.calls import HandleClient
from tandem.deployments.control.router import RouterPlan, routings
from tandem.deployments.control.router_client import RouterClient
from tandem.deployments.control.scheduler_client import SchedulerClient
from tandem.deployments.gateway.connected_devices import ConnectedDevices
from tandem.deployments.gateway.device_session import Cloud
from tandem.deployments.gateway.messages import SILENCE_S
from tandem.deployments.messages import carry_messages
from tandem.deployments.pools.replica import EndpointSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.serve_log import join_serves_log
from tandem.engine.base import Engine

logger = logging.getLogger("ray.serve")

SIGN_S = 1.0
"""Between two signs of life to the scheduler."""


class GatewaySettings(Strict):
    """host, port: address that devices dial; port 0: any.
    replicas: gateways that share this address on a machine, and have it on each of several machines.
    tls: required unless the address is on loopback, since devices send their keys.
    resume_s: how long a device's sessions wait for its broken connection.
    model: name of the model that helps with requests of devices that name none (`cloud_model`); null: the first one.
    """

    host: str = "127.0.0.1"
    port: int = Field(8443, ge=0, le=65535)
    replicas: int = Field(1, ge=1, le=64)
    tls: ServerTls | None = None
    resume_s: float = Field(30.0, ge=0, le=600)
    model: str | None = None

    @model_validator(mode="after")
    def _keys_are_not_overheard(self) -> GatewaySettings:
        if self.tls is None and not is_loopback(self.host):
            raise ValueError(f"listening on {self.host}, beyond this machine, needs tls")
        if self.replicas > 1 and not self.port:
            raise ValueError("several gateways need a port that devices know, not 0")
        return self


class Gateway:
    """Devices that have dialled in."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        router: DeploymentHandle,
        access: DeploymentHandle,
        scheduler: DeploymentHandle,
        settings: GatewaySettings,
        endpoint: EndpointSettings,
        limits: LimitSettings,
        plan: RouterPlan,
    ) -> None:
        join_serves_log()
        carry_messages()
        self._scheduler = SchedulerClient(scheduler, limits.open_s)
        stand_in = partial(routings, *plan, HandleClient(access)), self._scheduler.follow
        self._router = RouterClient(router, limits, plan.live.gate, stand_in)
        self._access = AccessClient(access, self._router, limits)
        self._peers = Peers(token=endpoint.token, tls=endpoint.dialling(), settings=limits.wire())
        cloud = self._cloud = Cloud(
            assign=self._router.assign,
            model=settings.model or "",
            account=self._access.account,
            middles=self._router.middles,
            register=self._register,
            report=self._access.report,
            booked=self._access.booked,
            dial=self._dial,
            entrance=Entrance(self._router, self._access.unbooked),
        )
        self._devices = ConnectedDevices(self._access.callers, cloud, self._gone)
        self._exit = AsyncExitStack()
        inside = await self._exit.enter_async_context(
            serve_engines(
                {},
                joined(endpoint.host, 0),
                auth=endpoint.token,
                tls=endpoint.listening(),
                handler=partial(EngineHandler, self._devices.engines),
            )
        )
        self._inside = reachable(inside.address)
        outside = await self._exit.enter_async_context(
            serve_engines(
                {},
                joined(settings.host, settings.port),
                auth=self._devices.admit,
                tls=None if settings.tls is None else settings.tls.context(),
                settings=limits.wire(SILENCE_S, settings.resume_s),
                handler=self._devices.greet,
                on_connect=self._devices.arrived,
            )
        )
        self._outside = outside.address
        loop = asyncio.get_running_loop()
        # Two, as devices stay listed while their keys cannot be checked.
        self._loops = loop.create_task(self._register_all()), loop.create_task(self._check())
        logger.info("devices dial in at %s", self._outside)

    async def address(self) -> str:
        """Address for devices to dial, "host:port"."""
        return self._outside

    async def check_health(self) -> None:
        """Raise if a loop has ended, so that Serve replaces the gateway."""
        for task in self._loops:
            if task.done():
                raise RuntimeError(f"a loop ended: {task}")

    def _gone(self, device: str) -> None:
        self._scheduler.lost(device, self._inside)

    async def _register_all(self) -> None:
        while True:
            try:
                told = await self._scheduler.register(self._devices.records(self._inside))
            except Exception as error:  # the scheduler restarts
                logger.warning("registering devices failed, trying again: %s", error)
            else:
                self._devices.obey(told.orders.stopped)
                self._devices.moved(told.moved)
            await asyncio.sleep(SIGN_S)

    async def _check(self) -> None:
        while True:
            await self._devices.check()
            await asyncio.sleep(SIGN_S)

    async def _register(self, record: DeviceRecord) -> None:
        """Return when the router knows the device."""
        record = msgspec.structs.replace(record, address=self._inside)
        await self._router.known((await self._scheduler.register([record])).version)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        return await self._peers.engine(endpoint.address, endpoint.engine)

    async def __del__(self) -> None:
        for task in self._loops:
            task.cancel()
        await self._exit.aclose()
        self._router.close()
        self._cloud.entrance.close()
        await self._access.close()
        await self._peers.close()
