"""AWC: adaptive window control by a closed form of measured times.

The ways of a round, in seconds a token (Leviathan et al. 2023; DSD, section 2, with the link's round trip):

    alone, fused:  as measured; fused rounds are those with a drafter of the cloud's own
    γ drafts:      (round trip + γ · draft + verification of γ) / (1 + α + … + α^γ)

All of it is measured; α, and what a new pair cannot know yet, over all pairs of the target: α's average counts for
more, the less pairs and answers differ (`spread`). A verification grows with γ by its share of what it takes beyond a
token of the target alone, until rounds of different windows show by how much: next to nothing on a GPU, much on few
cores; a target that knows what a position adds to its step says it. Drafting grows with γ as such rounds show, at first
in proportion.

A target that others keep busy makes one step after the other, and a round waits for the next one: what a pair drafts
meanwhile costs nothing, and one draft more may cost a whole step. So the wait is part of a window's cost as far as
verifications are seen to take longer than a step.

What a way takes depends on what the others do: where all crowd the target's steps everything is slow, and a way that
one pair tries shows little of what it gives if all take it. So at a new target every pair tries the ways in the same
order (its drafts, fused rounds, the target alone); to differ from the others takes a larger gain, to join them a
smaller one; and what is not chosen is tried again when that costs little beside the time since. And where the target
says what a position adds to its step, a way also costs what its positions delay the others who are at the target: else
each takes a wide window, which costs itself next to nothing, and all wait for all.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import NamedTuple

from tandem.policies.speculation.arithmetic import FIRST_ALPHA, MAX_WINDOW, expected_tokens
from tandem.policies.speculation.rounds import BURST
from tandem.policies.speculation.window import WindowState, window

ALONE, FUSED = 0, 1
FLOOR_S = 1e-6
FIRST_DRAFTS = 4
IDLE = 1.5
"""Most of a verification, over the shortest one, while a pair has seen few: the first ones wait for prompts."""
SEEN = 20.0
"""Judged tokens from which on half of what a pair has seen counts."""
COMPARED = 16.0
"""Squared differences of windows from which on half of what they show of a further draft's verification counts."""
ENOUGH, APART = 128.0, 2
"""Squared differences up to which windows are varied, and by how much, where a pair would choose the same again."""
ABOUT = (0.9, 1.0, 1.1)
"""Times between verifications, over the expected one, that the wait for the target's next step is averaged over."""
LEAST_WAIT = 0.5
"""Share of a step that a round has to wait at least for the target to be taken as always busy."""
LIMITED = 2.0
"""Sessions at the target, over those that a step takes, from which on pairs are taken to wait for turns: below it, some
may only be about to close."""
LEAST_STEP, LEAST_TURN = 0.3, 0.5
"""Shares of a step, and of a turn of all pairs, as the target says, that a token of the target alone takes at least:
what it says of a step with a single position may be too much."""
LEAST_LOSS = 0.25
"""Share of a trial that is taken to be lost, even if the ways seem equal: what is expected may be wrong."""
DOUBTED = 5.0
"""Times as often, over all pairs, that drafts are tried again that would be better than the cloud if acceptance were a
standard deviation higher: few rounds may have been unlucky."""
RARER = 0.2
"""Share of `explore` for trying the cloud, which may delay the target's step for all."""


@window.register("awc")
class ClosedForm:
    """The way of the least expected time a token. Costs are compared as natural logarithms of seconds a token.

    start: γ of a pair's first rounds.
    first: how many those are, at a target that is not known yet.
    margin: by how much the cloud must seem cheaper to be chosen: a pair learns with its device, not without it.
    inertia: additional margin for leaving the way of the target's other pairs, and discount for joining them.
    accord: penalty for a window e times as wide as the mean of the others, or as narrow: a step takes as long as its
        widest window.
    explore: share of a pair's time that may be lost to trying what is not chosen.
    most: greatest γ.
    """

    def __init__(
        self,
        start: int = FIRST_DRAFTS,
        first: int = 3,
        margin: float = 0.05,
        inertia: float = 0.15,
        accord: float = 0.2,
        explore: float = 0.001,
        most: int = MAX_WINDOW,
    ) -> None:
        if not 2 <= start <= most <= MAX_WINDOW or first < 1 or not 0 <= explore <= 1:
            raise ValueError(
                f"needs 2 ≤ start ≤ most ≤ {MAX_WINDOW}, first ≥ 1, 0 ≤ explore ≤ 1, "
                f"not {start}, {most}, {first}, {explore}"
            )
        self._start, self._margin, self._inertia, self._accord = start, margin, inertia, accord
        self._explore, self._most = explore, most
        self._first, self._try_fused, self._try_alone = first, True, True
        self._cloud, self._budget_s = False, 0.0

    @property
    def memory(self) -> tuple[float, ...]:
        """First rounds to come, whether fused rounds and the target alone are to be tried, whether the cloud was chosen
        last, and seconds that may be lost."""
        return tuple(map(float, (self._first, self._try_fused, self._try_alone, self._cloud, self._budget_s)))

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        first, try_fused, try_alone, cloud, self._budget_s = memory
        self._first, self._try_fused, self._try_alone = int(first), bool(try_fused), bool(try_alone)
        self._cloud = bool(cloud)

    def choose(self, state: WindowState) -> int:
        known = state.shared_verify_s > 0 and state.shared_draft_s > 0
        if known:  # the others have tried
            self._first, self._try_fused, self._try_alone = 0, not state.fused_s, not state.alone_s
        if self._first > 0 or not (state.verify_s or known):
            self._first = max(0, self._first - 1)
            return self._start
        costs = Costs(state)
        gamma = min(range(2, self._most + 1), key=lambda size: costs.drafted(size) + self._apart(state, size))
        drafted = costs.drafted(gamma)
        if self._try_fused:
            self._try_fused = False
            if state.helper:
                return FUSED
        if self._try_alone and costs.alone_least < min(costs.seen, costs.fused):
            self._try_alone = False
            return ALONE
        way, cloud = (FUSED, costs.fused) if costs.fused < costs.alone else (ALONE, costs.alone)
        gap = drafted - cloud
        chosen = gap > self._margin + self._inertia * (1.0 - 2.0 * state.fused_share)
        cloud_s = exp(cloud) * (BURST if way == ALONE else 1.0)
        doubtful = chosen and costs.hoped < cloud
        often = max(1.0, DOUBTED / state.pairs) if doubtful else 1.0
        if self._again(chosen, cloud_s, costs.round_s(gamma), gap, often):
            chosen = not chosen
        if chosen:
            return way
        if state.widened < ENOUGH and gamma == state.previous:  # other windows, to see what a draft takes
            return gamma + APART if gamma + APART <= self._most else max(2, gamma - APART)
        return gamma

    def _apart(self, state: WindowState, size: int) -> float:
        """Return the penalty for differing from the other pairs' windows."""
        return self._accord * log(size / state.mean_window) ** 2 if state.mean_window > 0 else 0.0

    def _again(self, cloud: bool, cloud_s: float, device_s: float, gap: float, often: float) -> bool:
        """Return whether to try what is not chosen.

        cloud_s, device_s: of its rounds.
        gap: the device's cost above the cloud's.
        often: by how much more often than else.
        """
        chosen_s, other_s = (cloud_s, device_s) if cloud else (device_s, cloud_s)
        if self._cloud != cloud:
            self._cloud, self._budget_s = cloud, 0.0
        self._budget_s += self._explore * (often if cloud else RARER) * chosen_s
        lost_s = other_s * max(LEAST_LOSS, 1.0 - exp(-gap if cloud else gap))
        if self._budget_s <= lost_s:
            return False
        self._budget_s -= lost_s
        return True


class Way(NamedTuple):
    """Way of a pair's rounds that takes the least time.

    token_s: seconds per output token.
    drafted: tokens drafted per output token, by the pair's own drafter.
    steps: of the target, per output token.
    """

    token_s: float
    drafted: float
    steps: float


class Assumed(NamedTuple):
    """Figures that count where no round was seen.

    draft_s, alone_s: seconds per token of the drafter, and of the target alone.
    alpha: acceptance.
    """

    draft_s: float = 0.0
    alone_s: float = 0.0
    alpha: float = FIRST_ALPHA


NOTHING_KNOWN = Assumed()
LIKELY = (2, 4, 8)
"""Windows that are compared where only the time is asked for."""


def expected_way(state: WindowState, alone_s: float, draft_s: float, alpha: float) -> Way:
    """Return the best way of a pair's next answer.

    alone_s: seconds per token of the target alone, with its present load.
    draft_s: seconds that the drafter takes for a token, by what it tells; counts where no round was seen.
    alpha: acceptance, where no round of the target's pairs was seen.
    """
    costs = Costs(state, Assumed(draft_s, alone_s, alpha))
    least, gamma = min((costs.drafted(gamma), gamma) for gamma in LIKELY)
    if min(costs.alone, costs.fused) < least:
        least = min(costs.alone, costs.fused)
        return Way(exp(least), 0.0, 1.0)
    token_s = exp(least)
    tokens = max(1.0, costs.round_s(gamma) / token_s)
    return Way(token_s, gamma / tokens, 1.0 / tokens)


class Costs:
    """Expected costs in a state, as logarithms of seconds a token.

    alone, fused: of the cloud; infinite for fused rounds that are not known or not to be had.
    alone_least: a lower bound of alone, before it was tried.
    """

    __slots__ = (
        "_alpha",
        "_alpha_hoped",
        "_draft_s",
        "_draft_verify_s",
        "_drafted",
        "_external_s",
        "_growth",
        "_own",
        "_rtt_s",
        "_step_s",
        "_verify_s",
        "_waits",
        "alone",
        "alone_least",
        "fused",
    )

    def __init__(self, state: WindowState, assumed: Assumed = NOTHING_KNOWN) -> None:
        verify_s = state.verify_s or state.shared_verify_s or assumed.alone_s
        alone_s = state.alone_s or assumed.alone_s or verify_s  # a verification gives a token at least
        if state.own > 1:  # what it finds in rounds, it would find alone in less time
            alone_s = min(alone_s, verify_s / state.own)
        self._external_s = (state.pairs - 1) * state.position_s  # that a position costs all others
        self.alone = log(max(FLOOR_S, alone_s) + self._external_s)
        # Of as many positions as drafts and one more, a single one may take as little as its share.
        least_s = max(state.verify_least_s, verify_s / 2) / (1.0 + state.drafted)
        turn_s = state.queue * state.base_s if state.queue >= LIMITED else 0.0
        self.alone_least = log(max(FLOOR_S, least_s, LEAST_STEP * state.base_s, LEAST_TURN * turn_s))
        if state.verify_least_s:
            seen = state.judged / (state.judged + SEEN)
            verify_s = seen * verify_s + (1 - seen) * min(verify_s, IDLE * state.verify_least_s)
        prior = state.prior or assumed.alpha
        verify_s = max(verify_s, alone_s)  # at the same load: a verification is a step at least
        weight = state.prior_weight
        self._alpha = (prior * weight + state.alpha * state.judged) / (weight + state.judged)
        deviation = (self._alpha * (1.0 - self._alpha) / (weight + state.judged)) ** 0.5
        self._alpha_hoped = min(1.0, self._alpha + deviation)
        positions = (1 + FIRST_DRAFTS) / expected_tokens(prior, FIRST_DRAFTS)  # of fused rounds, a token
        fused_s = state.fused_s + positions * self._external_s
        self.fused = log(max(FLOOR_S, fused_s)) if state.helper and state.fused_s else inf
        self._draft_s, self._rtt_s = state.draft_s or assumed.draft_s or state.shared_draft_s, state.rtt_s
        self._verify_s, self._own, self._growth = verify_s, state.own, state.draft_growth
        self._drafted, self._draft_verify_s = state.drafted, 0.0
        self._step_s = self._waits = 0.0
        alone_s = state.alone_s or assumed.alone_s
        if not alone_s and state.base_s:
            alone_s = state.base_s + state.pairs * state.position_s
        if state.drafted and alone_s:
            beyond_s = max(0.0, verify_s - alone_s)
            if state.mean_window:  # there are others
                self._step_s = alone_s
                waits_s = self._next_step_s(state.drafted)
                self._waits = min(1.0, beyond_s / max(waits_s, LEAST_WAIT * alone_s))
                beyond_s = max(0.0, beyond_s - self._waits * waits_s)
            self._draft_verify_s = beyond_s / state.drafted
            # Some of that may be waiting for the others' prompts, which does not grow with the window.
            if state.position_s:
                self._draft_verify_s = state.position_s
            else:
                shown = state.widened / (state.widened + COMPARED)
                self._draft_verify_s += shown * (state.verify_growth * verify_s - self._draft_verify_s)

    @property
    def seen(self) -> float:
        """Return the cost of rounds as wide as those seen."""
        return self.drafted(round(self._drafted) or FIRST_DRAFTS)

    @property
    def hoped(self) -> float:
        """Return the cost of drafts if acceptance is a standard deviation higher than expected."""
        return min(self._cost(gamma, self._alpha_hoped) for gamma in (*LIKELY, MAX_WINDOW))

    def round_s(self, gamma: int) -> float:
        """Return the seconds of a round of γ drafts."""
        further = gamma - self._drafted
        verify_s = self._verify_s + further * self._draft_verify_s
        if self._waits:
            verify_s += self._waits * (self._next_step_s(gamma) - self._next_step_s(self._drafted))
        return self._away_s(gamma) + verify_s

    def _away_s(self, gamma: float) -> float:
        """Return the seconds between two verifications."""
        usual = self._drafted or FIRST_DRAFTS  # drafts that _draft_s is the mean of
        return self._rtt_s + (usual + (gamma - usual) * self._growth) * self._draft_s

    def _next_step_s(self, gamma: float) -> float:
        """Return how long a round waits for the next step of a target that makes one after the other."""
        steps = self._away_s(gamma) / self._step_s
        return self._step_s * sum(-steps * about % 1.0 for about in ABOUT) / len(ABOUT)

    def drafted(self, gamma: int) -> float:
        """Return the cost of rounds of γ drafts. The others are taken to be at the target for the same share of their
        rounds."""
        return self._cost(gamma, self._alpha)

    def _cost(self, gamma: int, alpha: float) -> float:
        tokens = expected_tokens(alpha, gamma) + self._own - 1.0
        round_s = max(FLOOR_S, self.round_s(gamma))
        at_target = max(0.0, 1.0 - self._away_s(gamma) / round_s)
        return log((round_s + at_target * (gamma + 1) * self._external_s) / tokens)
