from __future__ import annotations

from math import exp
from random import Random
from statistics import mean

import pytest

from tandem.policies.estimators.coverage import NARROWEST, WIDEST, Coverage


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_four_of_five_intervals_hold_however_wide_they_should_be(scale: float) -> None:
    random, known = Random(1), Coverage()
    held = []
    for _ in range(600):
        held.append(abs(random.gauss(0.0, scale)) <= 1.28 * known.width)
        known.note(held[-1])
    assert mean(held[100:]) == pytest.approx(0.8, abs=0.05)


def test_the_width_is_bounded() -> None:
    narrow, wide = Coverage(), Coverage()
    for _ in range(2000):
        narrow.note(True)
        wide.note(False)
    assert (narrow.width, wide.width) == (NARROWEST, WIDEST)


def test_a_miss_widens_by_four_times_what_a_hold_narrows() -> None:
    """Steps shrink to 0.06, with the root of the number of intervals."""
    known = Coverage()
    assert (known.width, known.seen) == (1.0, 0)
    known.note(False)
    assert known.width == pytest.approx(exp(0.3 * 0.8))
    known.note(True)
    assert known.width == pytest.approx(exp(0.3 * 0.8 - 0.3 / 2**0.5 * 0.2))
    for held in (True, False) * 14:
        known.note(held)
    before = known.width
    known.note(False)
    assert (known.width / before, known.seen) == (pytest.approx(exp(0.06 * 0.8)), 31)
