"""Choice between sampled and greedy drafts, for sampled answers of a pair.

A sampled draft comes with its distribution q and is accepted with Σ min(p, q); a greedy one counts as a point mass and
is accepted with the target's p of the drafter's likeliest token, which is more where the drafter is less sure than the
target. Between two vocabularies, sampled drafts go up to the first token that the target lacks (token-level
intersection), and greedy ones are proposed as text (string-level exact match; Timor et al. 2025, algorithms 4 and 2).
All are lossless. Which are accepted more depends on the models, so both are tried.
"""

from __future__ import annotations

MEMORY = 512.0
"""Drafts asked for, over which acceptance is averaged."""
TRIAL = 64.0
"""Drafts asked for in each way before one is preferred."""
RETRY = 16
"""Answers, one of which tries the way that is not preferred."""


class DraftChoice:
    """Acceptance of a pair's sampled and of its greedy drafts, and the choice by it."""

    __slots__ = ("_accepted", "_answers", "_asked")

    def __init__(self) -> None:
        self._asked, self._accepted = [0.0, 0.0], [0.0, 0.0]
        self._answers = 0

    def choose(self) -> bool:
        """Return whether the drafts for the next answer are to be sampled."""
        if self._asked[True] < TRIAL or self._asked[False] < TRIAL:
            return self._asked[True] <= self._asked[False]
        self._answers += 1
        better = self.acceptance(True) >= self.acceptance(False)
        return better != (self._answers % RETRY == 0)

    def note(self, sampled: bool, asked: int, accepted: int) -> None:
        """Record a round: drafts asked for, whether or not the drafter proposed as many, and those accepted."""
        keep = min(1.0, MEMORY / (self._asked[sampled] + asked)) if asked else 1.0
        self._asked[sampled] = (self._asked[sampled] + asked) * keep
        self._accepted[sampled] = (self._accepted[sampled] + accepted) * keep

    def acceptance(self, sampled: bool) -> float:
        """Return the share of drafts asked for that were accepted; 0 before the first."""
        asked = self._asked[sampled]
        return self._accepted[sampled] / asked if asked else 0.0

    @property
    def state(self) -> tuple[float, float, float, float]:
        """Drafts asked for and accepted, greedy and sampled, to send to another process."""
        return self._asked[False], self._accepted[False], self._asked[True], self._accepted[True]

    @state.setter
    def state(self, state: tuple[float, float, float, float]) -> None:
        self._asked, self._accepted = [state[0], state[2]], [state[1], state[3]]
