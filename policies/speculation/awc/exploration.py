"""Exploration: rounds in modes that the network does not prefer, as it can predict nothing for modes never tried.

This goes beyond DSD's paper, which leaves it open. A few rounds with the device show its speed and acceptance, one
round without it shows what the cloud alone can do. Later, the worse mode is tried again now and then; how often
follows from its expected cost, so that a close decision is checked often and a clear one hardly ever.
"""

from __future__ import annotations

from math import exp

from tandem.policies.speculation.window import WindowState

LEAST_LOSS = 0.25  # of a round, even if the modes seem equal: the prediction may be wrong
FUSED_SHARE = 0.2  # share of `share`, for trying fused rounds


class Exploration:
    """Decides when a pair tries the mode that seems worse.

    start: γ of the first rounds.
    rounds: number of first rounds.
    share: share of a pair's time that may be lost to trying the other mode.
    """

    def __init__(self, start: int = 4, rounds: int = 3, share: float = 0.003) -> None:
        if not 2 <= start <= 12 or rounds < 1 or not 0 <= share <= 1:
            raise ValueError(
                f"needs 2 ≤ start ≤ 12, rounds ≥ 1 and 0 ≤ share ≤ 1, not {start}, {rounds}, {share}"
            )
        self._start, self._left, self._share = start, rounds, share
        self._budget_s = 0.0
        self._fused = False

    @property
    def memory(self) -> tuple[float, float, float]:
        """First rounds to come, seconds that may be lost, and whether the last window was fused."""
        return self._left, self._budget_s, float(self._fused)

    @memory.setter
    def memory(self, memory: tuple[float, float, float]) -> None:
        left, self._budget_s, fused = memory
        self._left, self._fused = int(left), bool(fused)

    def first(self, state: WindowState) -> int | None:
        """Return γ of the first rounds; None when they are over."""
        if self._left > 0:
            self._left -= 1
            return self._start
        if state.verify_s <= 0:  # these rounds were too short to draft anything
            return self._start
        return 1 if state.fused_s <= 0 else None

    def again(self, state: WindowState, chosen: int, other: int, gap: float) -> int:
        """Return `chosen`, or now and then `other`.

        chosen: window with the lowest predicted cost.
        other: best window of the other mode.
        gap: natural logarithm of its cost per token relative to the chosen one's.
        """
        device_s = state.draft_s * max(chosen, other) + state.rtt_s + state.verify_s
        chosen_s, other_s = (state.fused_s, device_s) if chosen == 1 else (device_s, state.fused_s)
        if self._fused != (chosen == 1):  # the other mode was the chosen one until now
            self._fused, self._budget_s = chosen == 1, 0.0
        # a fused round's drafting may delay all other sessions' step, so it is tried more rarely
        self._budget_s += (self._share if chosen == 1 else self._share * FUSED_SHARE) * chosen_s
        lost_s = other_s * max(LEAST_LOSS, 1.0 - exp(-gap))
        if self._budget_s <= lost_s:
            return chosen
        self._budget_s -= lost_s
        return other
