from __future__ import annotations

from random import Random

import pytest

from tandem.policies.estimators.calibration import ASSUMED, Calibration


def test_a_confidence_is_taken_at_its_word_first() -> None:
    accepted = Calibration()
    assert [accepted(p) for p in (0.0, 0.33, 1.0)] == [0.0, 0.33, 1.0]
    assert accepted.mean == pytest.approx(ASSUMED)


def test_one_verdict_weighs_little() -> None:
    accepted = Calibration()
    accepted.note(0.9, False)
    assert accepted(0.9) == pytest.approx(8 * 0.9 / 9)
    assert accepted(0.5) == 0.5, "another bin"
    assert accepted.mean == pytest.approx(8 * ASSUMED * 0.98 / (8 * 0.98 + 1))


def test_a_drafter_that_overrates_itself_is_found_out_and_forgiven() -> None:
    accepted, random = Calibration(), Random(1)
    for _ in range(1000):
        accepted.note(0.95, random.random() < 0.4)
    assert accepted(0.95) == pytest.approx(0.48, abs=0.12)
    assert accepted.mean == pytest.approx(0.4, abs=0.12)
    for _ in range(300):
        accepted.note(0.95, True)
    assert accepted(0.95) > 0.95
