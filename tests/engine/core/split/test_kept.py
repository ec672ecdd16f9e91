"""Kept states are bounded in number, bytes and time, and each is taken once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.core.split.kept import KeptRows, KeptStates
from tandem.engine.core.split.rows import Rows


def states(count: int, since_s: float = 0.0) -> KeptRows:
    """Return states of so many positions, of 8 bytes each."""
    rows = Rows()
    rows.put(0, np.ones((count, 2), np.float32))
    return KeptRows(rows, list(range(count)), since_s)


def test_they_are_taken_once_and_not_after_their_time() -> None:
    kept = KeptStates(kept_s=10.0)
    kept.put("a", states(3))
    assert kept.take("b", 1.0) is None
    found = kept.take("a", 1.0)
    assert found is not None
    assert found.numbers == [0, 1, 2]
    assert kept.take("a", 1.0) is None
    kept.put("a", states(3, 5.0))
    assert kept.take("a", 15.0) is None
    assert (len(kept), kept.bytes) == (0, 0)


def test_what_is_too_large_or_empty_is_not_kept() -> None:
    kept = KeptStates(most_bytes=100)
    kept.put("a", states(13))
    kept.put("b", states(0))
    assert (len(kept), kept.bytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12), st.booleans()), max_size=20))
def test_they_are_bounded(acts: list[tuple[str, int, bool]]) -> None:
    kept = KeptStates(most=3, most_bytes=160, kept_s=6.0)
    there: dict[str, int] = {}
    for now_s, (handle, count, takes) in enumerate(acts):
        if takes:
            found = kept.take(handle, float(now_s))
            assert found is None or len(found.numbers) == there[handle]
        else:
            kept.put(handle, states(count, float(now_s)))
            there[handle] = count
            assert len(kept) <= 3
            assert kept.bytes <= 160
    for handle in "abcdef":
        kept.take(handle, float(len(acts)))
    assert kept.bytes == 0
