"""The ingress: the API over HTTP, and the executor that drives every answer from here over the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec
from pydantic import Field, field_validator
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.api.backend import ModelCard
from app.api.errors import NotReady
from app.api.routes import create_api
from app.api.settings import ApiSettings
from app.callers import Callers
from app.entrance import Entrance
from app.settings import Settings
from app.vocabularies import Vocabularies
from cluster.peers import Peers
from cluster.registry import DeviceRecord
from cluster.wire import WireSettings
from deployments.accounts import Statement
from deployments.changes import in_place
from deployments.directory import Snapshot
from deployments.engines import context_of
from deployments.gate import Entry, Passage
from deployments.keys import Caller, Key, Role
from deployments.metrics import Observation
from deployments.modes.base import POOLS, Tools
from deployments.reports import Outbox, Report
from deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from deployments.request.executor import Executor
from deployments.request.job import Delta, Job
from deployments.settings import LimitSettings, PolicyChoice, Strict
from engine.base import Engine
from engine.tokenizer import Tokenizer
from policies.window import window

logger = logging.getLogger("ray.serve")


T = TypeVar("T")


class IngressChanges(Strict):
    """What a replica of the API takes over while it runs; null: as it was started with.

    window, fused_window, default_reader_rate: as in Settings.
    """

    window: PolicyChoice | None = None
    fused_window: int | None = Field(None, ge=0)
    default_reader_rate: float | None = Field(None, ge=0, le=10_000, allow_inf_nan=False)

    @field_validator("window")
    @classmethod
    def _window_exists(cls, choice: PolicyChoice | None) -> PolicyChoice | None:
        if choice is not None:
            choice.create(window)
        return choice


@serve.deployment
@serve.ingress()
class Ingress:
    """The API's backend (`app.api.backend.Backend`), and the hub of the data plane."""

    async def __init__(self, router: DeploymentHandle, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits
        self._router, self._settings, self._changes = router, settings, IngressChanges()
        self._vocabularies = await asyncio.to_thread(Vocabularies, settings)
        vocabulary = self._vocabularies.target.vocabulary
        self._card = ModelCard(settings.model, context_of(settings.verifier.engine), vocabulary)
        endpoint = settings.endpoint
        self._peers = Peers(token=endpoint.token, tls=endpoint.dialling(), settings=_wire(settings.limits))
        self._outbox = Outbox[Report](lambda reports: self._router.report.remote(reports))
        self._observations = Outbox[Observation](lambda seen: self._router.observe.remote(seen))
        limits = settings.limits
        queued_s = settings.gate.queue_s + limits.assign_s
        self._entrance = Entrance(
            partial(self._within, queued_s),
            lambda method, *args: getattr(router, method).remote(*args),
            lambda: self._executor.closing(),
        )
        self._callers = Callers(partial(self._within, limits.assign_s))
        self._executor = Executor(
            self._assign,
            self._dial,
            self._tools(),
            settings.limits.limits(),
            self._outbox.add,
            self._lost,
        )

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve's `user_config`, as IngressChanges."""
        if (changes := in_place(IngressChanges, config)) is not None:
            self._changes = changes
            self._executor.follow(self._tools())

    def _tools(self) -> Tools:
        choice = self._changes.window or self._settings.window
        fused_window = _first(self._changes.fused_window, self._settings.fused_window)
        return Tools(window=lambda: choice.create(window), fused_window=fused_window)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_api(self)

    @property
    def api(self) -> ApiSettings:
        return self._settings.api

    @property
    def default_reader_rate(self) -> float:
        return _first(self._changes.default_reader_rate, self._settings.default_reader_rate)

    def models(self) -> Sequence[ModelCard]:
        return (self._card,)

    def tokenizer(self, model: str) -> Tokenizer:
        return self._vocabularies.target

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        return self._executor.run(job)

    def enter(self, caller: Caller, entry: Entry) -> AbstractAsyncContextManager[Passage]:
        return self._entrance.pass_through(entry) if caller.keyed else nullcontext(Passage())

    async def caller(self, hashed: str | None) -> Caller | None:
        return await self._callers.of(hashed)

    async def account(self, key: str) -> Statement:
        self._outbox.flush()
        return await self._soon("account", key)

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        return await self._soon("settle", key, changes)

    async def keys(self) -> list[Key]:
        return await self._soon("keys")

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any]) -> tuple[Key, str]:
        return await self._changing("make_key", name, role, changes)

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        return await self._changing("rotate_key", id, grace_s)

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any]
    ) -> Key:
        return await self._changing("change_key", id, name, role, changes)

    async def revoke_key(self, id: str) -> Key:
        return await self._changing("revoke_key", id)

    async def _changing(self, method: str, *args: object) -> Any:
        """A change of keys, which this replica heeds at once, and others soon."""
        try:
            return await self._soon(method, *args)
        finally:
            self._callers.forget()

    async def devices(self) -> list[dict[str, Any]]:
        return [_shown(device) for device in (await self._snapshot()).devices.values()]

    async def ready(self) -> dict[str, Any]:
        """Replicas by pool and the number of devices, once every pool has a replica that should; "missing" names the
        devices that should be there and are not."""
        snapshot = await self._snapshot()
        if not snapshot.version:
            raise NotReady(["the router does not know yet what is up"])
        may_be_empty = [pool for pool in POOLS if getattr(self._settings, pool).may_be_empty]
        missing = [f"no {p} is up" for p, up in snapshot.pools.items() if not up and p not in may_be_empty]
        if missing:
            raise NotReady(missing)
        up = {pool: len(replicas) for pool, replicas in snapshot.pools.items()}
        return {**up, "devices": len(snapshot.devices), "missing": sorted(snapshot.awaited)}

    def observe(self, seen: Observation) -> None:
        self._observations.add(seen)

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        self._observations.flush()
        text, content_type = await self._soon("exposition", openmetrics)
        return text, content_type

    async def _snapshot(self) -> Snapshot:
        return await self._soon("snapshot")

    async def _soon(self, method: str, *args: object) -> Any:
        """What the router answers, to people who wait for nothing else."""
        return await self._within(self._settings.limits.open_s, method, *args)

    async def _within(self, limit_s: float, method: str, *args: object) -> Any:
        """What the router answers; raises NotReady if it takes longer."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._ask(method, *args)
        except TimeoutError:
            raise NotReady(["the router does not answer"]) from None

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        return await self._ask("assign", wanted)

    def _lost(self, endpoint: EndpointInfo) -> None:
        if endpoint.device:  # the scheduler sees for itself which replicas are up
            self._router.lost.remote(endpoint.address)

    async def _ask(self, method: str, *args: object) -> Any:
        """Call the router; what it raises arrives as it was there, without Ray's wrapping.

        If the router dies over it, its successor is asked.
        """
        while True:
            try:
                answer = await getattr(self._router, method).remote(*args)
            except RayTaskError as error:
                raise error.cause from None
            except RayActorError as error:
                logger.warning("the router died: %s", type(error).__name__)
                await asyncio.sleep(0.1)
                continue
            if isinstance(answer, Exception):  # a refusal, see `deployments.router.told`
                raise answer
            return answer

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        engine = await self._peers.engine(endpoint.address, endpoint.engine)
        return self._vocabularies.spoken(engine, endpoint)

    async def __del__(self) -> None:
        await self._executor.settled()
        self._outbox.flush()
        self._observations.flush()
        self._entrance.close()
        await self._peers.close()


def _first(change: T | None, setting: T) -> T:
    return setting if change is None else change


def _wire(limits: LimitSettings) -> WireSettings:
    """A wire that gives up a second after the executor, whose limits are the ones that hold."""
    longest_s = max(limits.open_s, limits.first_s, limits.step_s)
    return WireSettings(timeout_s=longest_s + 1.0, hello_s=limits.connect_s + 1.0)


def _shown(device: DeviceRecord) -> dict[str, Any]:
    """A device as /v1/devices lists it: everything but where it is reached."""
    shown: dict[str, Any] = msgspec.to_builtins(device)
    del shown["address"]
    return shown
