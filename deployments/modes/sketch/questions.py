"""Requests to the router in mode sketch, beside endpoints: a plan, and places for its expansion."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from tandem.deployments.modes.base import Services
from tandem.deployments.modes.speculative.mode import PairBriefing
from tandem.deployments.request.assignment import EndpointInfo

NAME = "sketch"
"""Name of the mode."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """An answer whose length is known.

    request: the job's id.
    expected: tokens of the answer, as the target expects them.
    target_token_s: seconds that the target takes for one now; 0: not known yet.
    speculates: whether it has a drafter.
    min_quality: of an expansion in relation to the target's own answer, 0 to 1.
    devices: that the account may use; None: all.
    """

    request: int
    expected: int
    target_token_s: float = 0.0
    speculates: bool = False
    min_quality: float = 0.0
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """sketch: tokens that it may have; 0: the target answers in full.
    reason: why it does; "" where it does not.
    hopeless: it would even if the answer were as long as could be, and nothing waited.
    model: that is to expand it; "": the idle device's choice.
    share: of the answer that the sketch has; only models that need no more expand it.
    budget_s: f(l) − f(|r|), seconds that the target would need for the rest of the answer; 0: not known.
    within_s: from when they begin until when expansions should be whole.
    bounded: whether an expansion that would take longer than the target is the target's to write.
    full_s: that the target would need for the whole answer.
    candidates: expansions of each sentence that compete.
    load: share of a target's places that other requests have; the less, the more it does for this one.
    """

    sketch: int = 0
    reason: str = ""
    hopeless: bool = False
    model: str = ""
    share: float = 1.0
    budget_s: float = 0.0
    within_s: float = 0.0
    bounded: bool = False
    full_s: float = 0.0
    candidates: int = 1
    load: float = inf


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """Request for a place that computes an expansion.

    id: unique id of the expansion.
    request: the job's id.
    tokens: expected tokens of the expansion.
    dry_s: seconds until the reader has read all that there is.
    wait_s: that it waits for a place, if not the settings' are more.
    lost: keys of the endpoints that have failed it.
    beside: keys of those that compute another candidate.
    model: that is to compute it; None: any.
    share, budget_s: as in SketchPlan.
    target_s: seconds that the target would take in its place; infinite: it may take as long as it does.
    min_quality, devices: as in PlanRequest.
    """

    id: int
    request: int
    tokens: int
    dry_s: float = 0.0
    wait_s: float = 0.0
    lost: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    model: str | None = None
    share: float = 1.0
    budget_s: float = 0.0
    target_s: float = inf
    min_quality: float = 0.0
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an expansion.

    endpoint: a device with one of its models, or a replica of the expander.
    sequences: that it may compute there at once.
    token_s: seconds that each of them takes for a token, as far as is known; 0: not known.
    """

    endpoint: EndpointInfo
    sequences: int
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlaceReport:
    """Report of an expansion that is over, or no longer wanted.

    id: its own.
    tokens: that were computed there.
    longest: of these, those of the sequence that took longest.
    seconds: that it took.
    lost: the endpoint did not come to the end.
    late: the target had to go on for it.
    """

    id: int
    tokens: int = 0
    longest: int = 0
    seconds: float = 0.0
    lost: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class SketchBriefing:
    """Briefing of a request. pair: of the cloud's drafter and the target; None without a drafter."""

    pair: PairBriefing | None = None


@dataclass(frozen=True, slots=True)
class SketchTaught:
    """Lessons of a request.

    rounds: of the cloud's drafter and the target, as SpeculativeRouter.learn takes them.
    sentences: that small models were to write.
    verified, rewritten: as in the mode's figures.
    """

    rounds: list[object]
    sentences: int
    verified: int
    rewritten: int


class Expanders:
    """Asks the router's part of mode sketch, from an executor."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def plan(self, wanted: PlanRequest) -> SketchPlan:
        """Return whether that answer is sketched, and how."""
        plan: SketchPlan = await self._services.ask(NAME, wanted)
        return plan

    async def place(self, wanted: PlaceRequest) -> Place | None:
        """Return a place, once there is one; None if none will come."""
        try:
            place: Place | None = await self._services.ask(NAME, wanted)
        except asyncio.CancelledError:  # of which a remote router does not hear
            self.free(PlaceReport(wanted.id))
            raise
        return place

    def free(self, report: PlaceReport) -> None:
        """Free its place."""
        self._services.tell(NAME, report)
