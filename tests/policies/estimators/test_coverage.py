from __future__ import annotations

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
