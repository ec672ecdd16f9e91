"""The router: decides where a request goes, by policy, and learns from what becomes of it.

One for all replicas of the API. It follows the scheduler's snapshot, keeps the experience of all requests, and is the
one writer of accounts; what their owners have settled, the scheduler keeps a copy of, in case the router dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.accounts import Statement
from deployments.assigner import Assigner
from deployments.directory import Snapshot
from deployments.experience import Experience
from deployments.reports import Report
from deployments.request.assignment import Assignment, RoutingRequest
from deployments.routing import Routing
from deployments.settings import RacingSettings, RouterSettings
from policies.collaboration import collaboration
from policies.routing import routing

logger = logging.getLogger("ray.serve")

ANSWER_S = 10.0
"""The scheduler answers within that, or is not there."""


@serve.deployment
class Router:
    """Assigns endpoints to requests. batch_limit: sessions a verifier's step takes."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, scheduler: DeploymentHandle, settings: RouterSettings, racing: RacingSettings, batch_limit: int
    ) -> None:
        self._scheduler = scheduler
        self._assigner = Assigner(
            settings.collaboration.create(collaboration),
            lambda: settings.routing.create(routing),
            batch_limit,
            Experience(racing),
        )
        self._routing = Routing(self._assigner, settings)
        self._accounts = self._assigner.experience.accounts
        self._informed = asyncio.Event()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request; raises as Routing.assign."""
        return await self._routing.assign(wanted)

    async def report(self, reports: Sequence[Report]) -> None:
        """Answers are over."""
        for report in reports:
            try:
                self._assigner.take_in(report)
            except Exception:  # a bug in one mode's learning must not cost the others' reports
                logger.exception("cannot learn from a report")

    async def account(self, key: str) -> Statement:
        """The account of that key."""
        await _happened(self._informed, ANSWER_S)
        return self._accounts.statement(key)

    async def settle(self, key: str, budget: float | None, exchange_rate: float | None) -> Statement:
        """The same, after what is not None was set."""
        await _happened(self._informed, ANSWER_S)
        account = self._accounts.settle(key, budget, exchange_rate)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._scheduler.keep_terms.remote({key: account.terms})
        except Exception as error:  # its successor will be told
            logger.warning("the scheduler does not keep an account's terms: %s", type(error).__name__)
        return account.statement()

    async def lost(self, address: str) -> None:
        """Devices at this address did not answer somebody."""
        self._scheduler.lost.remote(address)

    async def snapshot(self) -> Snapshot:
        """What is up, as this router knows it."""
        return self._assigner.snapshot

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    snapshot = await self._scheduler.snapshot.remote(self._assigner.version, wait_s=5.0)
                    if snapshot.since is None:  # it does not know this router, or is new itself
                        await self._scheduler.keep_terms.remote(self._accounts.settled())
                        self._accounts.restore(await self._scheduler.terms.remote())
            except Exception as error:  # the scheduler restarts: go on with what is known
                logger.warning("no news from the scheduler: %s", type(error).__name__)
                await asyncio.sleep(0.5)
                continue
            self._routing.see(snapshot)
            self._informed.set()

    async def check_health(self) -> None:
        """Serve restarts the router when it no longer follows the scheduler."""
        if self._following.done():
            raise RuntimeError(f"the loop ended: {self._following}")

    async def __del__(self) -> None:
        self._following.cancel()


async def _happened(event: asyncio.Event, within_s: float) -> None:
    """Wait until it has, or that is over."""
    if event.is_set():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
