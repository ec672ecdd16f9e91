"""The draft–target pairs that are known: what each has learnt outlives the request it learnt it from."""

from __future__ import annotations

from collections.abc import Callable

from tandem.deployments.lru import LRUTable
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.speculation.history import PairHistory, TargetHistory
from tandem.policies.speculation.window import WindowPolicy

KEPT = 4096
"""Pairs that were not used for longest are forgotten first."""


class Pairs:
    """window: makes a window policy for a new pair."""

    def __init__(self, window: Callable[[], WindowPolicy]) -> None:
        self._window = window
        self._pairs: LRUTable[tuple[str, str], PairHistory] = LRUTable(KEPT)
        self._targets: LRUTable[str, TargetHistory] = LRUTable(KEPT)

    def of(self, drafter: EndpointInfo, target: EndpointInfo) -> PairHistory:
        """Return the history of that pair. A device keeps its pairs when its address changes."""
        return self.named(pair_name(drafter, target), drafter.rtt_s + target.rtt_s)

    def named(self, name: tuple[str, str], rtt_s: float = 0.0) -> PairHistory:
        """Return the history of the pair of that name (see pair_name). rtt_s: of its links, for a new pair."""
        target = self._targets.of(name[1], TargetHistory)
        return self._pairs.of(name, lambda: PairHistory(self._window(), rtt_s, target=target))


def pair_name(drafter: EndpointInfo, target: EndpointInfo) -> tuple[str, str]:
    """(drafter, target)."""
    return drafter.name if drafter.device else drafter.key, target.key
