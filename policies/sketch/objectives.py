"""Which of several ways to answer is preferred: objectives in order of importance.

PICE (Zhan et al. 2025), section IV-A1: each objective in turn leaves those that are as good in it as the best that the
objectives before it have left; latency is besides a hard constraint. Here each has a tolerance, without which the first
one decides nearly everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple


class Metric(StrEnum):
    """What can be expected of a way to answer; the fields of an Outlook."""

    ERROR = "error"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    SERVER_COST = "server_cost"
    EDGE_COST = "edge_cost"


class Outlook(NamedTuple):
    """What is expected of a way to answer. Of all of it, less is better.

    error: E[δ], the quality that is lost, as a share of the LLM's.
    throughput: max(f(|r|), Δ(r), c·f(l)/p), seconds of the slowest stage: the lower, the more answers a second.
    latency: seconds until the answer is complete.
    server_cost, edge_cost: tokens generated there.
    """

    error: float
    throughput: float
    latency: float
    server_cost: float
    edge_cost: float

    def of(self, metric: Metric) -> float:
        """The field of that name."""
        value: float = getattr(self, metric)
        return value


class Objective(NamedTuple):
    """A metric that is to be low. tolerance: what does not count, in the metric's unit."""

    metric: Metric
    tolerance: float = 0.0


def ranked(tolerances: Mapping[str, float]) -> tuple[Objective, ...]:
    """Objectives as settings give them: metrics with their tolerances, the most important first."""
    if any(not tolerance >= 0 for tolerance in tolerances.values()):
        raise ValueError(f"tolerances must not be below 0: {dict(tolerances)}")
    return tuple(Objective(Metric(name), tolerance) for name, tolerance in tolerances.items())


def preferred(
    outlooks: Sequence[Outlook], objectives: Sequence[Objective], most_latency_s: float = inf
) -> int | None:
    """The index of the one that is preferred, the first among equals; None where none is in time."""
    left = [i for i, outlook in enumerate(outlooks) if outlook.latency <= most_latency_s]
    for metric, tolerance in objectives:
        enough = min((outlooks[i].of(metric) for i in left), default=inf) + tolerance
        left = [i for i in left if outlooks[i].of(metric) <= enough]
    return left[0] if left else None
