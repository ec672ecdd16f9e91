"""Model selection: algorithm 2 where switching is free; where it costs, it settles, and does not load all the time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.selection import ModelSelection

LOAD_S = (4.0, 8.0, 16.0)
TAU_S = (10.0, 20.0, 40.0)

times = st.floats(0.1, 100)
models = st.lists(st.tuples(times, times), min_size=1, max_size=5).map(
    lambda pairs: list(zip(*pairs, strict=True))
)


@pytest.mark.parametrize(
    ("current", "budget_s", "full", "expected"),
    [
        (1, 15.0, False, 0),  # too late: a smaller one that is not
        (2, 25.0, False, 1),  # the largest of those
        (2, 5.0, False, 0),  # none is: the smallest
        (0, 5.0, False, 0),  # there is none that is smaller
        (0, 25.0, False, 1),  # time for a larger one
        (0, 50.0, False, 1),  # the first of those
        (0, 25.0, True, 0),  # not while so many wait
        (1, 30.0, False, 1),  # none that is larger would be in time
        (1, 20.0, False, 1),  # just in time
    ],
)
def test_where_loading_takes_no_time_it_is_the_papers_algorithm(
    current: int, budget_s: float, full: bool, expected: int
) -> None:
    selection = ModelSelection((0.0, 0.0, 0.0), current)
    assert selection.choose(TAU_S, budget_s, full) == selection.current == expected


@given(models, st.data(), times, st.booleans())
def test_under_constant_load_it_settles(
    shown: list[tuple[float, ...]], data: st.DataObject, budget_s: float, full: bool
) -> None:
    load_s, tau_s = shown[0], sorted(shown[1])  # the larger, the slower
    selection = ModelSelection(load_s, data.draw(st.integers(0, len(load_s) - 1)))
    chosen = [selection.choose(tau_s, budget_s, full) for _ in range(3000)]
    switches = sum(a != b for a, b in pairwise(chosen))
    assert switches <= len(load_s) - 1
    directions = {b > a for a, b in pairwise(chosen) if a != b}
    assert len(directions) <= 1, "it does not turn back"


@given(
    load_s=st.lists(times, min_size=3, max_size=3),
    jobs=st.lists(st.tuples(times, times, times, st.floats(0, 100), st.booleans()), max_size=200),
    current=st.integers(0, 2),
)
def test_it_never_loads_for_longer_than_it_works(
    load_s: list[float], jobs: list[tuple[float, float, float, float, bool]], current: int
) -> None:
    """Holds for any jobs: it bounds the number of switches."""
    selection, worked_s = ModelSelection(load_s, current), 0.0
    for *tau_s, budget_s, full in jobs:
        before = selection.current
        worked_s += tau_s[before]
        after = selection.choose(tau_s, budget_s, full)
        if after != before:
            assert load_s[after] <= worked_s * (1 + 1e-9)
            worked_s = 0.0


def test_noise_around_a_limit_does_not_make_it_flap() -> None:
    """Budgets around what the middle model takes: the paper's algorithm loads a model for every other job."""
    rng = Random(5)
    budgets = [rng.gauss(20.0, 3.0) for _ in range(2000)]

    def switches(load_s: tuple[float, ...]) -> int:
        selection = ModelSelection(load_s, 1)
        chosen = [selection.choose(TAU_S, budget_s, full=False) for budget_s in budgets]
        return sum(a != b for a, b in pairwise(chosen))

    assert switches((0.0, 0.0, 0.0)) > 800
    assert switches(LOAD_S) < 200
    assert switches(tuple(10 * load_s for load_s in LOAD_S)) < 20


def test_a_job_that_is_later_than_loading_takes_is_helped_at_once() -> None:
    selection = ModelSelection(LOAD_S, 2)
    assert selection.choose(TAU_S, 25.0, full=False) == 1  # 15 s late, 8 s to load
    selection = ModelSelection(LOAD_S, 2)
    assert [selection.choose(TAU_S, 37.0, full=False) for _ in range(3)] == [2, 2, 1]  # 3 s late each time


def test_it_works_for_as_long_as_it_will_load_however_much_there_is_to_spare() -> None:
    selection = ModelSelection((4.0, 8.0), 0)
    assert [selection.choose((2.0, 3.0), 1000.0, full=False) for _ in range(5)] == [0, 0, 0, 1, 1]


def test_what_speaks_against_a_switch_is_taken_off() -> None:
    selection = ModelSelection(LOAD_S, 2)
    assert {selection.choose(TAU_S, budget_s, False) for budget_s in [36.0, 45.0] * 50} == {2}
    for against_s in (15.0, 5.0):  # too little for the larger one, and for the current one as well
        selection = ModelSelection(LOAD_S, 0)
        assert {selection.choose(TAU_S, budget_s, False) for budget_s in [24.0, against_s] * 50} == {0}
    calm, busy = [24.0] * 100, [True, True, False] * 33
    selection = ModelSelection(LOAD_S, 0)
    assert {selection.choose(TAU_S, *now) for now in zip(calm, busy, strict=False)} == {0}, (
        "it must stay calm"
    )


def test_the_current_model_is_one_of_them() -> None:
    with pytest.raises(ValueError, match="no model 3 among 3"):
        ModelSelection(LOAD_S, 3)


@pytest.mark.parametrize(
    ("current", "budget_s", "able", "expected"),
    [
        (0, 25.0, {1, 2}, 1),  # the largest that is in time
        (0, 50.0, {1, 2}, 2),
        (2, 5.0, {0, 1}, 0),  # none is: the smallest
        (2, 25.0, {0, 2}, 0),  # too late: a smaller one that is able
        (2, 5.0, {1, 2}, 1),
        (1, 5.0, {1, 2}, 1),  # there is none that is smaller and able
        (0, 50.0, {0, 2}, 2),  # the first larger one that is able
        (0, 25.0, {0, 2}, 0),
    ],
)
def test_only_models_that_are_able(current: int, budget_s: float, able: set[int], expected: int) -> None:
    selection = ModelSelection((0.0, 0.0, 0.0), current)
    assert selection.choose(TAU_S, budget_s, False, able) == selection.current == expected


def test_one_that_is_not_able_gives_way_whatever_loading_takes() -> None:
    selection = ModelSelection((1e9, 1e9, 1e9), 0)
    assert selection.choose(TAU_S, 25.0, True, {1}) == 1


def test_whoever_switches_it_the_count_begins_anew() -> None:
    selection = ModelSelection(LOAD_S, 2)
    assert [selection.choose(TAU_S, 37.0, full=False) for _ in range(2)] == [2, 2]
    selection.switch(2)
    assert [selection.choose(TAU_S, 37.0, full=False) for _ in range(3)] == [2, 2, 1]


def test_seconds_add_up_from_nothing_and_never_count_below_it() -> None:
    """Loading the smaller model takes 4 s; each job is 3 s late, or 5 s early."""
    selection = ModelSelection((4.0, 8.0), 1)
    assert [selection.choose((10.0, 20.0), budget_s, True) for budget_s in (17.0, 25.0, 17.0, 17.0)] == [
        1,
        1,
        1,
        0,
    ]


def test_a_larger_model_that_spares_part_of_a_second_is_loaded_once_that_adds_up() -> None:
    """Each job leaves 0.5 s to spare, and loading takes a second."""
    selection = ModelSelection((1.0, 1.0), 0)
    assert [selection.choose((10.0, 20.0), 20.5, False) for _ in range(3)] == [0, 1, 1]


def test_a_larger_model_is_not_loaded_for_a_job_that_it_would_be_late_with() -> None:
    """Loading takes less than before, and what was spared suffices for it."""
    selection = ModelSelection((5.0, 5.0), 0)
    assert selection.choose((10.0, 20.0), 21.0, False) == 0
    selection.load_s = (0.1, 0.1)
    assert selection.choose((10.0, 20.0), 19.8, False) == 0
    assert selection.choose((10.0, 20.0), 20.1, False) == 1
