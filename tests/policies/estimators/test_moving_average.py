from __future__ import annotations

import pytest

from tandem.policies.estimators.moving_average import MovingAverage


def test_it_moves_as_hat_has_it() -> None:
    average = MovingAverage(assumed=7.0)
    assert average.value == 7.0
    average.note(10.0)
    assert average.value == 10.0, "what is measured replaces what was assumed"
    average.note(20.0)
    assert average.value == pytest.approx(0.8 * 10 + 0.2 * 20)


def test_whoever_is_given_its_memory_goes_on_alike() -> None:
    for samples in ([], [3.0], [3.0, 5.0]):
        one, other = MovingAverage(1.0), MovingAverage(2.0)
        for sample in samples:
            one.note(sample)
        other.memory = one.memory
        one.note(9.0)
        other.note(9.0)
        assert other.value == one.value


def test_nothing_is_assumed_unless_it_is_said() -> None:
    assert MovingAverage().value == 0.0
