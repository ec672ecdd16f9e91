"""The ingress: the API over HTTP, and the executor that drives every answer from here over the wire."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import msgspec
from opentelemetry.trace import Tracer
from pydantic import Field
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from tandem.app.api.http.backend import ModelCard, ResponseStore, StreamStore
from tandem.app.api.http.errors import NotReady
from tandem.app.api.http.settings import ApiSettings
from tandem.app.api.routes import create_api
from tandem.app.served import Served, router_plan
from tandem.app.settings import Settings
from tandem.app.vocabularies import Vocabularies, vocabularies
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.peers import Peers
from tandem.deployments.access.accounts import Statement
from tandem.deployments.access.keys import Caller
from tandem.deployments.admission.client import Entrance
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.config.settings import RouterSettings
from tandem.deployments.control.access_client import AccessClient
from tandem.deployments.control.calls import HandleClient
from tandem.deployments.control.observation import Observation
from tandem.deployments.control.router import routings
from tandem.deployments.control.router_client import RouterClient
from tandem.deployments.control.scheduler_client import SchedulerClient
from tandem.deployments.gateway.deployment import Gateway
from tandem.deployments.messages import carry_messages
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.sections import of_modes, with_sections
from tandem.deployments.request.assignment import EndpointInfo, Unavailable
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.under_way import UnderWay
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.readiness import empty, lacks
from tandem.deployments.serve_log import join_serves_log
from tandem.deployments.tracing.exporter import Exporter
from tandem.engine.text.tokenizer import Tokenizer
from tandem.policies.routing.objectives import OBJECTIVES

logger = logging.getLogger("ray.serve")


@with_sections(mode for mode in AT_FRONT_DOORS.values() if not mode.section)
class IngressLive(Live):
    """Settings that a replica of the API takes over while it runs, the modes' without a section included.

    default_reader_rate, router: as in Settings.
    """

    default_reader_rate: float = Field(5.0, ge=0, le=10_000, allow_inf_nan=False)
    router: RouterSettings = RouterSettings()


@serve.deployment
@serve.ingress()
class Ingress:
    """The API's backend (`app.api.http.backend.ServingBackend`), and the hub of the data plane."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        router: DeploymentHandle,
        access: DeploymentHandle,
        scheduler: DeploymentHandle,
        settings: Settings,
        gateway: DeploymentHandle | None = None,
    ) -> None:
        join_serves_log()
        carry_messages()
        self._scheduler = SchedulerClient(scheduler, settings.limits.open_s)
        stand_in = partial(routings, *router_plan(settings), HandleClient(access)), self._scheduler.follow
        self._router = RouterClient(router, settings.limits, settings.gate, stand_in)
        self._access = AccessClient(access, self._router, settings.limits)
        self._gateway = None if gateway is None else HandleClient(gateway)
        self._settings = settings
        self._started = self._live = IngressLive(
            **{key: getattr(settings, key) for key in IngressLive.model_fields}
        )
        endpoint = settings.endpoint
        self._peers = Peers(token=endpoint.token, tls=endpoint.dialling(), settings=settings.limits.wire())
        self._models = {
            name: Served(name, settings, each, self._peers, self._router, self._access.report, self._lost)
            for name, each in (await asyncio.to_thread(_vocabularies, settings)).items()
        }
        self._entrance = Entrance(self._router, self._access.unbooked, self._closing)
        self._exporter = Exporter.of_environment("ingress")

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve's `user_config`, as IngressLive."""
        if (now := in_place(self._started, config)) is not None:
            self._live = now
            for model in self._models.values():
                model.executor.follow(of_modes(self._settings) | of_modes(now))
                model.executor.compares = now.router.compares

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_api(self, self._access, self._scheduler)

    @property
    def api(self) -> ApiSettings:
        return self._settings.api

    @property
    def default_reader_rate(self) -> float:
        return self._live.default_reader_rate

    @property
    def behind_proxy(self) -> bool:
        return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"

    @property
    def tracer(self) -> Tracer | None:
        return None if self._exporter is None else self._exporter.tracer

    @property
    def responses(self) -> ResponseStore:
        return self._access

    @property
    def streams(self) -> StreamStore:
        return self._access

    def models(self) -> Sequence[ModelCard]:
        return [card for model in self._models.values() for card in model.cards]

    def tokenizer(self, model: str) -> Tokenizer:
        card = next(card for card in self.models() if card.id == model)
        return self._models[card.parent or card.id].vocabularies.target

    def objectives(self) -> Sequence[str]:
        return tuple(OBJECTIVES) if self._live.router.compares else ()

    def check(self, mode: str) -> None:
        next(iter(self._models.values())).executor.check(mode)  # one is as good as another

    def stays(self, mode: str | None) -> bool:
        return False

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        return self._models[job.model].executor.run(job)

    async def enter(self, caller: Caller, entry: Entry, jobs: Sequence[Job]) -> Passage:
        if not caller.keyed:
            return Passage()
        return await self._entrance.enter(
            entry, [self._models[job.model].executor.wanted(job) for job in jobs]
        )

    def leave(self, caller: Caller, entry: Entry, finished: bool) -> None:
        if caller.keyed:
            self._entrance.leave(entry.request, finished)

    async def booked(self) -> None:
        await self._access.booked()

    async def caller(self, hashed: str | None) -> Caller | None:
        return await self._access.callers.of(hashed)

    async def account(self, key: str) -> Statement:
        self._router.flush()
        return await self._access.account(key)

    async def devices(self) -> list[dict[str, Any]]:
        return [_shown(device) for device in (await self._router.snapshot()).devices.values()]

    async def fleet(self) -> Snapshot:
        return await self._router.snapshot()

    def under_way(self) -> list[UnderWay]:
        return [each for model in self._models.values() for each in model.executor.under_way()]

    async def ready(self) -> dict[str, Any]:
        """Replicas by pool and the number of devices, once every pool has a replica that should, and every model a mode
        that can serve; "modes" has what each lacks, by model; "missing" names the devices that should be there and are
        not; "refused" says which services serve nothing to this application; "gateway" is where others dial in, if
        there is one."""
        snapshot = await self._router.snapshot()
        if not snapshot.version:
            raise NotReady(["the router does not know yet what is up"])
        planned = {name: self._settings.planned(name) for name in self._settings.served}
        lacking = {name: lacks(each, snapshot, name) for name, each in planned.items()}
        refused = {e.refusal for replicas in snapshot.pools.values() for e in replicas if e.refusal}
        told: dict[str, Any] = {
            **{pool: len(replicas) for pool, replicas in snapshot.pools.items()},
            "devices": len(snapshot.devices),
            "missing": sorted(snapshot.awaited),
            "refused": sorted(refused),
            "modes": lacking,
        }
        absent = [f"no {pool} is up" for each in planned.values() for pool in empty(each, snapshot)]
        absent += [lack for modes in lacking.values() if all(modes.values()) for lack in modes.values()]
        if self._gateway is not None:
            try:
                told["gateway"] = await self._gateway.ask(self._settings.limits.open_s, Gateway.address)
            except Unavailable:
                absent.append("no gateway is up")
        if absent:
            raise NotReady(list(dict.fromkeys(absent)), told)
        return told

    def observe(self, seen: Observation) -> None:
        self._router.observe(seen)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        self._router.flush()
        return await self._router.exposition(openmetrics)

    def _lost(self, endpoint: EndpointInfo) -> None:
        if endpoint.device:  # the scheduler sees for itself which replicas are up
            self._router.lost(endpoint.name, endpoint.address)

    def _closing(self) -> frozenset[asyncio.Task[None]]:
        return frozenset().union(*(model.executor.closing() for model in self._models.values()))

    async def __del__(self) -> None:
        for model in self._models.values():
            await model.executor.settled()
        self._router.close()
        self._entrance.close()
        await self._access.close()
        await self._peers.close()
        if self._exporter is not None:
            await self._exporter.close()


def _shown(device: DeviceRecord) -> dict[str, Any]:
    """A device as /v1/devices lists it: everything but where it is reached."""
    shown: dict[str, Any] = msgspec.to_builtins(device)
    del shown["address"]
    return shown


def _vocabularies(settings: Settings) -> dict[str, Vocabularies]:
    """Return each model's vocabularies, ready for chats: what these need takes seconds to import and compile."""
    loaded = vocabularies(settings)
    for each in loaded.values():
        if (problem := each.target.chat_problem) is not None:
            logger.warning("no chats: %s", problem)
    return loaded
