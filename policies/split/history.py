"""History: what middles have kept of a device's earlier requests, and how much of the next one that is.

A hidden state depends on the tokens up to its own alone. So of a prompt that begins as an earlier request did, prompt
and answer, the states of what is common need not go up again. The comparison is the device's: the middle knows a
random handle, and no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST = 16
"""Fewest common tokens that are worth asking for."""


class Kept(NamedTuple):
    """States that a middle has kept.

    handle: under which it has them.
    tokens: whose states they are.
    """

    handle: str
    tokens: tuple[int, ...]


class History:
    """History of the last requests, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: list[tuple[str, Kept]] = []  # by middle, the oldest first

    def keep(self, middle: str, kept: Kept) -> None:
        """Record what a middle has been asked to keep."""
        self._kept = [*self._kept, (middle, kept)][max(0, len(self._kept) + 1 - self.most) :]

    def take(self, middle: str, tokens: Sequence[int]) -> tuple[Kept, int] | None:
        """Return what that middle has kept that begins most like these tokens, and how many are the same; None if none
        is worth it. It is another request's then, and so no longer in the history."""
        found = [
            (common(kept.tokens, tokens), number)
            for number, (there, kept) in enumerate(self._kept)
            if there == middle
        ]
        same, number = max(found, default=(0, 0))
        if same < LEAST:
            return None
        _, kept = self._kept.pop(number)
        return kept, same


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
