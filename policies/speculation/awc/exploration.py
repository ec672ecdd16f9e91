"""What a pair tries out besides what its network predicts: nothing can be predicted of what was never seen.

This goes beyond DSD's paper, which leaves it open. A few rounds with the device show its speed and acceptance, one
round without it shows what the cloud alone can do. Later, the mode that is thought worse is tried again now and then;
how often follows from what it is thought to cost, so that a close decision is checked often and a clear one hardly
ever.
"""

from __future__ import annotations

from math import exp

from tandem.policies.speculation.window import WindowState

LEAST_LOSS = 0.25  # of a round, however alike the modes are thought: the thought may be wrong
FUSED_SHARE = 0.2  # of `share`, for trying fused rounds


class Exploration:
    """Decides when a pair tries out what is not thought best.

    start: γ of the first rounds.
    rounds: how many those are.
    share: how much of a pair's time may be lost to trying the other mode.
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
        """γ of the first rounds; None when they are over."""
        if self._left > 0:
            self._left -= 1
            return self._start
        if state.verify_s <= 0:  # the rounds asked for were too short to draft anything
            return self._start
        return 1 if state.fused_s <= 0 else None

    def again(self, state: WindowState, chosen: int, other: int, gap: float) -> int:
        """`chosen`, or now and then `other`.

        chosen: the window that is thought best.
        other: a window of the other mode.
        gap: how much dearer it is thought: its time per token is e^gap times that of the chosen one.
        """
        device_s = state.draft_s * max(chosen, other) + state.rtt_s + state.verify_s
        chosen_s, other_s = (state.fused_s, device_s) if chosen == 1 else (device_s, state.fused_s)
        if self._fused != (chosen == 1):  # the other mode was the chosen one until now
            self._fused, self._budget_s = chosen == 1, 0.0
        # a fused round may hold up everybody else's step by its drafting, so it is tried more rarely
        self._budget_s += (self._share if chosen == 1 else self._share * FUSED_SHARE) * chosen_s
        lost_s = other_s * max(LEAST_LOSS, 1.0 - exp(-gap))
        if self._budget_s <= lost_s:
            return chosen
        self._budget_s -= lost_s
        return other
