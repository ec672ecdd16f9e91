"""Several models behind one router: each has pools and a routing of its own, and all have the same devices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, or_

from tandem.deployments.learning.report import Report
from tandem.deployments.request.assignment import Assignment, NoEndpoint, Present, RoutingRequest
from tandem.deployments.request.pools import pool_name
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.policies.cost import PerToken


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model, as a router knows it.

    name: by which clients ask for it.
    suffix: of its pools' names (`pool_name`).
    batch_limit: sessions that a verifier's step takes.
    places: sessions that a verifier holds at once.
    price: its own, dollars per token; None: the application's.
    adapters: names of its adapters for clients.
    """

    name: str
    suffix: str
    batch_limit: int
    places: int
    price: PerToken | None = None
    adapters: tuple[str, ...] = ()


class ModelRoutings:
    """Routings by the model's name.

    A request is assigned by its model's routing, which knows of no other pools. A device that gets a request of one
    model is as busy for all of them.
    """

    def __init__(self, models: Sequence[RoutedModel], make: Callable[[RoutedModel], Routing]) -> None:
        self._models = tuple(models)
        self._routings = {model.name: make(model) for model in models}

    def __iter__(self) -> Iterator[Routing]:
        return iter(self._routings.values())

    def of(self, model: str) -> Routing:
        """Return the routing of that model, of the first one for "". Raises NoEndpoint."""
        routing = self._routings.get(model or self._models[0].name)
        if routing is None:  # the replica of the API is newer than this router
            there = ", ".join(self._routings)
            raise NoEndpoint(f"this router does not know the model {model!r}, but {there}")
        return routing

    def see(self, snapshot: Snapshot) -> None:
        """Take over what is up, or what has changed."""
        now_s = asyncio.get_running_loop().time()
        for model in self._models:
            self._routings[model.name].see(snapshot.of(model.name, model.suffix), now_s)

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Mode and endpoints for a request, as Routing.assign."""
        routing = self.of(wanted.model)
        made = await routing.assign(wanted)
        self._note(routing, made)
        return made

    def assign_at_once(self, wanted: RoutingRequest) -> Assignment | None:
        """Return an assignment if one can be made now, as Routing.assign_at_once."""
        routing = self._routings.get(wanted.model or self._models[0].name)
        made = None if routing is None else routing.assign_at_once(wanted)
        if routing is not None and made is not None:
            self._note(routing, made)
        return made

    def reconsider(self, wanted: RoutingRequest, present: Present) -> Assignment | None:
        """Return another assignment for the rest of an answer, as Routing.reconsider."""
        routing = self.of(wanted.model)
        made = routing.reconsider(wanted, present)
        if made is not None:
            self._note(routing, made)
        return made

    def _note(self, routing: Routing, made: Assignment) -> None:
        """Have the other models know that a device got a request."""
        now_s = asyncio.get_running_loop().time()
        for other in self:
            if other is not routing:
                other.assigner.assigned_elsewhere(made, now_s)

    def learn(self, report: Report) -> None:
        """Take in what an answer has taught of its model."""
        if report.model in self._routings or not report.model:
            self.of(report.model).learn(report)

    async def snapshot(self, version: int = 0, devices: bool = True) -> Snapshot:
        """Return what is up for all models, as Routing.snapshot."""
        parts = [await routing.snapshot(version, devices) for routing in self]
        named = zip(self._models, parts, strict=True)
        pools = {pool_name(pool, m.suffix): up for m, part in named for pool, up in part.pools.items()}
        known = reduce(or_, (dict(part.devices) for part in parts))
        return Snapshot(parts[0].version, pools, known, awaited=parts[0].awaited)

    def spent(self, account: str) -> dict[str, tuple[float, float]]:
        """Return what modes limit for that account, over all models."""
        spent: dict[str, tuple[float, float]] = {}
        for routing in self:
            for what, (counted, used) in routing.spent(account).items():
                before = spent.get(what, (0.0, 0.0))
                spent[what] = before[0] + counted, before[1] + used
        return spent

    def take_waiting(self) -> Counter[str]:
        """Return requests without a replica by pool, as Routing.take_waiting."""
        parts = [
            Counter({pool_name(pool, m.suffix): n for pool, n in self.of(m.name).take_waiting().items()})
            for m in self._models
        ]
        return reduce(add, parts)
