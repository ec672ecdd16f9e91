"""Merging: sentences and their order are conserved, and no merged groups are late that need not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.merging import Groups, merge, merge_for_reader

lengths_ = st.lists(st.integers(1, 60), max_size=20)
both = pytest.mark.parametrize("merging", [merge, merge_for_reader])
Merging = Callable[[Sequence[int], Callable[[Groups], bool]], Groups]


def longest(lengths: Sequence[int], groups: Groups) -> int:
    return max((sum(lengths[i] for i in group) for group in groups), default=0)


@both
@given(lengths=lengths_, most=st.integers(0, 800))
def test_sentences_and_order_are_conserved(merging: Merging, lengths: list[int], most: int) -> None:
    tried: list[Groups] = [tuple((i,) for i in range(len(lengths)))]

    def fits(groups: Groups) -> bool:
        tried.append(groups)
        return longest(lengths, groups) <= most

    result = merging(lengths, fits)
    for groups in tried:
        assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
        assert all(list(group) == sorted(group) for group in groups)
        assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    assert all(len(b) == (len(a) + 1) // 2 for a, b in pairwise(tried)), "half as many each time"
    in_time = [groups for groups in tried[1:] if longest(lengths, groups) <= most]
    assert result == [tried[0], *in_time][-1]
    assert in_time == tried[1 : 1 + len(in_time)], "the first that is late ends it"
    assert len(result) <= 1 or longest(lengths, tried[-1]) > most, "no sooner than that"


def test_the_papers_pairs() -> None:
    lengths = [5, 1, 9, 3, 7, 2]  # by length: 1, 5, 3, 0, 4, 2
    assert merge(lengths, lambda groups: len(groups) == 3) == ((0, 3), (1, 2), (4, 5))
    odd = [5, 1, 9, 3, 7]  # by length: 1, 3, 0, 4, 2
    assert merge(odd, lambda groups: len(groups) == 3) == ((0,), (1, 2), (3, 4))


@both
def test_all_or_nothing(merging: Merging) -> None:
    assert merging([4, 2, 6], lambda groups: True) == ((0, 1, 2),)
    assert merging([4, 2, 6], lambda groups: False) == ((0,), (1,), (2,))
    assert merging([], lambda groups: True) == ()
    assert merging([7], lambda groups: True) == ((0,),)


def test_pairs_balance_lengths() -> None:
    lengths = list(range(1, 17))
    assert longest(lengths, merge(lengths, lambda groups: len(groups) >= 8)) == 17
    assert longest(lengths, merge(lengths, lambda groups: len(groups) >= 4)) == 34


@given(lengths_)
def test_a_reader_has_the_first_sentences_first(lengths: list[int]) -> None:
    """The groups begin with the first sentences; the paper's pairs may well begin with others."""
    groups = merge_for_reader(lengths, lambda groups: len(groups) >= 4)
    assert [group[0] for group in groups] == list(range(len(groups)))


def test_the_papers_pairs_keep_a_reader_waiting() -> None:
    lengths = [9, 9, 1, 1]
    assert merge(lengths, lambda groups: len(groups) == 2) == ((0, 3), (1, 2))
    lengths = [9, 1, 8, 2]  # the second sentence with the first, so after it
    assert merge(lengths, lambda groups: len(groups) == 2) == ((0, 1), (2, 3))
    assert merge_for_reader(lengths, lambda groups: len(groups) == 2) == ((0, 3), (1, 2))


@both
def test_a_device_that_takes_two_at_once_gets_two_groups_however_late(merging: Merging) -> None:
    groups = merging([4, 2, 6, 1, 3], lambda groups: False, 2)  # type: ignore[call-arg]
    assert len(groups) == 2
    assert len(merging([4, 2, 6, 1, 3], lambda groups: False, 3)) == 3  # type: ignore[call-arg]
