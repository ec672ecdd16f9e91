"""The router: plans a request. It follows the scheduler's snapshot and decides from it by policy."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from pydantic import Field, model_validator
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.assigner import Assigner
from deployments.assignment import Assignment, NoEndpoint, Wishes
from deployments.roster import Snapshot
from deployments.settings import PolicyChoice, Strict
from policies.collaboration import collaboration
from policies.routing import routing

logger = logging.getLogger("ray.serve")


class RouterSettings(Strict):
    """collaboration: chooses mode and device; routing: chooses the replica.

    wait_s: how long a request waits for an endpoint that is not up; retry_lost_s: after so long it also
    takes one that has failed it before, if that is still listed.
    """

    collaboration: PolicyChoice = PolicyChoice(name="explicit")
    routing: PolicyChoice = PolicyChoice(name="jsq")
    wait_s: float = Field(45.0, ge=0)
    retry_lost_s: float = Field(3.0, ge=0)

    @model_validator(mode="after")
    def _policies_exist(self) -> RouterSettings:
        self.collaboration.create(collaboration)
        self.routing.create(routing)
        return self


@serve.deployment
class Router:
    """Assigns endpoints to requests. batch_limit: sessions a verifier's step takes."""

    async def __init__(self, scheduler: DeploymentHandle, settings: RouterSettings, batch_limit: int) -> None:
        self._scheduler, self._settings = scheduler, settings
        self._assigner = Assigner(
            settings.collaboration.create(collaboration),
            lambda: settings.routing.create(routing),
            batch_limit,
        )
        self._news = asyncio.Event()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def assign(self, wishes: Wishes) -> Assignment:
        """Mode and endpoints for a request; raises as Assigner.assign, NoEndpoint after wait_s."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            news = self._news
            try:
                return self._assigner.assign(wishes, retry_lost=waited >= self._settings.retry_lost_s)
            except NoEndpoint:
                left = self._settings.wait_s - waited
                if left <= 0:
                    raise
            await _heard(news, min(left, 0.5))

    async def lost(self, address: str) -> None:
        """Devices at this address did not answer somebody."""
        self._scheduler.lost.remote(address)

    async def snapshot(self) -> Snapshot:
        """What is up, as this router knows it."""
        return self._assigner.snapshot

    async def _follow(self) -> None:
        while True:
            version = self._assigner.snapshot.version
            try:
                async with asyncio.timeout(10.0):
                    snapshot = await self._scheduler.snapshot.remote(version, wait_s=5.0)
            except Exception as error:  # the scheduler restarts: go on with what is known
                logger.warning("no news from the scheduler: %s", type(error).__name__)
                await asyncio.sleep(0.5)
                continue
            self._assigner.see(snapshot)
            self._news.set()
            self._news = asyncio.Event()

    async def __del__(self) -> None:
        self._following.cancel()


async def _heard(news: asyncio.Event, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await news.wait()
