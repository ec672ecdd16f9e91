"""Objectives, in order of importance, by which one of several ways to answer is preferred.

PICE (Zhan et al. 2025), section IV-A1: each objective in turn keeps the ways that are as good in it as the best that
earlier objectives have left; latency is also a hard constraint. Here each has a tolerance; without one the first
objective decides nearly everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple


class Metric(StrEnum):
    """Metric of a way to answer; the fields of an Outlook."""

    ERROR = "error"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    SERVER_COST = "server_cost"
    EDGE_COST = "edge_cost"


class Outlook(NamedTuple):
    """Expected metrics of a way to answer; less is better for each.

    error: E[δ], lost quality as a share of the LLM's.
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
        """Return the field of this metric."""
        value: float = getattr(self, metric)
        return value


class Objective(NamedTuple):
    """A metric to minimise. tolerance: differences that do not count, in the metric's unit."""

    metric: Metric
    tolerance: float = 0.0


def ranked(tolerances: Mapping[str, float]) -> tuple[Objective, ...]:
    """Return the objectives of a settings file: metrics with their tolerances, the most important first."""
    if any(not tolerance >= 0 for tolerance in tolerances.values()):
        raise ValueError(f"tolerances must not be below 0: {dict(tolerances)}")
    return tuple(Objective(Metric(name), tolerance) for name, tolerance in tolerances.items())


def preferred(
    outlooks: Sequence[Outlook], objectives: Sequence[Objective], most_latency_s: float = inf
) -> int | None:
    """Return the index of the preferred outlook, the first among equals; None if none is in time."""
    left = [i for i, outlook in enumerate(outlooks) if outlook.latency <= most_latency_s]
    for metric, tolerance in objectives:
        if len(left) < 2:
            break
        values = [outlooks[i].of(metric) for i in left]
        enough = min(values) + tolerance
        left = [i for i, value in zip(left, values, strict=True) if value <= enough]
    return left[0] if left else None
