"""Model selection: which of its models a device expands with.

PICE (Zhan et al. 2025), algorithm 2: a smaller one if the answer would come later than from the LLM, a larger one if
that would still be in time. The paper switches as soon as a job calls for it. But loading a model takes time, in which
a device expands nothing; so here the seconds by which jobs are late, or would have to spare with a larger model, must
add up to the loading time (two CUSUM tests: evidence against a switch is subtracted). If loading takes no time, this
is the paper's algorithm.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ModelSelection:
    """Model selection of one device.

    load_s: seconds to load each of its models, the smallest model first; may be changed.
    current: index of the loaded model.
    """

    __slots__ = ("_late_s", "_spare_s", "current", "load_s")

    def __init__(self, load_s: Sequence[float], current: int = 0) -> None:
        if not 0 <= current < len(load_s):
            raise ValueError(f"there is no model {current} among {len(load_s)}")
        self.load_s, self.current = tuple(load_s), current
        self._late_s = self._spare_s = 0.0

    def choose(
        self, remaining_s: Sequence[float], budget_s: float, full: bool, able: Collection[int] | None = None
    ) -> int:
        """Return the index of the model for the next job, which becomes the current one.

        remaining_s: τ, seconds that the job still takes with each model.
        budget_s: f(l) − f(|r|), seconds that it may take.
        full: whether the job queue is full.
        able: models that may do the job, at least one; None for all. If the current one may not, another is loaded
            whatever that takes: the largest that is in time, else the smallest.

        The jobs between two switches take at least as long as the later switch, with the model that is loaded
        meanwhile: a device that holds one model at a time does not load for longer than it works.
        """
        able = range(len(remaining_s)) if able is None else sorted(able)
        if self.current not in able:
            self.switch(next((m for m in reversed(able) if remaining_s[m] <= budget_s), able[0]))
            return self.current
        tau_s = remaining_s[self.current]
        larger = [m for m in able if m > self.current]
        smaller = [m for m in reversed(able) if m < self.current]
        if tau_s > budget_s:
            self._late_s += min(tau_s - budget_s, tau_s)
            self._spare_s = max(0.0, self._spare_s - (tau_s - budget_s))
            target = next((m for m in smaller if remaining_s[m] <= budget_s), able[0])
            if smaller and self._late_s >= self.load_s[target]:
                self.switch(target)
            return self.current
        self._late_s = max(0.0, self._late_s - (budget_s - tau_s))
        if full:
            self._spare_s = 0.0
        elif larger:
            target = next((m for m in larger if remaining_s[m] < budget_s), larger[0])
            spare_s = budget_s - remaining_s[target]
            self._spare_s = max(0.0, self._spare_s + min(spare_s, tau_s))
            if spare_s > 0 and self._spare_s >= self.load_s[target]:
                self.switch(target)
        return self.current

    def switch(self, model: int) -> None:
        """Record that a model is now loaded, by any cause."""
        self.current = model
        self._late_s = self._spare_s = 0.0
