"""Prompt lookup: drafts that cost nothing, from where the text went on in the same way before (Saxena 2023).

A match is the longest end of the text that occurs in it earlier; the draft is what followed there. How often such
drafts are accepted is learnt by the match's length, from every match, also from those that were not drafted: the text
tells how it went on. The window is the one with which the step gives the most tokens a second, by what steps take.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from tandem.policies.speculation.arithmetic import expected_tokens

LEAST_MATCH = 3
"""Tokens of the shortest match."""
LENGTHS = (LEAST_MATCH, 5, 8, 16)
"""Least tokens of a match of each class."""
FIRST_ALPHA = 0.5
"""Expected acceptance before anything is known."""
WEIGHT = 8.0
"""Judged tokens of its own with which a session counts as much as all sessions before it."""
FADE = 0.99


class NgramIndex:
    """Last places of each n-gram in a growing text."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # n-gram → position of the token that followed
        self._known = LEAST_MATCH

    def find(self, tokens: Sequence[int], most: int) -> tuple[int, list[int]]:
        """Return the length of the match of the text's end, LENGTHS[-1] at most, and up to `most` tokens that followed
        it; (0, []) without one. tokens: the whole text; it may have changed since the last call."""
        end = len(tokens)
        self._known = min(self._known, end)
        for position in range(self._known, end):
            self._after[tuple(tokens[position - LEAST_MATCH : position])] = position
        self._known = max(self._known, end)
        if (
            end < LEAST_MATCH
            or (at := self._after.get(tuple(tokens[end - LEAST_MATCH :]))) is None
            or at >= end
        ):
            return 0, []
        length = 0
        while length < LENGTHS[-1] and length < at and tokens[at - 1 - length] == tokens[end - 1 - length]:
            length += 1
        if length < LEAST_MATCH:  # what the index knows was replaced
            return 0, []
        draft = list(tokens[at : at + most])
        for i in range(len(draft), most):  # the text repeats itself up to its end
            draft.append(draft[i - (end - at)])
        return length, draft


class LookupHistory:
    """Acceptance by the class of a match, over all sessions."""

    def __init__(self) -> None:
        self._judged = [WEIGHT] * len(LENGTHS)
        self._accepted = [WEIGHT * FIRST_ALPHA] * len(LENGTHS)

    def alpha(self, kind: int) -> float:
        """Return the probability that a drafted token is accepted if those before it were."""
        return self._accepted[kind] / self._judged[kind]

    def note(self, kind: int, judged: int, accepted: int) -> None:
        """Record tokens that were judged, the first rejected one included."""
        for values, more in ((self._judged, judged), (self._accepted, accepted)):
            values[kind] = values[kind] * FADE + more


class PromptLookup:
    """The lookups of one session."""

    def __init__(self, history: LookupHistory) -> None:
        self._history, self._index = history, NgramIndex()
        self._judged = [0.0] * len(LENGTHS)
        self._accepted = [0.0] * len(LENGTHS)
        self._expected: tuple[int, int, list[int]] | None = None  # position, class, how the text should go on

    def draft(
        self, tokens: Sequence[int], most: int, others: int, step_s: Callable[[int], float]
    ) -> list[int]:
        """Return the draft with which the next step is worth most; empty if none is worth its time.

        tokens: the session's text.
        most: tokens of the draft.
        others: tokens that the step gives to other sessions.
        step_s: seconds of a step in which this session has so many positions.
        """
        self._learn(tokens)
        length, draft = self._index.find(tokens, most)
        if not length:
            return []
        kind = bisect_right(LENGTHS, length) - 1
        self._expected = len(tokens), kind, draft
        return draft[: best_window(self.alpha(kind), len(draft), others, step_s)]

    def alpha(self, kind: int) -> float:
        """Return the probability that a token of such a draft is accepted if those before it were."""
        judged = self._judged[kind] + WEIGHT
        return (self._accepted[kind] + WEIGHT * self._history.alpha(kind)) / judged

    def _learn(self, tokens: Sequence[int]) -> None:
        """Compare what was expected with what came."""
        if self._expected is None:
            return
        (position, kind, draft), self._expected = self._expected, None
        came = tokens[position : position + len(draft)]
        accepted = 0
        while accepted < len(came) and came[accepted] == draft[accepted]:
            accepted += 1
        if judged := min(accepted + 1, len(came)):
            self._history.note(kind, judged, accepted)
            self._judged[kind] = self._judged[kind] * FADE + judged
            self._accepted[kind] = self._accepted[kind] * FADE + accepted


def best_window(alpha: float, most: int, others: int, step_s: Callable[[int], float]) -> int:
    """Return the window γ ≤ `most` of the step with the most tokens a second, 0 for none.

    others, step_s: as in `PromptLookup.draft`.
    """
    return max(
        range(most + 1), key=lambda gamma: (others + expected_tokens(alpha, gamma)) / step_s(1 + gamma)
    )
