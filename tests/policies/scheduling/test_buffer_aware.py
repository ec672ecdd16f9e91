"""Formulas of TokenFlow's scheduling by hand; how it decides is in test_policies."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest

from tandem.policies.scheduling.buffer_aware import BufferAware
from tests.policies.scheduling.test_policies import load

STEP_S = 0.01 + 3 * 1e-4
"""Seconds of a step of three."""


def test_a_request_comes_back_by_loading_or_recomputing_whichever_is_sooner() -> None:
    """One that runs would have all of its tokens to fetch."""
    crowd = load(
        4, running=[False, False, False, True], missing=[100, 100, 100, 0], stored=[60, 100, 0, 0],
        tokens=160, copy_s=1e-5, copy_queue_s=0.002, token_s=1e-4,
    )  # fmt: skip
    seconds = [0.002 + 60e-5 + 40e-4, 0.002 + 100e-5, 0.01, 0.002 + 160e-5]
    assert BufferAware()._return_s(crowd) == pytest.approx(seconds)
    assert BufferAware()._return_s(replace(crowd, copy_s=inf)) == pytest.approx([0.01, 0.01, 0.01, 0.016])


def test_a_buffer_covers_the_return_and_the_next_decision_so_many_times_over() -> None:
    crowd = load(2, rate=[10.0, 5.0], interval_s=0.3, base_s=0.02)
    needed = BufferAware(conservativeness=3.0)._needed(crowd, np.array([0.1, 0.4]))
    assert needed == pytest.approx([3 * 10 * 0.42, 3 * 5 * 0.72])


def test_utility_is_the_value_of_the_tokens_and_of_the_stall_that_they_avert() -> None:
    """One runs, one must come back, one has not begun."""
    crowd = load(
        3, running=[True, False, False], received=[50, 50, 0], buffer=[0.5, 15.0, 0.0], rate=[10.0, 2.0, 10.0],
        expected=100.0,
    )  # fmt: skip
    return_s = np.array([9.0, 0.1, 0.3])
    utility = BufferAware(stall_weight=50.0, start_weight=4.0)._utility(crowd, return_s, width=8)
    runs, back, new = 0.2 / STEP_S, *((0.2 - STEP_S) / STEP_S * 0.2 / (0.2 + wait_s) for wait_s in (0.1, 0.3))
    left = 15.0 - 2.0 * 0.2
    assert utility == pytest.approx(
        [
            runs + 50 * (1 - exp(-runs)) + 1.0,  # its reader eats the half token that is left
            # tokens at 15 % of the output have half their value
            0.5 * back + 50 * (exp(-left) - exp(-left - back)),
            new + 4 * (1 - exp(-new)),
        ]
    )
    narrow = BufferAware()._utility(crowd, return_s, width=1)
    alone = 0.2 / (0.01 + 1e-4)
    assert narrow[0] == pytest.approx(alone + 50 * (1 - exp(-alone)) + 1.0)


def test_a_step_longer_than_the_interval_leaves_nothing_to_one_that_must_come_back() -> None:
    crowd = load(1, running=False, buffer=0.0, base_s=0.5, expected=100.0)
    assert BufferAware()._utility(crowd, np.array([0.1]), width=1) == pytest.approx([0.0])


def test_one_comes_back_after_the_other_from_when_the_last_one_was_back() -> None:
    """Time in which none came back counts for a second at most."""
    policy, crowd = BufferAware(), load(2, capacity=100)
    policy._returns_at = 5.0
    back_s = np.array([0.25, 0.5])
    for now_s, begin_s in ((5.5, 5.0), (6.0, 5.0), (8.0, 7.0)):
        times = policy._return_times(replace(crowd, now_s=now_s), back_s)
        assert times == pytest.approx([begin_s, begin_s + 0.25, begin_s + 0.75])


def test_the_last_chosen_gives_way_to_others_of_more_utility_that_fit_in_its_place() -> None:
    crowd = load(5, tokens=[100, 100, 60, 50, 40], capacity=200, places=3)
    order, safe = np.arange(5), np.zeros(5, dtype=np.bool_)
    chosen = np.array([0, 1])

    def swapped(utility: list[float], **changes: object) -> list[int]:
        there = replace(crowd, **changes)  # type: ignore[arg-type]
        return BufferAware()._swap(there, chosen, order, np.array(utility), safe).tolist()

    assert swapped([9, 3, 2, 2, 2]) == [0, 2, 4], "60 and 40 of 100"
    assert swapped([9, 3, 2, 2, 1]) == [0, 1], "no more than it is worth"
    assert swapped([9, 3, 0, 2, 2]) == [0, 3, 4], "none that is worth nothing"
    assert swapped([9, 1, 2, 2, 2], places=2) == [0, 2]
    safe[1] = True
    assert swapped([9, 1, 2, 2, 2]) == [0, 1], "it must not be displaced"
    safe[1] = False
    everybody = BufferAware()._swap(crowd, chosen, chosen, np.array([1.0, 0.0, 9, 9, 9]), safe)
    assert everybody.tolist() == [0, 1]


def newcomers(**changes: object) -> list[int]:
    """Return which of two newcomers are let in beside two readers who have begun."""
    crowd = load(
        4, received=[9, 9, 0, 0], running=[True, True, False, False], buffer=[30.0, 30.0, 0.0, 0.0], rate=40.0,
        missing=[0, 0, 20, 20], base_s=0.01, token_s=0.0, interval_s=0.2,
    )  # fmt: skip
    crowd = replace(crowd, **changes)  # type: ignore[arg-type]
    served = BufferAware(headroom=0.9)._working_set(crowd, 2, np.array([0.1, 0.1, 0.0, 0.0]))
    assert served[:2].all()
    return np.flatnonzero(served[2:]).tolist()


def test_newcomers_are_let_in_as_long_as_the_rates_stay_within_the_capacity() -> None:
    """Two at a time make 200 tokens/s, of which readers may claim 180."""
    assert newcomers() == [0, 1]
    assert newcomers(rate=np.full(4, 45.0)) == [0, 1]
    assert newcomers(rate=np.full(4, 46.0)) == [0]
    assert newcomers(rate=np.array([45.0, 45.0, 90.0, 1.0])) == [0]
    assert newcomers(rate=np.array([45.0, 45.0, 91.0, 1.0])) == []
    assert newcomers(rate=np.full(4, 46.0), arrival=np.array([0, 1, 3, 2])) == [1], "the older one"


def test_newcomers_are_let_in_as_long_as_the_buffers_last_for_a_turn() -> None:
    """Four turns of two at a time take 0.4 s, for half of which 160 tokens/s are read."""
    assert newcomers(buffer=np.array([33.0, 0.0, 0.0, 0.0])) == [0, 1]
    assert newcomers(buffer=np.array([31.0, 0.0, 0.0, 0.0])) == [0], "120 tokens/s for half of 0.3 s"
    assert newcomers(buffer=np.array([17.0, 0.0, 0.0, 0.0])) == []
    # Their prompts take 20 ms each, in which those who have begun read 80 tokens/s.
    prompts = {"token_s": 1e-3, "base_s": 0.008}
    assert newcomers(buffer=np.array([33.0, 0.0, 0.0, 0.0]), **prompts) == [0]
    assert newcomers(buffer=np.array([35.5, 0.0, 0.0, 0.0]), **prompts) == [0, 1]


def test_a_newcomer_that_fits_beside_all_others_costs_them_nothing() -> None:
    crowd = load(3, received=[9, 9, 0], rate=500.0, buffer=0.0, running=[True, True, False])
    served = [BufferAware()._working_set(crowd, width, np.zeros(3))[2] for width in (2, 3)]
    assert served == [False, True]


@pytest.mark.parametrize(("shrink", "let_in"), [(0.0, 2), (0.25, 1), (0.5, 1), (1.0, 0)])
def test_memory_that_is_not_used_is_shared_out_a_part_at_a_time(shrink: float, let_in: int) -> None:
    """Two of four places are taken: 4 − λ · (4 − 2) are scheduled."""
    crowd = load(4, received=[9, 9, 0, 0], running=[True, True, False, False], rate=1.0)
    served = BufferAware(shrink=shrink)._working_set(crowd, 4, np.zeros(4))
    assert np.count_nonzero(served[2:]) == let_in


def test_of_those_that_must_not_be_displaced_the_one_with_the_least_to_read_goes_first() -> None:
    crowd = load(3, received=[9, 9, 0], buffer=[2.0, 1.0, 0.0], running=[True, True, False], places=1)
    assert BufferAware().choose(crowd).tolist() == [1]
    faster = replace(crowd, rate=np.array([30.0, 10.0, 10.0]))
    assert BufferAware().choose(faster).tolist() == [0], "two tokens last it a fifteenth of a second"
