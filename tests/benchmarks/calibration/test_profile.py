"""Costs are what the counters of a live deployment say."""

from __future__ import annotations

import pytest

from tandem.benchmarks.calibration.profile import Profile, Samples, fit, outer, whole
from tandem.engine.base import EngineStats


def test_a_fit_finds_what_steps_cost_and_nothing_below_zero() -> None:
    rows = [
        (steps, steps * tokens, steps * sequences)
        for steps in (1, 2, 5)
        for tokens, sequences in ((8, 8), (40, 8), (3, 1))
    ]
    times_s = [0.02 * steps + 0.001 * tokens + 0.002 * sequences for steps, tokens, sequences in rows]
    assert fit(rows, times_s) == pytest.approx([0.02, 0.001, 0.002])
    falling = [0.02 * steps - 0.0001 * tokens for steps, tokens, _ in rows]
    assert min(fit(rows, falling)) == 0.0


def test_positions_are_counted_once() -> None:
    stats = EngineStats(
        steps=7,
        tokens_prefilled=100,
        tokens_generated=30,
        tokens_drafted=24,
        tokens_verified=20,
        tokens_accepted=18,
    )
    assert whole(stats) == (7, 100 + 20 + 12, 12)
    assert outer(stats) == (7, 124), "what it judges, it judges between steps"


def test_two_profiles_are_taken_together() -> None:
    profiles = []
    for base_s in (0.01, 0.02):
        target, ends = Samples(whole), Samples(outer)
        target.rows = [(1, tokens, 1) for tokens in (1, 5, 9)]
        target.steps_s = [base_s + 0.001 * tokens for _, tokens, _ in target.rows]
        target.calls_s = [0.001]
        ends.rows = [(1, tokens) for tokens in (1, 4, 8)]
        ends.steps_s = [base_s / 2 + 0.0005 * tokens for _, tokens in ends.rows]
        profiles.append(Profile(target, ends, [0.002, 0.003]))
    costs = (profiles[0] + profiles[1]).costs()
    assert costs.timer.step_s(5, 1, 0) == pytest.approx(0.015 + 0.005)
    assert costs.call_s == 0.001
    assert costs.ends is not None
    assert costs.ends.head_s == 0.0025
    assert costs.ends.step_s(4, 1, 0) + costs.ends.head_s == pytest.approx(0.0075 + 0.002)
    assert Profile(profiles[0].target).costs().ends is None
