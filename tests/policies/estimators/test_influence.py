"""One account's share of what is learnt."""

from __future__ import annotations

from random import Random

import pytest

from tandem.policies.estimators.correction import FADE
from tandem.policies.estimators.influence import KEPT, SHARE, Influence


def test_whoever_is_alone_teaches_everything() -> None:
    influence = Influence()
    assert all(influence.admits("me") for _ in range(5000))


def test_others_that_have_left_are_forgotten() -> None:
    influence = Influence()
    for n in range(200):
        influence.admits(f"user {n}")
    admitted = [influence.admits("me") for _ in range(8000)]
    assert not all(admitted)
    assert all(admitted[-100:])


@pytest.mark.parametrize("flood", [0.3, 0.6, 0.95])
def test_one_account_is_at_most_its_share(flood: float) -> None:
    """Counted as the estimates count, and nobody else is kept from teaching."""
    influence, random = Influence(), Random(7)
    for n in range(40):
        influence.admits(f"user {n}")
    own, every = 0.0, 20.0
    for _ in range(1000):
        floods = random.random() < flood
        admitted = influence.admits("flood" if floods else f"user {random.randrange(50)}")
        assert admitted or floods
        if admitted:
            own, every = own * FADE + floods, every * FADE + 1.0
        assert own <= SHARE * every + 1.0


def test_memory_is_bounded_and_numbers_stay_finite() -> None:
    influence = Influence()
    assert all(influence.admits(str(n)) for n in range(KEPT + 2000))
    assert len(influence._by_account) == KEPT
    assert influence._all / influence._unit == pytest.approx(1 / (1 - FADE))


def test_reports_of_others_from_which_on_nobody_counts_as_the_only_one() -> None:
    influence = Influence()
    assert all(influence.admits("me") for _ in range(3))
    assert all(influence.admits("you") for _ in range(2))
    assert not influence.admits("me"), "mine are 0.95² + 0.95³ + 0.95⁴, yours 0.95 + 1"
