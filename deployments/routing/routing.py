"""The router without Ray: assigns endpoints to requests, and passes on what modes tell, ask and learn."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

from tandem.deployments.config.settings import AccountSettings, RouterSettings
from tandem.deployments.learning.report import Report
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.request.assignment import (
    Assignment,
    Endpoints,
    NoEndpoint,
    Present,
    Prices,
    RoutingRequest,
)
from tandem.deployments.request.job import NoSuchDevice
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.forecaster import Forecaster
from tandem.engine.base import EngineError
from tandem.engine.config import Strict
from tandem.policies.cost import PerToken, per_million
from tandem.policies.estimators.influence import Influence

logger = logging.getLogger(__name__)

KEEP_S = 10.0
"""Seconds between two times that modes' learnt state is written, if it has changed."""

LOOK_AGAIN_S = 0.5  # at the latest: an endpoint that failed a request may be tried again after a while


async def _no_device(name: str) -> bool:
    return False


class Routing:
    """One router's view of requests.

    settings: how long they wait for endpoints that are not up.
    accounts: prices of a model without its own, and the terms of requests that bring none.
    modes: the modes' parts here, by name.
    may_dial_in: whether a device of that name has a key.
    suffix: of the model's pools (`pool_name`).
    """

    def __init__(
        self,
        assigner: Assigner,
        settings: RouterSettings | None = None,
        accounts: AccountSettings | None = None,
        modes: Mapping[str, Strict] = MappingProxyType({}),
        random: Random | None = None,
        may_dial_in: Callable[[str], Awaitable[bool]] = _no_device,
        suffix: str = "",
    ) -> None:
        """modes: their settings, by name, where they are not the defaults; random: for what their policies decide by
        chance."""
        self.assigner = assigner
        self.settings = settings or RouterSettings()
        self.accounts = accounts or AccountSettings()
        around = Surroundings(assigner, lambda: self.accounts.budget, random or Random(), suffix)
        self.shared = around.shared
        self.modes = {
            name: mode.router(modes.get(name) or mode.settings(), around) for name, mode in MODES.items()
        }
        self.forecaster = Forecaster(self.modes, around, self._prices)
        assigner.forecaster = self.forecaster
        self._influence = Influence()
        self._may_dial_in = may_dial_in
        self._news = asyncio.Event()
        self._informed = False
        self._waiting = Counter[str]()

    def see(self, snapshot: Snapshot, now_s: float = 0.0) -> None:
        """Take over what is up, or what has changed. now_s: on the event loop's clock."""
        self.assigner.see(snapshot, now_s)
        self.forecaster.see()
        for part in self.modes.values():
            part.see()
        self._informed = True
        self._news.set()
        self._news = asyncio.Event()

    async def snapshot(self, version: int = 0, devices: bool = True) -> Snapshot:
        """Return what is up, once at least that version is known; without the devices, which may be many, if they are
        not wanted."""
        while self.assigner.version < version:
            await self._news.wait()
        snapshot = self.assigner.snapshot
        return snapshot if devices else replace(snapshot, devices={})

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request; raises as Assigner.assign, NoEndpoint after `wait_s`, and at once where the
        device that is asked for may dial in and is not there."""
        try:
            return await self._assign(wanted)
        except NoSuchDevice as error:
            for name in wanted.named:
                if await self._may_dial_in(name):
                    raise NoEndpoint(f"{error}; it has a key, and may dial in") from None
            raise

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            news, now_s = self._news, loop.time()
            try:
                if not self._informed:  # a new router: what it has not heard of may well be there
                    raise NoEndpoint("the router does not know yet what is up")
                return self.assign_now(wanted, now_s - began_s, now_s)
            except NoEndpoint as error:
                left_s = began_s + self.settings.wait_s - now_s
                if left_s <= 0:
                    raise
                waits_for = error.pool
            if waits_for is not None:
                self._waiting[waits_for] += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_AGAIN_S)):
                        await news.wait()
            finally:
                if waits_for is not None:
                    self._waiting[waits_for] -= 1

    def assign_at_once(self, wanted: RoutingRequest) -> Assignment | None:
        """Return an assignment for a request that has just begun, None if it has to wait or is refused."""
        if not self._informed:
            return None
        try:
            return self.assign_now(wanted, now_s=asyncio.get_running_loop().time())
        except EngineError:
            return None

    def assign_now(self, wanted: RoutingRequest, waited_s: float = 0.0, now_s: float = 0.0) -> Assignment:
        """Assign as Assigner.assign, and add prices and the mode's briefing."""
        self.assigner.usual_price = per_million(self.accounts.price_in, self.accounts.price_out)
        return self._briefed(wanted, self.assigner.assign(wanted, waited_s, now_s))

    def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        """Return another assignment for the rest of an answer under way, None if it had better go on as it does, or
        nothing is known."""
        if not self._informed:
            return None
        try:
            made = self.assigner.reconsider(wanted, present, asyncio.get_running_loop().time())
        except EngineError:
            return None
        return None if made is None else self._briefed(wanted, made)

    def _briefed(self, wanted: RoutingRequest, made: Assignment) -> Assignment:
        prices = self._prices(wanted, made.endpoints)
        briefing = self.modes[made.mode].brief(wanted, made.endpoints, prices)
        return replace(made, prices=prices, briefing=briefing)

    def _prices(self, wanted: RoutingRequest, endpoints: Endpoints) -> Prices:
        """Return the prices of a request's tokens at these endpoints."""
        rate, own = wanted.exchange_rate, None
        for endpoint in endpoints.values():
            if (own := endpoint.price) is not None:
                break
        own = own or self.assigner.price or self.assigner.usual_price
        return Prices(own, self.accounts.exchange_rate if rate is None else rate)

    def dearest(self) -> PerToken:
        """Return the highest prices of the verifiers that are up, dollars per token in and out."""
        usual = per_million(self.accounts.price_in, self.accounts.price_out)
        own = self.assigner.price or usual
        up = [each.price or own for each in self.assigner.snapshot.pools.get(VERIFIER, ())] or [own]
        return PerToken(max(price.prefill for price in up), max(price.decode for price in up))

    def learn(self, report: Report) -> None:
        """Take in what an answer has taught; of an account that teaches more than all others, only what is its own."""
        if not self._influence.admits(report.account):
            report = replace(report, forecast=None, parts=(), counts=False)
        for told in (*report.by_part(), report):
            self.shared.learn(told)
            self.forecaster.learn(told)
            for name, part in self.modes.items():
                try:
                    part.learn(told, told.taught.get(name))
                except Exception:  # a bug in one mode's learning must not cost the others' reports
                    logger.exception("mode %s cannot learn from a report", name)

    async def keep(self) -> None:
        """Have what modes have learnt written down again and again, where somebody wants it."""
        while True:
            await asyncio.sleep(KEEP_S)
            for part in self.modes.values():
                await part.keep()

    async def ask(self, mode: str, question: object) -> Any:
        """Put a request's question to its mode's part."""
        return await self.modes[mode].ask(question)

    def tell(self, mode: str, said: object) -> None:
        """Tell a mode's part what a request has to say."""
        self.modes[mode].tell(said)

    def spent(self, account: str) -> dict[str, tuple[float, float]]:
        """Return what modes limit for that account, as in Statement."""
        return {what: by for part in self.modes.values() for what, by in part.spent(account).items()}

    def take_waiting(self) -> Counter[str]:
        """Return, by empty pool, the requests that wait for its first replica, and those that have gone on without it
        since the last call."""
        missed, self.assigner.missed = self.assigner.missed, Counter()
        return self._waiting + missed
