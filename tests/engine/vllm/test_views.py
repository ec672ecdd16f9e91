"""Tests of finding what of a text is in a cache, from where it was found before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.vllm.views import leading

NUMBERS = st.integers(0, 40)


@given(count=NUMBERS, there=NUMBERS, before=NUMBERS)
def test_a_beginning_is_found_from_wherever_one_looks(count: int, there: int, before: int) -> None:
    asked: list[int] = []

    def has(block: int) -> bool:
        asked.append(block)
        return block < there

    assert leading(count, before, has) == min(count, there)
    assert all(0 <= block < count for block in asked)
    assert len(asked) <= abs(min(before, count) - min(count, there)) + 2, "it looks around the end alone"


@given(before=NUMBERS)
def test_without_blocks_nothing_is_there(before: int) -> None:
    assert leading(0, before, lambda block: True) == 0
