"""How a request is answered: one small class per mode, and the table of them."""

from __future__ import annotations

from collections.abc import Callable

from deployments.assignment import Assignment, EndpointInfo
from deployments.pairs import Pairs
from deployments.plans.base import Piece, Plan
from deployments.plans.cloud import Cloud
from deployments.plans.device import OnDevice
from deployments.plans.speculative import Speculative
from engine.base import Engine

__all__ = ["Cloud", "OnDevice", "Piece", "Plan", "Speculative", "plan_for"]

TakeSeat = Callable[[EndpointInfo, bool], Engine]


def plan_for(assignment: Assignment, seat: TakeSeat, pairs: Pairs) -> Plan:
    """The plan of an assignment's mode. seat(endpoint, expendable): an engine for it; expendable where the
    request goes on without it. pairs: what draft–target pairs have learnt."""
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
    raise ValueError(f"no plan for {assignment}")
