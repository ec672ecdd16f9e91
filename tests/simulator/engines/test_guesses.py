"""Simulated drafter: its confidence is consistent with the acceptance."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import numpy as np
import pytest

from tandem.simulator.engines.guesses import WIDTH, Guess, Guesses
from tandem.simulator.engines.script import TOKEN, Script
from tandem.simulator.workload import Request

LENGTH = 2000


def said(alpha: float, requests: int = 60) -> list[tuple[Guess, int]]:
    """Guesses after what is right, and the right token of each."""
    script = Script()
    guesses = Guesses(script, alpha / (1 - alpha), seed=1)
    random = np.random.default_rng(5)
    found = []
    for _ in range(requests):
        accepted = bytes((random.random(LENGTH) < alpha).tolist())
        number = script.add(Request(0.0, 3, LENGTH, accepted))[0]
        for position in range(0, LENGTH - 1, 10):
            output = list(range(TOKEN, TOKEN + position))
            found.append((guesses.after(number, output), script.own(number, position)))
    return found


@pytest.mark.parametrize("alpha", [0.6, 0.8])
def test_a_drafter_is_as_often_right_as_it_is_sure(alpha: float) -> None:
    of = said(alpha)
    assert fmean(guess.ids[0] == right for guess, right in of) == pytest.approx(alpha, abs=0.03)
    for low in (0.4, 0.6, 0.8):
        near = [(g, right) for g, right in of if low <= g.probabilities[0] < low + 0.2]
        sure = fmean(float(g.probabilities[0]) for g, _ in near)
        assert fmean(g.ids[0] == right for g, right in near) == pytest.approx(sure, abs=0.06)


def test_its_alternatives_are_as_often_right_as_it_says() -> None:
    of = said(0.6)
    ranks = Counter(guess.ids.tolist().index(right) for guess, right in of if right in guess.ids)
    for rank in range(4):
        expected = fmean(float(guess.probabilities[rank]) for guess, _ in of)
        assert ranks[rank] / len(of) == pytest.approx(expected, abs=0.02)


def test_a_guess_is_a_distribution_the_same_at_any_time() -> None:
    script = Script()
    number = script.add(Request(0.0, 3, 20, bytes([1, 0] * 10)))[0]
    guesses = Guesses(script, 1.5, seed=1)
    for position in range(30):  # also beyond the answer's end, where a wrong token has led
        output = list(range(TOKEN, TOKEN + position))
        once, again = guesses.after(number, output), Guesses(script, 1.5, seed=1).after(number, output)
        assert once.ids.tolist() == again.ids.tolist()
        assert once.probabilities.tolist() == again.probabilities.tolist()
        assert len(set(once.ids.tolist())) == WIDTH
        assert once.probabilities.sum() <= 1 + 1e-9
        assert (np.diff(once.probabilities) <= 0).all()


def test_after_a_wrong_token_nothing_is_right() -> None:
    script = Script()
    number = script.add(Request(0.0, 3, 20, bytes([1] * 20)))[0]
    guesses = Guesses(script, 1.5, seed=1)
    astray = [TOKEN, TOKEN + 1, 3]
    for _ in range(10):
        guess = guesses.after(number, astray)
        assert not set(guess.ids.tolist()) & {script.own(number, p) for p in range(20)}
        astray.append(int(guess.ids[0]))


def test_what_is_recorded_is_said() -> None:
    """The drafter has the recorded confidence and acceptance."""
    script = Script()
    sure, right = (0.9, 0.3, 1.0, 0.55), bytes([1, 0, 1, 0])
    number = script.add(Request(0.0, 3, 4, right, confidence=sure))[0]
    guesses = Guesses(script, 1.5, seed=1)
    for position in range(4):
        guess = guesses.after(number, list(range(TOKEN, TOKEN + position)))
        assert guess.probabilities[0] == pytest.approx(sure[position])
        assert (guess.ids[0] == script.own(number, position)) == bool(right[position])
    astray = guesses.after(number, [3, 3, 3, 3, 3])
    assert astray.probabilities[0] == pytest.approx(sure[1]), "as sure as ever"
