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


def test_whoever_is_given_its_memory_goes_on_alike() -> None:
    one, other = Calibration(), Calibration()
    for confidence, accepted in ((0.95, True), (0.95, False), (0.42, True), (1.0, True), (0.0, False)):
        one.note(confidence, accepted)
    other.memory = one.memory
    other.note(0.42, False)
    one.note(0.42, False)
    assert [other(p) for p in (0.0, 0.42, 0.95, 1.0)] == [one(p) for p in (0.0, 0.42, 0.95, 1.0)]
    assert (other.mean, other.memory) == (one.mean, one.memory)
