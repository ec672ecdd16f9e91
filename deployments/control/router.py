"""The router: decides where a request goes, by policy, and learns from what becomes of it.

One for all replicas of the API. It follows the scheduler's snapshot, admits requests, keeps what all of them have
taught, and counts them for operators (`deployments.control.metrics`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ray.serve.handle import DeploymentHandle

from tandem.deployments.admission.controller import Gate
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.reconfigure import Live, in_place
from tandem.deployments.config.settings import AccountSettings, GateSettings, RouterSettings
from tandem.deployments.control.access import Access
from tandem.deployments.control.calls import HandleClient, refuses
from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.control.scheduler_client import SchedulerClient
from tandem.deployments.learning.report import Report
from tandem.deployments.messages import carry_messages
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.sections import of_modes, with_sections
from tandem.deployments.request.assignment import Assignment, Present, RoutingRequest
from tandem.deployments.request.pools import VERIFIER, pool_name
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings, RoutedModel
from tandem.deployments.routing.routing import Routing
from tandem.deployments.serve_log import join_serves_log
from tandem.deployments.tracing.exporter import Exporter
from tandem.deployments.tracing.trace import served
from tandem.engine.base import EngineError, SplitInfo

ANSWER_S = 5.0
"""Others of the control plane answer within that, or are not there."""
Ended = int | Report | Observation
"""A request that has left the admission controller, the report of an answer, or a request as the API saw it."""


@with_sections(mode for mode in AT_FRONT_DOORS.values() if mode.section)
class RouterLive(Live):
    """Settings that a router takes over while it runs, the modes' sections included.

    router: how requests find mode and endpoints.
    accounts: prices, and the terms of requests that bring none.
    gate: when all verifiers are full.
    """

    router: RouterSettings = RouterSettings()
    accounts: AccountSettings = AccountSettings()
    gate: GateSettings = GateSettings()


class RouterPlan(NamedTuple):
    """Models and settings of a router, and of its stand-in at a front door.

    models: that clients may ask for, the first one also by no name.
    """

    models: Sequence[RoutedModel]
    live: RouterLive


def routings(models: Sequence[RoutedModel], live: RouterLive, keys: HandleClient) -> ModelRoutings:
    """Return the routings of these models, which know of nothing yet. keys: of the key service."""

    def routing(model: RoutedModel) -> Routing:
        return Routing(
            Assigner(
                live.router.collaboration.create(),
                live.router.routing.create,
                model.batch_limit,
                model.price,
            ),
            live.router,
            live.accounts,
            of_modes(live),
            suffix=model.suffix,
            may_dial_in=lambda name: keys.ask(ANSWER_S, Access.has_device, name),
        )

    return ModelRoutings(models, routing)


@refuses(EngineError)
class Router:
    """Assigns endpoints to requests.

    models: that clients may ask for, the first one also by no name.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        scheduler: DeploymentHandle,
        access: DeploymentHandle,
        models: Sequence[RoutedModel],
        live: RouterLive,
    ) -> None:
        join_serves_log()
        carry_messages()
        self._scheduler, self._started = SchedulerClient(scheduler, ANSWER_S), live

        keys = HandleClient(access)
        self._exporter = Exporter.of_environment("router")
        self._routings = routings(models, live, keys)
        for part in (part for each in self._routings for part in each.modes.values()):
            await part.recall()
        self._gate = Gate(
            {model.name: partial(self._places, model) for model in models},
            live.gate,
            price=lambda model: self._routings.of(model).dearest(),
            spent=lambda account: keys.ask(ANSWER_S, Access.standing, account),
        )
        self._metrics = Metrics(
            {model.name: partial(self._seen, model) for model in models},
            self._gate.waiting,
            adapters=[name for model in models for name in model.adapters],
        )

        def waiting() -> Counter[str]:
            """Return what requests wait for: what pools grow for, from nothing if need be."""
            gate = {pool_name(VERIFIER, model.suffix): self._gate.waiting(model.name) for model in models}
            return self._routings.take_waiting() + Counter(gate)

        loop = asyncio.get_running_loop()
        self._loops = (
            loop.create_task(self._scheduler.follow(self._routings.see)),
            loop.create_task(self._scheduler.keep_telling(waiting)),
            *(loop.create_task(each.keep()) for each in self._routings),
        )

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Take over Serve's `user_config`, as RouterLive."""
        if (now := in_place(self._started, config)) is None:
            return
        self._gate.settings = now.gate
        for routing in self._routings:
            routing.assigner.follow(now.router.collaboration.create(), now.router.routing.create)
            routing.settings, routing.accounts = now.router, now.accounts
            for name, settings in of_modes(now).items():
                routing.modes[name].follow(settings)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request; raises as Routing.assign."""
        if self._exporter is None or not wanted.trace:
            return await self._routings.assign(wanted)
        with served(self._exporter.tracer, "route", wanted.trace):
            return await self._routings.assign(wanted)

    async def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        """Return another assignment for the rest of an answer, as Routing.reconsider; none for keys with a limit on
        dollars, as what the answer has so far is paid for again where it goes on."""
        return (
            None
            if self._gate.quotas.limits_usd(wanted.request)
            else self._routings.reconsider(wanted, present)
        )

    async def ask_mode(self, model: str, mode: str, question: object) -> Any:
        """Put a request's question to its mode's part, see Routing.ask."""
        return await self._routings.of(model).ask(mode, question)

    async def tell_mode(self, model: str, mode: str, said: object) -> None:
        """Tell a mode's part what a request has to say, see Routing.tell."""
        self._routings.of(model).tell(mode, said)

    async def over(self, replica: str, ended: Sequence[Ended]) -> None:
        """Take in what a front door says of requests that are over."""
        for each in ended:
            match each:
                case int():
                    self._gate.leave(replica, each)
                case Observation():
                    self._metrics.observe(each)
                case Report():
                    self._gate.quotas.used(each.account, each.tokens, each.request, each.standing)
                    self._routings.learn(each)

    async def exposition(self, openmetrics: bool) -> tuple[bytes, str]:
        """Return the metrics, see Metrics.exposition."""
        return self._metrics.exposition(openmetrics)

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest] = ()
    ) -> tuple[Passage, list[Assignment | None]]:
        """Return when a request may begin; raises as Gate.enter. left: requests that are over. wanted: by the request's
        answers, each of which gets its assignment along if it can be made at once."""
        for request in left:
            self._gate.leave(replica, request)
        passage = await self._gate.enter(replica, entry)
        return passage, [self._routings.assign_at_once(each) for each in wanted]

    async def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        """Record all requests that a replica of the API has under way."""
        self._gate.under_way(replica, {entry.request: entry for entry in entries})

    async def spent(self, account: str) -> dict[str, tuple[float, float]]:
        """Return what modes limit for an account, see Routing.spent."""
        return self._routings.spent(account)

    async def lost(self, name: str, address: str) -> None:
        """Record that a device did not answer."""
        self._scheduler.lost(name, address)

    async def snapshot(self, version: int = 0, devices: bool = True) -> Snapshot:
        """Return a snapshot, see Routing.snapshot."""
        return await self._routings.snapshot(version, devices)

    def _places(self, model: RoutedModel) -> int:
        """Return the sessions that a model's verifiers hold; while there are none, those of a first one, so that
        requests wait for that one, not for admission."""
        return max(1, self._routings.of(model.name).assigner.count(VERIFIER)) * model.places

    def _seen(self, model: RoutedModel) -> Snapshot:
        return self._routings.of(model.name).assigner.snapshot

    async def middles(self, model: str) -> tuple[SplitInfo, ...]:
        """Return the kinds of a model's middles that are up."""
        return (await self._routings.of(model).snapshot(devices=False)).middles

    async def check_health(self) -> None:
        """Raise if a loop has ended, so that Serve replaces the router."""
        for task in self._loops:
            if task.done():
                raise RuntimeError(f"a loop ended: {task}")

    async def __del__(self) -> None:
        for task in self._loops:
            task.cancel()
        if self._exporter is not None:
            await self._exporter.close()
