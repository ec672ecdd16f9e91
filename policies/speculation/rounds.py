"""Rounds of one speculative answer (DSD): who drafts how many tokens, and what each round teaches.

The algorithm without its messages. It has no clock: callers pass durations, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

BURST = 8
"""Tokens that the target decodes alone before the window policy is asked again."""
FUSED_WINDOW = 4
"""γ of the cloud's own drafter in fused rounds."""


class DraftSource(StrEnum):
    """Place of the drafter of a round."""

    NOBODY = "nobody"
    DEVICE = "device"
    CLOUD = "cloud"


class RoundPlan(NamedTuple):
    """A round to come.

    gamma: tokens to draft.
    alone: tokens that the target decodes alone in place of a round; 0 for a round.
    """

    drafter: DraftSource
    gamma: int
    alone: int = 0


class PairRound(NamedTuple):
    """A round of the pair.

    verify_s, draft_s: without the time on links.
    read: tokens that the drafter had missed and first read.
    window: chosen by the policy for it; 0 if fixed.
    first: whether it is the first one of its answer, which waits for the prompt to be read.
    """

    drafted: int
    accepted: int
    tokens: int
    verify_s: float
    draft_s: float
    read: int
    window: int
    first: bool = False


class FusedRound(NamedTuple):
    """A round of the cloud without the device.

    seconds: drafting and verifying.
    cut: whether the output's end shortened it.
    """

    drafted: int
    tokens: int
    seconds: float
    cut: bool


class AloneRound(NamedTuple):
    """Tokens that the target decoded alone, in place of rounds."""

    tokens: int
    seconds: float


class DraftingRound(NamedTuple):
    """Acceptance of the drafts of a round, where they might be sampled or greedy.

    asked: drafts asked for.
    """

    sampled: bool
    asked: int
    accepted: int


Learnt = PairRound | FusedRound | AloneRound | DraftingRound


class RoundCounts(Protocol):
    """Counters of rounds, their drafted and accepted tokens, the fused ones among these, rounds of the target's token
    alone at the output's end, switches between fused rounds and the others, and tokens in place of rounds."""

    rounds: int
    drafted: int
    accepted: int
    fused_rounds: int
    fused_drafted: int
    single_rounds: int
    switches: int
    alone: int


class PairMemory(Protocol):
    """Statistics of a pair, as in `policies.speculation.history.PairHistory`."""

    def choose(self, behind: int = 0) -> int: ...
    def note_window(self, window: int) -> None: ...
    def note(
        self,
        drafted: int,
        accepted: int,
        tokens: int,
        verify_s: float,
        draft_s: float,
        read: int,
        first: bool,
    ) -> None: ...
    def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None: ...
    def note_alone(self, tokens: int, seconds: float) -> None: ...
    def note_drafting(self, sampled: bool, asked: int, accepted: int) -> None: ...


class Rounds:
    """Decides the rounds of an answer of at most `max_tokens` tokens, and records them in the pair's statistics.

    window: γ, if the client fixed it; None if the pair's window policy chooses each round's.
    distributed: whether a device drafts; a round with γ ≤ 1 is then fused: it stays in the cloud. If False, the pair's
        drafter is the cloud's own, which drafts in all rounds.
    helper: whether the cloud's own drafter drafts in fused rounds; without it the target decodes alone.
    fused_window: γ of fused rounds.
    counts: counters to update; may be those of earlier endpoints of the same request.
    learnt: all rounds that the pair can learn from.
    """

    __slots__ = (
        "_adaptive",
        "_begun",
        "_chosen",
        "_counts",
        "_distributed",
        "_fused",
        "_fused_window",
        "_helper",
        "_max_tokens",
        "_pair",
        "_planned",
        "_window",
        "learnt",
    )

    def __init__(
        self,
        pair: PairMemory,
        max_tokens: int,
        *,
        window: int | None,
        distributed: bool,
        helper: bool,
        counts: RoundCounts,
        fused_window: int = FUSED_WINDOW,
    ) -> None:
        self._pair, self._max_tokens, self._window = pair, max_tokens, window
        self._distributed, self._helper, self._counts = distributed, helper, counts
        self._adaptive, self._fused_window = distributed and window is None, fused_window
        self._begun = self._fused = False
        self._chosen = 0
        self._planned: RoundPlan | None = None
        self.learnt: list[Learnt] = []

    @property
    def adaptive(self) -> bool:
        """Whether the policy may choose distributed or fused rounds."""
        return self._adaptive

    def next(self, sent: int, behind: int = 0) -> RoundPlan:
        """Return the round that follows an answer of `sent` tokens. behind: tokens that the drafter must read first."""
        planned, self._planned = self._planned or self._plan(sent, behind), None
        return self._within(planned, sent)

    def put_off(self, plan: RoundPlan) -> RoundPlan:
        """Return what the target does before the round while its drafter begins: it decodes alone."""
        self._planned = plan
        return RoundPlan(DraftSource.NOBODY, 0, BURST)

    def stays_alone(self, sent: int, behind: int = 0) -> bool:
        """Return whether the target goes on alone after `sent` tokens of an answer; if not, `next` gives the round."""
        if self._planned is not None:
            return False
        planned = self._plan(sent, behind)
        if planned.alone:
            return True
        self._planned = planned
        return False

    def _plan(self, sent: int, behind: int) -> RoundPlan:
        chosen = self._pair.choose(behind) if self._window is None else self._window
        self._chosen = chosen
        if chosen == 0:
            return RoundPlan(DraftSource.NOBODY, 0, BURST)
        drafter, gamma = DraftSource.DEVICE if self._distributed else DraftSource.CLOUD, chosen
        if self._adaptive:
            fused = chosen <= 1
            self._counts.switches += self._begun and fused != self._fused
            self._fused = fused
            if fused:
                drafter, gamma = DraftSource.CLOUD if self._helper else DraftSource.NOBODY, self._fused_window
        return RoundPlan(drafter, gamma)

    def _within(self, plan: RoundPlan, sent: int) -> RoundPlan:
        """Return the plan, cut off where the output would end."""
        gamma = min(plan.gamma, self._max_tokens - sent - 1)  # the target adds one token of its own
        if plan.alone:
            return plan
        return RoundPlan(plan.drafter, gamma) if gamma > 0 else RoundPlan(DraftSource.NOBODY, 0)

    def decoded(self, tokens: int, seconds: float) -> None:
        """Record that the target decoded alone, in place of rounds."""
        self._begun = True
        self._counts.alone += tokens
        alone = AloneRound(tokens, seconds)
        self._pair.note_alone(*alone)
        self.learnt.append(alone)

    def done(
        self,
        drafted: int,
        accepted: int,
        tokens: int,
        draft_s: float,
        verify_s: float,
        read: int = 0,
    ) -> None:
        """Record a round that added `tokens` to the answer. draft_s, verify_s: without the time on links. read:
        tokens that the drafter had missed and first read."""
        counts, first, self._begun = self._counts, not self._begun, True
        counts.rounds += 1
        counts.drafted += drafted
        counts.accepted += accepted
        if self._adaptive and self._fused:
            counts.fused_rounds += 1
            counts.fused_drafted += drafted
            cut = self._helper and drafted < self._fused_window
            fused = FusedRound(drafted, tokens, draft_s + verify_s, cut)
            self._pair.note_fused(*fused)
            self.learnt.append(fused)
        elif drafted:
            window = 0 if self._window is not None else self._chosen
            done = PairRound(drafted, accepted, tokens, verify_s, draft_s, read, window, first)
            _note(self._pair, done)
            self.learnt.append(done)
        else:
            counts.single_rounds += 1

    def compared(self, sampled: bool, asked: int, accepted: int) -> None:
        """Record the acceptance of the drafts of the round before, where they might be sampled or greedy."""
        drafting = DraftingRound(sampled, asked, accepted)
        self._pair.note_drafting(*drafting)
        self.learnt.append(drafting)


def teach(pair: PairMemory, learnt: Iterable[Learnt]) -> None:
    """Record another process's rounds in the statistics of the same pair here."""
    for done in learnt:
        if isinstance(done, FusedRound):
            pair.note_fused(*done)
        elif isinstance(done, AloneRound):
            pair.note_alone(*done)
        elif isinstance(done, DraftingRound):
            pair.note_drafting(*done)
        else:
            pair.note_window(done.window)
            _note(pair, done)


def _note(pair: PairMemory, done: PairRound) -> None:
    pair.note(*done[:6], done.first)
