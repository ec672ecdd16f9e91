"""Windows by expected gain: as many drafts as give the most tokens a second, none where drafting does not pay.

A round of γ drafts takes the link's round trip, γ times the drafter's time for a token, and the target's step with
γ + 1 positions; it gives 1 + α + … + α^γ tokens (Leviathan et al. 2023), and what the target looks up. The target
alone gives a token a step, and what it looks up. All times are measured: on a GPU, further positions of a step cost
next to nothing, on few cores each costs much of one. A new pair's drafts are taken to cost nothing, so that it
drafts unless its link alone takes too long.

A pair that rests is tried again when that is cheap beside the time since: at an answer's beginning, where its drafter
has little to read. A trial has two rounds, as the time of the first one has the reading in it.
"""

from __future__ import annotations

from math import sqrt

from tandem.policies.speculation.arithmetic import MAX_WINDOW, expected_tokens
from tandem.policies.speculation.rounds import BURST
from tandem.policies.speculation.window import WindowState, window

PROBE = 2
"""Window with which a pair that rests is tried again."""
FIRST_ALPHA = 0.7
WEIGHT = 8.0
"""Judged tokens of a pair that count as much as what is known of the target's other pairs."""
OPTIMISM = 0.2
"""Standard errors by which a pair's acceptance is taken to be better than it was seen, so that a few unlucky drafts do
not end the drafting; chosen by half of the recordings of `benchmarks real_gpu`, which judges by the others."""


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
        self._tried = False  # whether the last round was the first one of a trial

    @property
    def memory(self) -> tuple[float, ...]:
        return float(self._rested), float(self._tried)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._rested, self._tried = int(memory[0]), bool(memory[1])

    def choose(self, state: WindowState) -> int:
        if not state.alone_s:  # first of all, the time that drafting has to beat
            return 0
        alone_s = state.alone_s
        if state.own > 1 and state.verify_s:  # what it finds in rounds, it would find alone in less time
            alone_s = min(alone_s, state.verify_s / state.own)
        prior = state.prior if state.prior or state.judged else FIRST_ALPHA
        alpha = (state.alpha * state.judged + WEIGHT * prior) / (state.judged + WEIGHT)
        alpha = min(1.0, alpha + OPTIMISM * sqrt(alpha * (1 - alpha) / (state.judged + WEIGHT)))

        def tokens(gamma: int) -> float:
            return expected_tokens(alpha, gamma) + state.own - 1

        def gain_s(gamma: int) -> float:
            """Return the seconds that a round saves; negative if it loses some."""
            return tokens(gamma) * alone_s - _round_s(state, alone_s, gamma)

        def tokens_per_s(gamma: int) -> float:
            return tokens(gamma) / _round_s(state, alone_s, gamma)

        untimed = state.read_s > 0 and not state.draft_s  # the drafter was only seen catching up
        most = self.start if untimed or state.judged < self.start else self.most
        best = max(range(2, most + 1), key=tokens_per_s)
        # Where the target's stream is left, the step that runs is lost: a long one where lookups are checked.
        left_s = state.verify_s if self._rested and state.own > 1 else 0.0
        if gain_s(best) * BURST / tokens(best) <= left_s:
            spent_s = self._rested * BURST * alone_s
            trial_s = left_s + state.behind * state.read_s - 2 * gain_s(PROBE)
            try_ = self._tried or self.explore * spent_s > trial_s
            best = PROBE if try_ else 0
        self._tried = best > 0 and self._rested > 0
        self._rested = 0 if best else self._rested + 1
        return best


def _round_s(state: WindowState, alone_s: float, gamma: int) -> float:
    """Return the expected seconds of a round of γ drafts. alone_s: of a token of the target alone."""
    position_s = max(0.0, state.verify_s - alone_s) / state.drafted if state.drafted else 0.0
    return state.rtt_s + gamma * state.draft_s + alone_s + gamma * position_s
