"""The arithmetic against its closed forms, and against counting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.arithmetic import FIRST_ALPHA, MAX_WINDOW, expected_tokens

alphas = st.floats(0.01, 0.99)
windows = st.integers(1, MAX_WINDOW)


@given(alphas, windows)
def test_expected_tokens_is_the_papers_formula(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))


def test_expected_tokens_is_what_counting_finds() -> None:
    draw = random.Random(3)
    total = 0
    for _ in range(20_000):
        accepted = 0
        while accepted < 5 and draw.random() < 0.7:
            accepted += 1
        total += accepted + 1
    assert total / 20_000 == pytest.approx(expected_tokens(0.7, 5), rel=0.02)


def test_two_of_three_drafts_are_expected_to_be_accepted_before_any_round() -> None:
    assert pytest.approx(2 / 3) == FIRST_ALPHA
