"""Loss of an answer: what it has really cost in an objective, to compare modes by."""

from __future__ import annotations

from tandem.deployments.request.tokenlog import Origin
from tandem.policies.reader.quality import stall_s
from tandem.policies.routing.objectives import Objective
from tandem.simulator.results.answer import SimulatedAnswer

FAILED_S = 60.0
"""Seconds of waiting that a failed answer counts as."""


def loss_usd(answer: SimulatedAnswer, objective: Objective) -> float:
    """Return what an answer has cost: dollars, the worth of the waits, and of the quality that small models lack.

    A small model's tokens lack the share of the answer's tokens that the target would not have said.
    """
    stats, values = answer.stats, objective
    if stats is None or not answer.finished or not answer.tokens:
        return values.second_usd * FAILED_S + values.quality_usd
    accepted = answer.request.acceptance or b""
    lost = 1.0 - sum(accepted) / len(accepted) if accepted else 0.0
    small = stats.by_origin.get(Origin.DEVICE, 0) + stats.by_origin.get(Origin.EXPANSION, 0)
    share = small / answer.tokens
    waited_s = stall_s(answer.times_s or (), answer.rate) if answer.rate else answer.last_s - answer.first_s
    return stats.usd + values.second_usd * (answer.ttft_s + waited_s) + values.quality_usd * lost * share
