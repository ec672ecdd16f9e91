"""The window policy "awc-paper": exploration, network, stabiliser."""

from __future__ import annotations

from math import log

import numpy as np

from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.awc.exploration import Exploration
from tandem.policies.speculation.awc.network import load
from tandem.policies.speculation.awc.stabiliser import Stabiliser
from tandem.policies.speculation.window import WindowState, window


@window.register("awc-paper")
class PaperWindow:
    """DSD's AWC by a learned network, as in the paper. Costs are compared as natural logarithms of seconds per token.

    start: γ until there are samples.
    ema, patience: see Stabiliser.
    margin: by how much fused must seem cheaper to be chosen: a pair learns with the device, not without it.
    inertia: additional margin for leaving the mode of the target's other pairs, and discount for joining them. A
        cheaper mode for one may be dearer for all, as fused rounds delay all that draft at a device; and as each
        assumes the others' present rounds, a few that change can draw all along.
    accord: penalty for a window e times as wide as the mean of the others, or as narrow: a step takes as long as its
        widest window.
    weights: a file; null for the network that comes with Tandem.
    """

    def __init__(
        self,
        start: int = 4,
        ema: float = 0.4,
        patience: int = 2,
        margin: float = 0.05,
        inertia: float = 0.15,
        accord: float = 0.2,
        weights: str | None = None,
    ) -> None:
        self._margin, self._inertia, self._accord = margin, inertia, accord
        self._exploration = Exploration(start)
        self._stabiliser = Stabiliser(start, ema, patience)
        self._network = load(weights)

    @property
    def memory(self) -> tuple[float, ...]:
        return (*self._exploration.memory, *self._stabiliser.memory)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        left, budget_s, explored_fused, smoothed, fused, window = memory
        self._exploration.memory = left, budget_s, explored_fused
        self._stabiliser.memory = smoothed, fused, window

    def choose(self, state: WindowState) -> int:
        first = self._exploration.first(state)
        if first is not None:
            return first
        costs = self._network.costs(state)
        distributed = int(self._with_the_others(costs[1:], state.mean_window).argmin()) + 2
        gap = float(costs[distributed - 1] - costs[0])  # above 0: fused seems better
        margin = self._margin + self._inertia * (1.0 - 2.0 * state.fused_share)
        chosen = self._stabiliser.stabilise(distributed, fused=gap > margin)
        other, loss = (distributed, gap) if chosen == 1 else (1, -gap)
        return self._exploration.again(state, chosen, other, loss)

    def _with_the_others(self, costs: np.ndarray, mean_window: float) -> np.ndarray:
        """Return [11]: costs of the windows from 2 on, plus the penalty for differing from the other pairs."""
        if mean_window <= 0:
            return costs
        apart: np.ndarray = _LOGARITHMS - log(mean_window)
        return costs + self._accord * apart * apart


_LOGARITHMS = np.log(np.arange(2, MAX_WINDOW + 1))
