"""The draft–target pairs that are known: what each has learnt outlives the request it learnt it from."""

from __future__ import annotations

from collections.abc import Callable

from tandem.deployments.lru import LRUTable
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.speculation.gain import GainWindow
from tandem.policies.speculation.history import PairHistory, TargetHistory
from tandem.policies.speculation.window import WindowPolicy, WindowState

KEPT = 4096
"""Pairs that were not used for longest are forgotten first."""

UNKNOWN = TargetHistory()
"""History of a target before the first round of any of its pairs."""


class Pairs:
    """Histories of pairs, each with a window policy of its own.

    window: makes the policy of a new pair of one vocabulary. Another drafter's text fits the target's tokens less often
        than any fixed window supposes: such pairs have windows by expected gain, so that a useless one rests.
    """

    def __init__(self, window: Callable[[], WindowPolicy]) -> None:
        self._window = window
        self._pairs: LRUTable[tuple[str, str], PairHistory] = LRUTable(KEPT)
        self._targets: LRUTable[str, TargetHistory] = LRUTable(KEPT)

    def of(self, drafter: EndpointInfo, target: EndpointInfo) -> PairHistory:
        """Return the history of that pair. A device keeps its pairs when its address changes."""
        window = self._window if drafter.vocabulary == target.vocabulary else GainWindow
        return self._of(pair_name(drafter, target), drafter.rtt_s + target.rtt_s, window)

    def named(self, name: tuple[str, str]) -> PairHistory:
        """Return the history of the pair of that name (see pair_name)."""
        return self._of(name, 0.0, self._window)

    def state(self, drafter: EndpointInfo, target: EndpointInfo) -> WindowState:
        """Return what is known of a pair, which may be new."""
        name = pair_name(drafter, target)
        if (known := self._pairs.get(name)) is not None and known.seen:
            return known.state()
        return (self._targets.get(name[1]) or UNKNOWN).new_pair(drafter.rtt_s + target.rtt_s)

    def _of(self, name: tuple[str, str], rtt_s: float, window: Callable[[], WindowPolicy]) -> PairHistory:
        target = self._targets.of(name[1], TargetHistory)
        return self._pairs.of(name, lambda: PairHistory(window(), rtt_s, target=target))


def pair_name(drafter: EndpointInfo, target: EndpointInfo) -> tuple[str, str]:
    """Return the name of a pair: (drafter, target)."""
    return drafter.name if drafter.device else drafter.key, target.key
