"""The draft–target pairs of an application: what each has learnt outlives the request it learnt it from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from deployments.assignment import Assignment
from policies.pair import Pair, Target
from policies.window import WindowPolicy

KEPT = 4096  # pairs that were not used for longest are forgotten first


class Pairs:
    """window: makes a window policy for a new pair."""

    def __init__(self, window: Callable[[], WindowPolicy]) -> None:
        self._window = window
        self._pairs: OrderedDict[tuple[str, str], Pair] = OrderedDict()
        self._targets: OrderedDict[str, Target] = OrderedDict()  # by target

    def of(self, assignment: Assignment) -> Pair:
        """The pair of an assignment's drafter and target, which has been told the assignment's queue."""
        assert assignment.drafter is not None
        key = (assignment.drafter.key, assignment.target.key)
        pair = self._pairs.get(key)
        if pair is None:
            target = self._targets.setdefault(assignment.target.key, Target())
            pair = Pair(self._window(), rtt_s=assignment.drafter.rtt_s, target=target)
            self._pairs[key] = pair
            for kept in (self._pairs, self._targets):
                if len(kept) > KEPT:
                    kept.popitem(last=False)
        self._pairs.move_to_end(key)
        pair.queue = assignment.queue
        return pair
