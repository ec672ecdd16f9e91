from __future__ import annotations

from math import log
from random import Random

import pytest

from tandem.policies.estimators.correction import MOST, RENEWED, Corrections


def test_a_factor_is_learnt_and_what_is_known_of_it_grows_surer() -> None:
    random, known = Random(1), Corrections()
    unseen = known.of(("cloud", "cloud t"))
    assert unseen.factor == 1.0
    for _ in range(200):
        known.note(("cloud", "cloud t"), log(2.0) + random.gauss(0.0, 0.2))
    seen = known.of(("cloud", "cloud t"))
    assert seen.factor == pytest.approx(2.0, rel=0.15)
    assert seen.noise == pytest.approx(0.2, rel=0.4)
    assert seen.doubt < unseen.doubt / 5


def test_a_narrow_class_begins_where_the_wider_one_is() -> None:
    known = Corrections()
    for _ in range(50):
        known.note(("race", "race t", "race t phone"), log(3.0))
    other = known.of(("race", "race t", "race t laptop"))
    assert other.factor == pytest.approx(3.0, rel=0.2)
    assert other.doubt > known.of(("race", "race t", "race t phone")).doubt
    for _ in range(20):
        known.note(("race", "race t", "race t laptop"), 0.0)
    assert (
        known.of(("race", "race t", "race t laptop")).factor
        < 1.4
        < known.of(("race", "race t", "race t phone")).factor
    )


def test_what_has_changed_is_relearnt_in_fifty_observations() -> None:
    known = Corrections()
    for _ in range(500):
        known.note(("cloud",), 0.0)
    for _ in range(50):
        known.note(("cloud",), log(4.0))
    assert known.of(("cloud",)).factor == pytest.approx(4.0, rel=0.2)


def test_what_nobody_tries_is_in_doubt_again() -> None:
    known = Corrections()
    for _ in range(30):
        known.note(("cloud",), log(2.0))
    sure = known.of(("cloud",)).doubt
    for _ in range(5000):
        known.note(("device",), log(2.0))
    assert known.of(("cloud",)).doubt > 1.5 * sure


def test_one_absurd_report_does_little() -> None:
    known = Corrections()
    for _ in range(50):
        known.note(("cloud",), 0.0)
    known.note(("cloud",), 100.0)
    assert log(known.of(("cloud",)).factor) < 0.1 * MOST


def test_no_more_classes_are_kept_than_are_said() -> None:
    known = Corrections(most=10)
    for n in range(100):
        known.note(("cloud", str(n)), 1.0)
    assert log(known.of(("cloud", "99")).factor) > 0.5
    assert len(known._seen) == 10


def test_other_classes_hear_of_an_observation_at_once_at_first_and_soon_later() -> None:
    known = Corrections()
    known.note(("cloud",), 1.0)
    first = known.of(("device",)).factor
    known.note(("cloud",), 1.0)
    assert known.of(("device",)).factor > first
    for _ in range(1000):
        known.note(("cloud",), 0.0)
    before = known.of(("device",)).factor
    for _ in range(RENEWED + 1):
        known.note(("cloud",), 1.0)
    assert known.of(("device",)).factor > before
