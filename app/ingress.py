"""The ingress: the API over HTTP, and the executor that drives every answer from here over the wire."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.api import create_api
from app.backend import ModelCard
from app.errors import NotReady
from app.settings import Settings
from cluster.peers import Peers
from cluster.registry import DeviceRecord
from deployments.accounts import Statement, Terms
from deployments.assigner import POOLS
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.engines import context_of, model_folder
from deployments.executor import Executor, Limits
from deployments.job import Delta, Job
from deployments.racing import Racing
from deployments.roster import Snapshot
from deployments.seat import Patience
from engine.base import Engine
from engine.text import Tokenizer
from engine.translate import Translated
from policies.window import window

KNOWN_AFTER_S = 5.0  # all replicas have heard of a new one by then

logger = logging.getLogger("ray.serve")


@serve.deployment
@serve.ingress()
class Ingress:
    """The API's backend (`app.backend.Backend`), and the hub of the data plane."""

    async def __init__(self, router: DeploymentHandle, settings: Settings) -> None:
        self._router, self._settings = router, settings
        self._tokenizer = await asyncio.to_thread(Tokenizer.load, model_folder(settings.tokenizer))
        self._card = ModelCard(
            settings.model, context_of(settings.verifier.engine), self._tokenizer.vocabulary
        )
        self._peers = Peers(token=settings.endpoint.token)
        limits = settings.limits
        patience = Patience(limits.connect_s, limits.open_s, limits.first_s, limits.step_s)
        self._tokenizers = await asyncio.to_thread(self._devices_tokenizers)
        self._racing = Racing(settings.racing)
        self._executor = Executor(
            self._assign,
            self._dial,
            lambda: settings.window.create(window),
            Limits(limits.replans, limits.assign_s, patience),
            self._racing,
            self._report,
        )
        context = serve.get_replica_context()
        self._replicas = serve.get_deployment_handle(context.deployment, context.app_name)
        self._draining = False
        await self._learn_accounts()
        self._learning = asyncio.get_running_loop().create_task(self._learn_accounts_again())

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_api(self)

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def default_reader_rate(self) -> float:
        return self._settings.default_reader_rate

    def models(self) -> Sequence[ModelCard]:
        return (self._card,)

    def tokenizer(self, model: str) -> Tokenizer:
        return self._tokenizer

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        return self._executor.run(job)

    async def account(self, key: str) -> Statement:
        """As all replicas of the API know it together."""
        return await self.change_account(key, None, None)

    async def change_account(self, key: str, budget: float | None, exchange_rate: float | None) -> Statement:
        for answer in (
            answers := await self._all("change_account_here", key, budget, exchange_rate, time.time())
        ):
            if isinstance(answer, Exception) and not isinstance(answer, RayActorError):
                raise answer  # whoever lives has to hear of the change; a successor asks for it
        if parts := [answer for answer in answers if isinstance(answer, Statement)]:
            return Statement.total(parts)
        raise NotReady(["no replica of the API answers"])

    async def change_account_here(
        self, key: str, budget: float | None, exchange_rate: float | None, now_s: float
    ) -> Statement:
        """Called by a replica of the API at all of them, itself too."""
        account = self._racing.accounts.of(key)
        account.change(budget, exchange_rate, now_s)
        return account.statement()

    async def changed_accounts_here(self) -> dict[str, Terms]:
        """Called by a replica of the API that has just begun, at all others."""
        return self._racing.accounts.changed()

    async def _learn_accounts(self) -> None:
        """What owners of accounts have settled before this replica was there."""
        for answer in await self._all("changed_accounts_here"):
            if isinstance(answer, dict):
                self._racing.accounts.adopt(answer)

    async def _learn_accounts_again(self) -> None:
        """A change that was made while this replica began may have missed it."""
        await asyncio.sleep(KNOWN_AFTER_S)
        await self._learn_accounts()

    async def _all(self, method: str, *args: object) -> list[Any]:
        """What every replica of the API answers, or the exception instead; nothing where none is up or they take too
        long."""
        with suppress(TimeoutError, DeploymentUnavailableError):
            async with asyncio.timeout(self._settings.limits.open_s):
                answers: list[Any] = await self._replicas.broadcast(method, *args).results_async(
                    return_exceptions=True
                )
                return answers
        return []

    async def devices(self) -> list[dict[str, Any]]:
        return [_shown(device) for device in (await self._snapshot()).devices.values()]

    async def ready(self) -> dict[str, Any]:
        """Replicas by pool and the number of devices, once everything the settings ask for is up."""
        snapshot = await self._snapshot()
        wanted = {
            pool: settings.replicas for pool in POOLS if (settings := getattr(self._settings, pool)).replicas
        }
        up = {pool: len(snapshot.pools.get(pool, ())) for pool in wanted}
        missing = [f"{pool}: {up[pool]} of {n} replicas" for pool, n in wanted.items() if up[pool] < n]
        devices = sum(len(host.devices) for host in self._settings.hosts)
        if len(snapshot.devices) < devices:
            missing.append(f"devices: {len(snapshot.devices)} of {devices}")
        if missing:
            raise NotReady(missing)
        return {**up, "devices": len(snapshot.devices)}

    async def _snapshot(self) -> Snapshot:
        try:
            async with asyncio.timeout(self._settings.limits.open_s):
                return await self._ask("snapshot")
        except TimeoutError:
            raise NotReady(["the router does not answer"]) from None

    async def _assign(self, wishes: Wishes) -> Assignment:
        return await self._ask("assign", wishes)

    def _report(self, gone: EndpointInfo) -> None:
        if gone.device:  # the scheduler sees for itself which replicas are up
            self._router.lost.remote(gone.address)

    async def _ask(self, method: str, *args: object) -> Any:
        """Call the router; what it raises arrives as it was there, without Ray's wrapping.

        If the router dies over it, its successor is asked.
        """
        while True:
            try:
                return await getattr(self._router, method).remote(*args)
            except RayTaskError as error:
                raise error.cause from None
            except RayActorError as error:
                logger.warning("the router died: %s", type(error).__name__)
                await asyncio.sleep(0.1)

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        engine = await self._peers.engine(endpoint.address, endpoint.engine)
        if (there := self._tokenizers.get(endpoint.vocabulary)) is not None:
            return Translated(engine, self._tokenizer, there)
        return engine

    def _devices_tokenizers(self) -> dict[str, Tokenizer]:
        """Of the devices whose vocabulary is another than the target's."""
        models = {host.engine.model for host in self._settings.hosts if host.engine.kind == "torch"}
        found = [Tokenizer.load(model_folder(model)) for model in sorted(models)]
        return {t.vocabulary: t for t in found if t.vocabulary != self._tokenizer.vocabulary}

    async def __del__(self) -> None:
        self._draining = True
        self._learning.cancel()
        await self._executor.settled()
        await self._peers.close()


def _shown(device: DeviceRecord) -> dict[str, Any]:
    """A device as /v1/devices lists it: everything but where it is reached."""
    shown: dict[str, Any] = msgspec.to_builtins(device)
    del shown["address"]
    return shown
