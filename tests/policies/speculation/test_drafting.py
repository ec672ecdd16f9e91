"""The choice between sampled and greedy drafts of a pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.drafting import MEMORY, RETRY, TRIAL, DraftChoice


def answers(choice: DraftChoice, count: int, accepted: dict[bool, int]) -> list[bool]:
    """Have so many answers of two rounds of four drafts each, of which `accepted` stand; return the choices."""
    made = []
    for _ in range(count):
        sampled = choice.choose()
        for _ in range(2):
            choice.note(sampled, 4, accepted[sampled])
        made.append(sampled)
    return made


@pytest.mark.parametrize("better", [True, False])
def test_both_ways_are_tried_and_the_better_one_is_kept(better: bool) -> None:
    choice = DraftChoice()
    tried = int(TRIAL) // 8
    first = answers(choice, 2 * tried, {better: 2, not better: 1})
    assert (first.count(True), first.count(False)) == (tried, tried)
    later = answers(choice, 10 * RETRY, {better: 2, not better: 1})
    assert later.count(not better) == 10
    assert choice.acceptance(better) == pytest.approx(0.5)


def test_a_choice_is_taken_back_when_the_other_way_has_become_better() -> None:
    choice = DraftChoice()
    answers(choice, 200, {True: 2, False: 1})
    assert answers(choice, 2, {True: 0, False: 1})[0]
    later = answers(choice, 100, {True: 0, False: 1})
    assert not later[-1] or not later[-2]
    assert later.count(False) > 50


def test_a_drafter_that_never_proposes_is_found_out() -> None:
    choice = DraftChoice()
    made = answers(choice, 100, {True: 0, False: 1})
    assert made.count(True) < 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 12)), max_size=80))
def test_its_state_is_all_that_decides(rounds: list[tuple[bool, int, int]]) -> None:
    one, other = DraftChoice(), DraftChoice()
    for sampled, asked, accepted in rounds:
        one.note(sampled, asked, min(asked, accepted))
    other.state = one.state
    assert [one.choose() for _ in range(2 * RETRY)] == [other.choose() for _ in range(2 * RETRY)]
    for sampled in (True, False):
        assert 0 <= one.acceptance(sampled) <= 1
    assert max(one.state) <= MEMORY


def test_a_round_in_which_nothing_was_asked_for_changes_nothing() -> None:
    choice, other = DraftChoice(), DraftChoice()
    assert (choice.acceptance(True), choice.acceptance(False)) == (0.0, 0.0)
    choice.note(True, 8, 3)
    choice.note(False, 8, 5)
    before = choice.state
    assert before == (8.0, 5.0, 8.0, 3.0)
    choice.note(True, 0, 0)
    assert choice.state == before
    other.state = before
    assert (other.acceptance(True), other.acceptance(False)) == (3 / 8, 5 / 8)


def test_one_of_sixteen_answers_tries_the_other_way() -> None:
    choice = DraftChoice()
    choice.note(True, 1000, 800)
    choice.note(False, 1000, 400)
    assert [choice.choose() for _ in range(32)] == ([True] * 15 + [False]) * 2
