"""The draft–target pairs that are known: what each has learnt outlives the request it learnt it from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from deployments.request.assignment import EndpointInfo
from policies.pair import PairHistory, TargetHistory
from policies.window import WindowPolicy

KEPT = 4096
"""Pairs that were not used for longest are forgotten first."""


class Pairs:
    """window: makes a window policy for a new pair."""

    def __init__(self, window: Callable[[], WindowPolicy]) -> None:
        self._window = window
        self._pairs: OrderedDict[tuple[str, str], PairHistory] = OrderedDict()
        self._targets: OrderedDict[str, TargetHistory] = OrderedDict()

    def of(self, drafter: EndpointInfo, target: EndpointInfo) -> PairHistory:
        """The pair of the two. A device keeps its pairs wherever it is reached."""
        return self.named(pair_name(drafter, target), drafter.rtt_s + target.rtt_s)

    def named(self, name: tuple[str, str], rtt_s: float = 0.0) -> PairHistory:
        """The pair of that name (see pair_name). rtt_s: of the links between its endpoints, where it is new."""
        pair = self._pairs.get(name)
        if pair is None:
            target = self._targets.setdefault(name[1], TargetHistory())
            pair = self._pairs[name] = PairHistory(self._window(), rtt_s, target=target)
            if len(self._pairs) > KEPT:
                self._pairs.popitem(last=False)
            if len(self._targets) > KEPT:
                self._targets.popitem(last=False)
        self._pairs.move_to_end(name)
        self._targets.move_to_end(name[1])
        return pair


def pair_name(drafter: EndpointInfo, target: EndpointInfo) -> tuple[str, str]:
    """(drafter, target)."""
    return drafter.name if drafter.device else drafter.key, target.key
