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


def narrowed(
    wider: tuple[float, float, float], n: float, mean: float, spread2: float
) -> tuple[float, float, float]:
    """Return a class's logarithm and variances, by what is known of the wider one and `n` observations of it."""
    log_, noise2, doubt2 = wider
    share = n / (n + 3.0)
    noise2 = (1 - share) * noise2 + share * (spread2 + 1e-4)
    return (1 - share) * log_ + share * mean, noise2, (1 - share) * doubt2 + share**2 * noise2 / n


def test_two_observations_by_hand() -> None:
    """Both count for the class and for all; the first one has faded by 5 %, and by time."""
    known = Corrections(noise=0.5, doubt=0.7)
    assert known.of(("cloud",)) == (1.0, pytest.approx(0.5), pytest.approx(0.7))
    known.note(("cloud",), 1.0)
    known.note(("cloud",), 2.0)
    first = 0.95 * 1000 / 1001
    mean, squares = (first + 2.0) / (1 + first), (first + 4.0) / (1 + first)
    every = narrowed((0.0, 0.25, 0.49), 1 + first, mean, squares - mean**2)
    log_, noise2, doubt2 = narrowed(every, 1 + first, mean, squares - mean**2)
    found = known.of(("cloud",))
    assert (log(found.factor), found.noise, found.doubt) == pytest.approx((log_, noise2**0.5, doubt2**0.5))


def test_an_observation_of_less_weight_counts_and_fades_the_others_less() -> None:
    known = Corrections()
    known.note(("cloud",), 1.0)
    known.note(("cloud",), 2.0, weight=0.5)
    seen = known._seen["cloud"]
    first = (1 - 0.5 * 0.05) * 1000 / 1001
    assert (seen.n, seen.logs, seen.squares) == pytest.approx((first + 0.5, first + 1.0, first + 2.0))


def test_a_class_hears_of_its_own_observations_at_once() -> None:
    known, names = Corrections(), ("race", "race t")
    for _ in range(1000):
        known.note(("cloud",), 1.0)
    before = known.of(names).factor
    known.note(names, -1.0)
    assert known.of(names).factor < before


def test_what_is_about_something_else_now_is_forgotten() -> None:
    known, others = Corrections(), Corrections()
    for each in (known, others):
        each.note(("race", "race t phone"), 1.0)
        each.note(("race", "race t laptop"), 2.0)
    assert known.of(("race", "race t phone")) == others.of(("race", "race t phone"))
    known.forget("phone")
    assert known.of(("race", "race t phone")) == known.of(("race", "race new"))
    assert known.of(("race", "race t laptop")) == others.of(("race", "race t laptop"))
