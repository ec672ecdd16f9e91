"""Windows by expected gain: as many drafts as give the most tokens a second, none where drafting does not pay.

A round of γ drafts takes the link's round trip, γ times the drafter's time for a token, and the target's step with
γ + 1 positions; it gives 1 + α + … + α^γ tokens (Leviathan et al. 2023). The target alone gives a token a step. All
times are measured: on a GPU, further positions of a step cost next to nothing, on few cores each costs much of one. A
new pair's drafts are taken to cost nothing, so that it drafts unless its link alone takes too long.
"""

from __future__ import annotations

from tandem.policies.speculation.arithmetic import MAX_WINDOW, expected_tokens
from tandem.policies.speculation.rounds import BURST
from tandem.policies.speculation.window import WindowState, window

PROBE = 2
"""Window with which a pair that rests is tried again."""
FIRST_ALPHA = 0.7
WEIGHT = 8.0
"""Judged tokens of a pair that count as much as what is known of the target's other pairs."""


@window.register("gain")
class GainWindow:
    """The window with the most tokens a second.

    most: greatest window.
    start: greatest window of a pair's first rounds.
    explore: share of the time that may be lost to trying again whether drafting pays.
    """

    def __init__(self, most: int = MAX_WINDOW, start: int = 4, explore: float = 0.01) -> None:
        if not 2 <= start <= most or not 0 <= explore < 1:
            raise ValueError(f"needs 2 ≤ start ≤ most and 0 ≤ explore < 1, not {start}, {most}, {explore}")
        self.most, self.start, self.explore = most, start, explore
        self._rested = 0  # bursts since the pair last drafted

    @property
    def memory(self) -> tuple[float, ...]:
        return (float(self._rested),)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._rested = int(memory[0])

    def choose(self, state: WindowState) -> int:
        if not state.alone_s:  # first of all, the time that drafting has to beat
            return 0
        prior = state.prior if state.prior or state.judged else FIRST_ALPHA
        alpha = (state.alpha * state.judged + WEIGHT * prior) / (state.judged + WEIGHT)

        def gain_s(gamma: int) -> float:
            """Return the seconds that a round saves; negative if it loses some."""
            return expected_tokens(alpha, gamma) * state.alone_s - _round_s(state, gamma)

        def tokens_per_s(gamma: int) -> float:
            return expected_tokens(alpha, gamma) / _round_s(state, gamma)

        most = self.start if state.judged < self.start else self.most
        best = max(range(2, most + 1), key=tokens_per_s)
        if gain_s(best) <= 0:
            spent_s = self._rested * BURST * state.alone_s
            best = PROBE if self.explore * spent_s > -gain_s(PROBE) else 0
        self._rested = 0 if best else self._rested + 1
        return best


def _round_s(state: WindowState, gamma: int) -> float:
    """Return the expected seconds of a round of γ drafts."""
    position_s = max(0.0, state.verify_s - state.alone_s) / state.drafted if state.drafted else 0.0
    return state.rtt_s + gamma * state.draft_s + state.alone_s + gamma * position_s
