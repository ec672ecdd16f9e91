"""Limits of steps: long ones are known before short ones are trusted."""

from __future__ import annotations

from tandem.policies.estimators.overdue import FACTOR, FIRST_S, FLOOR_S, StepLimit


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
