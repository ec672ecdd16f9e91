"""The window policy "awc": exploration, network, stabiliser."""

from __future__ import annotations

from policies.awc.exploration import Exploration
from policies.awc.network import load
from policies.awc.stabiliser import Stabiliser
from policies.window import WindowState, window


@window.register("awc")
class AdaptiveWindow:
    """DSD's AWC. start: γ until something has been seen; ema, patience: see Stabiliser; weights: a file, null
    for the network that comes with Tandem. margin: how much cheaper (natural logarithm) fused must be thought
    before it is chosen: with the device a pair learns, without it does not. inertia: how much more it takes to leave
    what all the target's other pairs do, and less to join them. What is cheaper for one may be dearer for all, as
    fused rounds hold up whoever drafts at a device; and as each reckons with what the others' rounds take, a few that
    change can draw all along."""

    def __init__(
        self,
        start: int = 4,
        ema: float = 0.4,
        patience: int = 2,
        margin: float = 0.05,
        inertia: float = 0.15,
        weights: str | None = None,
    ) -> None:
        self._margin, self._inertia = margin, inertia
        self._exploration = Exploration(start)
        self._stabiliser = Stabiliser(start, ema, patience)
        self._network = load(weights)

    def choose(self, state: WindowState) -> int:
        first = self._exploration.first(state)
        if first is not None:
            return first
        costs = self._network.costs(state)
        distributed = int(costs[1:].argmin()) + 2
        gap = float(costs[distributed - 1] - costs[0])  # above 0: fused is thought better
        margin = self._margin + self._inertia * (1.0 - 2.0 * state.fused_share)
        chosen = self._stabiliser.settle(1 if gap > margin else distributed)
        other, loss = (distributed, gap) if chosen == 1 else (1, -gap)
        return self._exploration.again(state, chosen, other, loss)
