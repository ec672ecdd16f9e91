"""Every shape is timed after exactly the tokens that it names, and cached tokens are computed once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tandem.benchmarks.real.profile import CHUNKS, LONG, POSITIONS, SEQUENCES, SHORT, Stopwatch, shapes


class Cache:
    """A model that only counts the tokens of its rows."""

    def __init__(self) -> None:
        self.rows, self.computed, self.last = Counter[int](), 0, (0, 0, 0)

    def remove(self, row: int, first: int, end: int) -> None:
        assert end == -1
        self.rows[row] = min(self.rows[row], first)

    def forward(self, batch: Sequence[tuple[int, int, Sequence[int], int]]) -> None:
        assert sum(len(ids) for _, _, ids, _ in batch) <= max(CHUNKS)
        for row, start, ids, wanted in batch:
            assert start == self.rows[row]
            assert wanted == (len(ids) if len(ids) <= max(POSITIONS) else 1)
            self.rows[row] += len(ids)
            self.computed += len(ids)
        self.last = len(batch), len(batch[0][2]), batch[0][1]


def test_steps_are_timed_after_the_tokens_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimpleNamespace(BatchRow=lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "tandem.engine.llamacpp.model", row)
    cache = Cache()
    stopwatch = Stopwatch(cache)  # type: ignore[arg-type]
    for shape in shapes():
        for _ in range(2):
            assert stopwatch.step_s(shape) > 0
            assert cache.last == shape
    steps = sum(2 * sequences * positions for sequences, positions, _ in shapes())
    assert cache.computed - steps == max(LONG) + (max(SEQUENCES) - 1) * SHORT
    assert len(set(shapes())) == len(shapes())
