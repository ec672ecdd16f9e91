"""Thoughts before an output's form: up to their end mark any token may follow, then the form holds.

The marks are texts, whether a vocabulary has tokens for them or spells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from tandem.engine.text.detokenizer import unfinished_length

Kind = Literal["start", "thought", "gap", "form"]
GAP = 2
"""Most white space between the end mark and the form, in bytes."""


class Place(NamedTuple):
    """Place in an output.

    kind: "start" where the begin mark or the form may come, "thought", "gap" behind the end mark, or "form".
    text: of the start or the gap so far, or of the thought's end that may begin the end mark.
    body: tokens before the form.
    """

    kind: Kind
    text: bytes
    body: int


class Thoughts:
    """Thoughts between two marks in one vocabulary."""

    def __init__(self, spelt: Sequence[bytes], begin: str, end: str) -> None:
        """spelt: bytes of each token, special ones by their names.
        begin: mark with which an output may begin; empty if the prompt has begun the thoughts.
        """
        self._spelt, self._begin, self._end = spelt, begin.encode(), end.encode()
        self.start = Place("start" if begin else "thought", b"", 0)
        self._masked = lru_cache(64)(self._mask)
        for place in (self.start, Place("thought", b"", 0), Place("gap", b"", 0), Place("gap", b"\n\n", 0)):
            self.forbidden(place)  # the common ones, so that no step waits for them

    def after(self, place: Place, token: int, at: int) -> Place:
        """Return the place after a token. at: tokens of the output before it."""
        data = self._spelt[token] if token < len(self._spelt) else b""
        match place.kind:
            case "start":
                return self._started(place.text + data)
            case "thought":
                return self._thought(place.text + data, at)
            case "gap" if data.isspace() and len(place.text + data) <= GAP:
                return Place("gap", place.text + data, at + 1)
            case "gap":
                return Place("form", b"", at)
        return place

    def forbidden(self, place: Place) -> np.ndarray:
        """Return whether a token is forbidden, but for those with which the form goes on."""
        return self._masked(place.kind, place.text)

    def _started(self, text: bytes) -> Place:
        if text.startswith(self._begin):
            return self._thought(text[len(self._begin) :], 0)
        return Place("start" if self._begin.startswith(text) else "form", text, 0)

    def _thought(self, text: bytes, at: int) -> Place:
        """Return the place after a token, the `at`-th, with which the thoughts go on by this text."""
        before, mark, gap = text.partition(self._end)
        if mark:
            fits = not gap or (gap.isspace() and len(gap) <= GAP)
            return Place("gap", gap, at + 1) if fits else Place("form", b"", at)
        held = unfinished_length(before.decode("latin-1"), [self._end.decode("latin-1")])
        return Place("thought", before[len(before) - held :], 0)

    def _mask(self, kind: Kind, text: bytes) -> np.ndarray:
        place = Place(kind, text, 0)
        return np.fromiter((not self._goes_on(place, data) for data in self._spelt), bool, len(self._spelt))

    def _goes_on(self, place: Place, data: bytes) -> bool:
        """Return whether a token keeps to the thoughts and what stands around them."""
        text = place.text + data
        match place.kind:
            case "start":
                if self._begin.startswith(text):
                    return bool(data)
                return text.startswith(self._begin) and self._goes_on(
                    Place("thought", b"", 0), text[len(self._begin) :]
                )
            case "thought":
                return self._thought(text, 0).kind != "form"
            case "gap":
                return data.isspace() and len(text) <= GAP
        return False
