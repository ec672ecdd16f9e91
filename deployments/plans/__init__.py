"""How a request is answered: one small class per mode, and the table of them."""

from __future__ import annotations

from collections.abc import Callable

from deployments.assignment import Assignment, EndpointInfo
from deployments.job import Job
from deployments.pairs import Pairs
from deployments.plans.base import Piece, Plan
from deployments.plans.cloud import Cloud
from deployments.plans.device import OnDevice
from deployments.plans.race import Race
from deployments.plans.speculative import Speculative
from deployments.racing import Racing
from engine.base import Engine

__all__ = ["Cloud", "OnDevice", "Piece", "Plan", "Race", "Speculative", "plan_for"]

TakeSeat = Callable[[EndpointInfo, bool], Engine]


def plan_for(assignment: Assignment, seat: TakeSeat, pairs: Pairs, racing: Racing, job: Job) -> Plan:
    """The plan of an assignment's mode. seat(endpoint, expendable): an engine for it; expendable where the
    request goes on without it. pairs, racing: what draft–target pairs and races have taught."""
    match assignment.mode:
        case "cloud":
            return Cloud(seat(assignment.target, False))
        case "device":
            return OnDevice(seat(assignment.target, False))
        case "speculative" if assignment.drafter is not None:
            return Speculative(
                seat(assignment.target, False),
                seat(assignment.drafter, True),
                pairs.of(assignment),
                distributed=assignment.device is not None,
                fused=None if assignment.fused is None else seat(assignment.fused, True),
                batch_limit=assignment.batch_limit,
            )
        case "race" if assignment.rival is not None:
            return Race(
                seat(assignment.target, False),
                seat(assignment.rival, True),
                racing.contest(job, assignment.target, assignment.rival),
            )
    raise ValueError(f"no plan for {assignment}")
