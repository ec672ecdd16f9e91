"""Prompt lookup: drafts that cost nothing, from where the text went on in the same way before (Saxena 2023).

A match is the longest end of the text that occurs in it earlier; the draft is what followed there. How often such
drafts are accepted is learnt by the match's length, from every match, also from those that were not drafted: the text
tells how it went on. The window is the one with which the step gives the most tokens a second, by what steps take.

Where a client has drafts verified, a step takes these, and what is looked up after them, or what is looked up in their
place, whichever gives more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from tandem.policies.speculation.arithmetic import expected_tokens

LEAST_MATCH = 3
"""Tokens of the shortest match."""
LENGTHS = (LEAST_MATCH, 5, 8, 16)
"""Least tokens of a match of each class."""
CLIENT = len(LENGTHS)
"""The class of a client's drafts."""
FIRST_ALPHA = 0.5
"""Expected acceptance before anything is known."""
WEIGHT = 8.0
"""Judged tokens of its own with which a session counts as much as all sessions before it."""
FADE = 0.99


class NgramIndex:
    """Last places of each n-gram in a growing text."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # n-gram → position of the token that followed
        # n-gram before each position from LEAST_MATCH on, and the position that it was followed at before
        self._entries: list[tuple[tuple[int, ...], int | None]] = []

    def find(self, tokens: Sequence[int], most: int, ahead: Sequence[int] = ()) -> tuple[int, list[int]]:
        """Return the length of the match of the text's end, LENGTHS[-1] at most, and up to `most` tokens that followed
        it; (0, []) without one.

        tokens: the whole text; it may have changed since the last call.
        ahead: what may follow it, and is no text yet; its end is then matched.
        """
        self._read(tokens)
        if ahead:
            tokens = [*tokens, *ahead]
        end = len(tokens)
        if end < LEAST_MATCH or (at := self._after.get(tuple(tokens[end - LEAST_MATCH :]))) is None:
            return 0, []
        length = 0
        while length < LENGTHS[-1] and length < at and tokens[at - 1 - length] == tokens[end - 1 - length]:
            length += 1
        if length < LEAST_MATCH:  # what the index knows was replaced
            return 0, []
        draft = list(tokens[at : at + max(0, most)])
        for i in range(len(draft), most):  # the text repeats itself up to its end
            draft.append(draft[i - (end - at)])
        return length, draft

    def _read(self, tokens: Sequence[int]) -> None:
        """Forget what the text no longer ends with, and add what is new."""
        entries, after, end = self._entries, self._after, len(tokens)
        while entries:
            position, (ngram, before) = LEAST_MATCH + len(entries) - 1, entries[-1]
            if position < end and ngram == tuple(tokens[position - LEAST_MATCH : position]):
                break
            entries.pop()
            if before is None:
                del after[ngram]
            else:
                after[ngram] = before
        for position in range(LEAST_MATCH + len(entries), end):
            ngram = tuple(tokens[position - LEAST_MATCH : position])
            entries.append((ngram, after.get(ngram)))
            after[ngram] = position


class LookupHistory:
    """Acceptance by the class of a match, over all sessions."""

    def __init__(self) -> None:
        self._judged = [WEIGHT] * (CLIENT + 1)
        self._accepted = [WEIGHT * FIRST_ALPHA] * (CLIENT + 1)

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
        self._judged = [0.0] * (CLIENT + 1)
        self._accepted = [0.0] * (CLIENT + 1)
        self._expected: tuple[int, int, list[int]] | None = None  # position, class, how the text should go on

    def draft(
        self, tokens: Sequence[int], most: int, others: int, step_s: Callable[[int], float]
    ) -> list[int]:
        """Return the draft with which the next step is worth most; empty if none is worth its time.

        tokens: the session's text.
        most: tokens of the draft, at most.
        others: tokens that the step gives to other sessions.
        step_s: seconds of a step, by this session's positions in it.
        """
        return self.mix(tokens, (), False, most, others, step_s)

    def mix(
        self,
        tokens: Sequence[int],
        drafts: Sequence[int],
        stated: bool,
        most: int,
        others: int,
        step_s: Callable[[int], float],
    ) -> list[int]:
        """Return the draft with which the next step is worth most: a client's drafts, with tokens looked up after them
        where these are worth their time, or looked up tokens in their place.

        stated: whether the drafts come with the distributions that they were drawn from. They are never replaced then:
            a choice by what was drawn would change the output's distribution.
        most: as in `draft`; a client's drafts may be more.
        Others: as in `draft`.
        """
        self._learn(tokens)
        length, found = self._index.find(tokens, most)
        if length:
            kind = _kind(length)
            self._expected = len(tokens), kind, found
            if not (drafts and stated):
                own = best_window(self.alpha(kind), len(found), others, step_s)
                rate = (others + expected_tokens(self.alpha(kind), own)) / step_s(1 + own)
                theirs = others + expected_tokens(self.alpha(CLIENT), len(drafts))
                if not drafts or (own and rate > theirs / step_s(1 + len(drafts))):
                    return found[:own]
        length, found = self._index.find(tokens, most - len(drafts), drafts) if drafts else (0, [])
        if not length:
            return [*drafts]
        alpha = self.alpha(CLIENT)
        before, reached = others + expected_tokens(alpha, len(drafts)), alpha ** len(drafts)
        positions = len(drafts)
        more = best_window(
            self.alpha(_kind(length)), len(found), before - reached, lambda n: step_s(positions + n), reached
        )
        return [*drafts, *found[:more]]

    def judge(self, drafts: int, accepted: int) -> None:
        """Record how many of a client's drafts were accepted."""
        if drafts:
            self._note(CLIENT, min(accepted + 1, drafts), accepted)

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
        accepted = agreement(draft, came)
        if judged := min(accepted + 1, len(came)):
            self._note(kind, judged, accepted)

    def _note(self, kind: int, judged: int, accepted: int) -> None:
        self._history.note(kind, judged, accepted)
        self._judged[kind] = self._judged[kind] * FADE + judged
        self._accepted[kind] = self._accepted[kind] * FADE + accepted


def agreement(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of leading tokens in which both agree."""
    both = min(len(a), len(b))
    return next((n for n in range(both) if a[n] != b[n]), both)


def _kind(length: int) -> int:
    """Return the class of a match."""
    return bisect_right(LENGTHS, length) - 1


def best_window(
    alpha: float, most: int, others: float, step_s: Callable[[int], float], reached: float = 1.0
) -> int:
    """Return the window γ ≤ `most` of the step with the most tokens a second, 0 for none.

    others, step_s: as in `PromptLookup.draft`.
    reached: probability that the window's first draft is judged.
    """
    return max(
        range(most + 1),
        key=lambda gamma: (others + reached * expected_tokens(alpha, gamma)) / step_s(1 + gamma),
    )
