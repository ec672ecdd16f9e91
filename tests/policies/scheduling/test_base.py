"""Load of an engine, and first come, first served, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.policies.scheduling.base import FirstComeFirstServed, fit
from tests.policies.scheduling.test_policies import load


def test_further_output_is_what_is_expected_within_the_clients_limit() -> None:
    crowd = load(3, received=[50, 200, 100], longest=[256, 256, 110], expected=128.0)
    assert crowd.to_come.tolist() == [78.0, 1.0, 10.0]


@pytest.mark.parametrize(
    ("capacity", "places", "width"),
    [(749, 64, 3), (750, 64, 4), (10_000, 64, 53), (10_000, 3, 3), (10, 64, 1)],
)
def test_as_many_run_together_as_hold_what_they_will_on_average(
    capacity: int, places: int, width: int
) -> None:
    """160 tokens, and 0.35 of the 78 to come: 187.3 each."""
    assert load(4, capacity=capacity, places=places).width == width


def test_a_part_of_a_load_is_of_these_requests_in_this_order() -> None:
    part = load(4, tokens=[10, 20, 30, 40], capacity=77).part(np.array([3, 1]))
    assert (part.tokens.tolist(), part.arrival.tolist(), part.capacity, len(part)) == (
        [40, 20],
        [3, 1],
        77,
        2,
    )


def test_what_fits_exactly_fits() -> None:
    crowd = load(4, tokens=[50, 50, 40, 10], capacity=100)
    assert fit(crowd, np.arange(4)).tolist() == [0, 1]
    assert fit(load(4, tokens=[50, 60, 50, 10], capacity=100), np.arange(4)).tolist() == [0, 2]
    assert fit(load(4, tokens=[50, 60, 10, 10], capacity=100, places=2), np.arange(4)).tolist() == [0, 2]
    assert fit(load(4, tokens=[50, 60, 10, 10], capacity=100, places=1), np.arange(4)).tolist() == [0]
    assert fit(load(1, tokens=50, capacity=100), np.arange(0)).tolist() == []


@pytest.mark.parametrize("wrong", [{"reserve": -0.1}, {"reserve": 1.1}, {"interval_s": -1.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 0 ≤ reserve ≤ 1 and interval_s ≥ 0"):
        FirstComeFirstServed(**wrong)


def test_a_policy_may_decide_before_every_step() -> None:
    assert FirstComeFirstServed(interval_s=0.0).interval_s == 0.0
    assert FirstComeFirstServed().interval_s == 1.0


def test_what_was_given_already_is_not_kept_room_for() -> None:
    """One has 40 of at most 100 tokens: 0.5 · 100 − 40 are still kept for it."""
    crowd = load(
        2, running=[True, False], tokens=100, received=[40, 0], longest=100, missing=[0, 99], capacity=259
    )
    assert FirstComeFirstServed(reserve=0.5).choose(crowd).tolist() == [0]
    crowd = load(
        2, running=[True, False], tokens=100, received=[40, 0], longest=100, missing=[0, 99], capacity=260
    )
    assert FirstComeFirstServed(reserve=0.5).choose(crowd).tolist() == [0, 1]
