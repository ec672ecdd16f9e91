"""Doubts: likely sentences are never doubted, and of unlikely ones the worst."""

from __future__ import annotations

from random import Random

import pytest

from tandem.policies.sketch.doubts import LEAST_SEEN, SURE, WORST, Doubts


def test_likely_sentences_are_not_doubted() -> None:
    doubts = Doubts()
    assert not any(doubts.doubts(SURE + n % 6) for n in range(300))


@pytest.mark.parametrize("typical", [-30.0, -200.0])
def test_of_a_model_that_writes_otherwise_only_the_worst_are(typical: float) -> None:
    doubts, random = Doubts(), Random(1)
    told = [(log_p := typical + random.gauss(0, 5), doubts.doubts(log_p)) for _ in range(600)]
    doubted = [log_p for log_p, doubted in told[LEAST_SEEN:] if doubted]
    assert len(doubted) / len(told) == pytest.approx(WORST, abs=0.04)
    assert max(doubted) < typical


def test_a_few_bad_sentences_among_good_ones_are_all_doubted() -> None:
    doubts = Doubts()
    told = [doubts.doubts(-20.0 if n % 10 == 9 else -1.0) for n in range(300)]
    assert told == [n % 10 == 9 for n in range(300)]


def test_the_first_sentences_of_a_model_are_judged_by_themselves() -> None:
    doubts = Doubts()
    assert [doubts.doubts(-10.0) for _ in range(LEAST_SEEN - 1)] == [True] * (LEAST_SEEN - 1)
    assert not Doubts().doubts(0.0)


def test_sentences_are_judged_by_the_latest_ones() -> None:
    """The worst 15 % of at most 256, from the sixteenth on."""
    doubts = Doubts()
    for n in range(19):
        doubts.doubts(-10.0 - n)
    assert [doubts.doubts(log_p) for log_p in (-27.5, -24.5)] == [True, False], (
        "1 of 20, and 5 of 21 are worse"
    )
    for _ in range(256):
        doubts.doubts(0.0)
    assert doubts.doubts(-6.01)
    assert not doubts.doubts(-6.0)
