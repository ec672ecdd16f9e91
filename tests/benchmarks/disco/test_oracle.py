"""The oracle of dispatch: nothing is better, and nothing of the policies is in it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.benchmarks.disco.data import SERVICES
from tandem.benchmarks.disco.oracle import Choices, Plan, Times, gap, solve
from tandem.benchmarks.disco.sweep import gaps
from tandem.policies.race.dispatch import Side

choices_ = st.lists(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=4,
        unique_by=lambda each: each[0],
    ).map(sorted),
    min_size=1,
    max_size=4,
)


def made(lists: list[list[tuple[int, int]]]) -> list[Choices]:
    return [Choices(1, *np.array(each, float).T) for each in lists]


@given(choices_, st.integers(0, 40))
def test_the_optimum_meets_its_dual_and_no_plan_beats_it(
    lists: list[list[tuple[int, int]]], room: int
) -> None:
    budget = sum(each[0][0] for each in lists) + room
    found = solve(made(lists), budget)
    assert found.total_s == pytest.approx(found.bound_s, abs=1e-9), "the dual proves it"
    whole = [plan for plan in product(*lists) if sum(tokens for tokens, _ in plan) <= budget]
    assert found.total_s <= min(sum(ttft_s for _, ttft_s in plan) for plan in whole) + 1e-9


def test_a_choice_may_be_split() -> None:
    """Half a step of 10 tokens that saves 4 s."""
    assert solve(made([[(0, 5), (10, 1)]]), 5.0).total_s == pytest.approx(3.0)


def test_the_first_token_comes_from_whoever_is_first() -> None:
    times = Times(np.array([3.0, 1.0]))
    waits_s = np.array([0.0, 1.0, 2.0, np.inf])
    assert times.late(waits_s).tolist() == [1.0, 0.5, 0.5, 0.0]
    assert times.first_s(waits_s, 0.5).tolist() == [0.5, (1 + 1.5) / 2, (1 + 2.5) / 2, 2.0]
    assert times.waits_s(np.inf).tolist() == [np.inf, 3.0, 1.0, 0.0]
    assert times.waits_s(2.0).tolist() == [2.0, 1.0, 0.0]


def test_a_plan_is_measured_at_what_it_spends() -> None:
    """Two prompts, of which the budget lets one have the device at once: the short one gains more for a token."""
    tokens, times = np.array([1, 10]), Times(np.array([2.0]))
    races = np.ones(2, bool)
    good, bad = (np.array(waits_s) for waits_s in ([0.0, np.inf], [np.inf, 0.0]))
    assert gap(Plan(tokens, races, good), 100.0, times, Side.DEVICE) == pytest.approx(0.0)
    assert gap(Plan(tokens, races, bad), 100.0, times, Side.DEVICE) > 0.05
    slow, races = Times(np.array([0.0])), np.array([False, True])
    assert gap(Plan(tokens, races, np.zeros(2)), 10.0, slow, Side.SERVER) == pytest.approx(0.0)


@pytest.mark.parametrize("side", Side)
def test_discos_plans_are_near_the_oracles(side: Side) -> None:
    """Also where a budget ends within prompts of one length, of which there are only four. What was learnt is not
    what is asked."""
    found = gaps(np.array([4, 12, 20, 60]), SERVICES["DeepSeek"].ttft(), side, 1, keeps_tail=True)
    assert found.min() > -1e-9
    assert found.mean() < 0.01
    assert found.max() < 0.06
