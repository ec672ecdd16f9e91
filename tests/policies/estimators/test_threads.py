"""Threads by measured times: fewer on a busy machine, all on a quiet one, and trials cost little."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tandem.policies.estimators.threads import TRIAL, StepThreads

QUIET = {4: 0.020, 2: 0.034, 1: 0.062}
BUSY = {4: 0.150, 2: 0.070, 1: 0.065}


def run(
    threads: StepThreads, steps: int, takes: Callable[[int, int], float], positions: int = 1
) -> list[int]:
    """Return the numbers of threads chosen."""
    chosen = []
    for step in range(steps):
        chosen.append(threads.choose(positions))
        threads.note(positions, takes(step, chosen[-1]))
    return chosen


def test_a_quiet_machine_uses_all_threads_and_trials_cost_what_they_may() -> None:
    chosen = run(StepThreads(4), 20_000, lambda _, count: QUIET[count])
    assert chosen[:TRIAL] == [4] * TRIAL
    assert set(chosen) == {4, 2, 1}
    spent_s, least_s = sum(QUIET[count] for count in chosen), len(chosen) * QUIET[4]
    assert spent_s / least_s < 1.011  # two other numbers, half a percent each


def test_a_busy_machine_uses_fewer_and_a_quiet_one_all_again() -> None:
    threads = StepThreads(4)
    run(threads, 5000, lambda _, count: QUIET[count])
    busy = run(threads, 1000, lambda _, count: BUSY[count])
    assert busy[100:].count(4) <= 2 * TRIAL
    assert sum(BUSY[count] for count in busy) < 1.1 * 1000 * BUSY[1]
    again = run(threads, 5000, lambda _, count: QUIET[count])
    assert again[1500:].count(4) > 0.95 * len(again[1500:])


def test_sizes_of_steps_are_learnt_apart() -> None:
    threads = StepThreads(2)
    run(threads, 200, lambda _, count: {2: 0.1, 1: 0.05}[count])
    assert threads.choose(1) == 1
    assert threads.choose(512) == 2


@pytest.mark.parametrize(("most", "counts"), [(1, {1}), (3, {3, 1}), (6, {6, 3, 1})])
def test_numbers_are_halved(most: int, counts: set[int]) -> None:
    assert set(run(StepThreads(most), 3000, lambda step, _: 0.01)) == counts


def test_a_number_that_takes_three_times_as_long_is_tried_again_when_a_trial_is_half_a_percent() -> None:
    """Four steps of 20 ms more each are half a percent of 16 s: 1,600 steps of 10 ms."""
    chosen = run(StepThreads(2), 4000, lambda _, count: {2: 0.010, 1: 0.030}[count])
    trials = [step for step in range(1, len(chosen)) if chosen[step] == 1 != chosen[step - 1]]
    pauses = [later - sooner - TRIAL for sooner, later in pairwise(trials)]
    assert trials[0] == TRIAL
    assert pauses == [pytest.approx(1600, abs=2)] * len(pauses)
    assert len(pauses) == 2
