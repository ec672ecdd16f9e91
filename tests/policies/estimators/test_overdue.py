"""Limits of steps: long ones are known before short ones are trusted."""

from __future__ import annotations

import pytest

from tandem.policies.estimators.overdue import FACTOR, FIRST_S, FLOOR_S, AnswerLimit, StepLimit


def test_the_limit_follows_what_steps_took_and_what_this_one_should_take() -> None:
    limit = StepLimit()
    assert limit.limit_s(0.01) == FIRST_S
    assert limit.limit_s(10.0) == FACTOR * 10.0
    limit.note(1.0)
    assert limit.limit_s(0.01) == FACTOR
    assert limit.limit_s(2.0) == FACTOR * 2.0
    for _ in range(200):
        limit.note(0.02)
    assert limit.limit_s(0.02) == FLOOR_S


def test_an_answer_that_does_not_come_tells_of_a_step_that_does_not_end() -> None:
    limit = AnswerLimit()
    assert limit.overdue_s(1e6, reads=False, stopped=True) == 0.0, "nothing was asked"
    limit.asked(0.0)
    assert limit.overdue_s(FIRST_S + 1.0, reads=False, stopped=False) == 1.0
    limit.answered(1.0)
    limit.asked(10.0)
    assert limit.overdue_s(11.0 + FACTOR, reads=False, stopped=False) == 1.0
    assert limit.overdue_s(11.0 + FACTOR, reads=True, stopped=False) == 0.0
    assert limit.overdue_s(11.0 + FIRST_S, reads=True, stopped=False) == 1.0
    assert limit.overdue_s(10.5, reads=True, stopped=True) == 0.5, "nothing is to be waited for"
    limit.answered(12.0)
    assert limit.overdue_s(1e6, reads=False, stopped=True) == 0.0
    limit.asked(20.0)
    assert limit.overdue_s(21.0 + 2 * FACTOR, reads=False, stopped=False) == 1.0, "the last one took 2 s"


def test_a_long_step_is_remembered_for_a_while() -> None:
    """Three times the longest one, which fades by 3 % a step; three seconds at least, and thirty for the first."""
    limit = StepLimit()
    assert limit.limit_s(0.0) == 30.0
    limit.note(4.0)
    limit.note(0.1)
    assert limit.limit_s(0.1) == pytest.approx(3 * 4.0 * 0.97)
    for _ in range(200):
        limit.note(0.1)
    assert limit.limit_s(0.1) == 3.0
