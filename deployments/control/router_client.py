"""Client of the router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray.serve.handle import DeploymentHandle

from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.config.settings import GateSettings, LimitSettings
from tandem.deployments.control.calls import HandleClient
from tandem.deployments.control.observation import Observation
from tandem.deployments.control.router import Router
from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.outbox import Outbox
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Present, RoutingRequest
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings
from tandem.deployments.routing.stand_in import Follow, RouterStandIn
from tandem.engine.base import SplitInfo

ENTERED = 1024
"""Assignments that came with their requests' admission, and are kept until these begin; they do so at once."""


class RouterClient(HandleClient):
    """Methods of the router, and what they raise. Unavailable: it did not answer within a limit of these settings.

    stand_in: of routings and of the way to follow what is up, which make a stand-in; None: there is none.
    """

    def __init__(
        self,
        router: DeploymentHandle,
        limits: LimitSettings,
        gate: GateSettings,
        stand_in: tuple[Callable[[], ModelRoutings], Follow] | None = None,
    ) -> None:
        super().__init__(router)
        self._stand_in = stand_in and RouterStandIn(
            *stand_in, lambda: self.ask(None, Router.snapshot, devices=False)
        )
        self._assign_s, self._soon_s = limits.assign_s, limits.open_s
        self._enter_s = gate.queue_s + limits.assign_s
        self._made = LRUTable[int, Assignment](ENTERED)
        self._ended = Outbox[Report | Observation](lambda ended: self.tell(Router.over, "", ended))

    # -- requests -----------------------------------------------------------------------------------------

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest] = ()
    ) -> Passage:
        """Return when the request may begin. left: requests that are over. wanted: by its answers, whose assignments
        come in the same call, for `assign`. Raises LimitReached."""
        asked = self.ask(self._enter_s, Router.enter, replica, entry, left, wanted)
        if self._stand_in is None or entry.any_limit:
            passage, made = await asked
        else:
            passage, made = await self._stand_in.answer(asked, partial(_let_in, wanted))
        self._made.update((w.request, m) for w, m in zip(wanted, made, strict=True) if m is not None)
        return passage

    def left(self, replica: str, requests: Sequence[int]) -> None:
        self.tell(Router.over, replica, requests)

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None:
        self.tell(Router.under_way, replica, entries)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Raises as Routing.assign."""
        if (made := self._made.pop(wanted.request, None)) is not None:
            return made
        asked = self.ask(self._assign_s, Router.assign, wanted)
        return await (asked if self._stand_in is None else self._stand_in.assign(wanted, asked))

    async def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        """Return another assignment for the rest of an answer; None if it had better go on as it does."""
        return await self.ask(self._soon_s, Router.reconsider, wanted, present)

    def report(self, report: Report) -> None:
        """Tell soon what an answer has taught and cost."""
        self._ended.add(report)

    def observe(self, seen: Observation) -> None:
        """Have a request counted soon."""
        self._ended.add(seen)

    def close(self) -> None:
        """Send pending reports, and watch the router no more."""
        self.flush()
        if self._stand_in is not None:
            self._stand_in.close()

    def flush(self) -> None:
        """Send pending reports now."""
        self._ended.flush()

    def lost(self, device: str, address: str) -> None:
        self.tell(Router.lost, device, address)

    async def ask_mode(self, model: str, mode: str, question: object) -> Any:
        """Put a request's question to its mode's part at the router."""
        return await self.ask(None, Router.ask_mode, model, mode, question)

    def tell_mode(self, model: str, mode: str, said: object) -> None:
        """Tell a mode's part at the router what a request has to say."""
        self.tell(Router.tell_mode, model, mode, said)

    # -- what is up ---------------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        return await self.ask(self._soon_s, Router.snapshot)

    async def replaces(self, endpoint: EndpointInfo) -> bool:
        """Return whether another replica can go on in this one's place."""
        return (await self.ask(self._soon_s, Router.snapshot, devices=False)).replaces(endpoint)

    async def known(self, version: int) -> None:
        """Return when the router knows that version of the snapshot."""
        await self.ask(self._soon_s, Router.snapshot, version, devices=False)

    async def middles(self, model: str) -> tuple[SplitInfo, ...]:
        """Return the kinds of a model's middles that are up."""
        return await self.ask(self._soon_s, Router.middles, model)

    async def exposition(self, openmetrics: bool) -> tuple[bytes, str]:
        return await self.ask(self._soon_s, Router.exposition, openmetrics)

    async def spent(self, account: str) -> dict[str, tuple[float, float]]:
        """Return what modes limit for an account, as in Statement."""
        return await self.ask(self._soon_s, Router.spent, account)


async def _let_in(wanted: Sequence[RoutingRequest]) -> tuple[Passage, list[Assignment | None]]:
    return Passage(), [None] * len(wanted)
