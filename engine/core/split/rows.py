"""Hidden states of a run of positions, in host memory."""

from __future__ import annotations

import numpy as np


class Rows:
    """[positions, hidden] float32 of the positions start .. end − 1."""

    __slots__ = ("_held", "end", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = self.end = start
        self._held = np.empty((0, 0), np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._held.nbytes

    def put(self, position: int, rows: np.ndarray) -> None:
        """Append rows that begin at `position`; rows of positions that are there already are ignored."""
        assert position <= self.end
        rows = rows[self.end - position :]
        if not (count := len(rows)):
            return
        held, at = self._held, self.end - self.start
        if at + count > len(held):
            grown = np.empty((max(2 * len(held), at + count), rows.shape[1]), np.float32)
            if at:
                grown[:at] = held[:at]
            self._held = held = grown
        held[at : at + count] = rows
        self.end += count

    def cut(self, position: int) -> None:
        """Drop the rows from `position` on."""
        self.end = max(self.start, min(self.end, position))

    def between(self, first: int, end: int) -> np.ndarray:
        """Return a copy of the rows of first .. end − 1 that are there."""
        return self._held[max(first, self.start) - self.start : min(end, self.end) - self.start].copy()
