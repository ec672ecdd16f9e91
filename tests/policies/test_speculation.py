"""The arithmetic against its closed forms, and against counting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.speculation import (
    MAX_WINDOW,
    best_window,
    expected_tokens,
    token_s,
)

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


@given(alphas, st.floats(1e-4, 0.2), st.floats(0, 0.3), st.floats(1e-3, 0.2))
def test_the_best_window_is_best(alpha: float, draft_s: float, rtt_s: float, verify_s: float) -> None:
    window, time_s = best_window(alpha, draft_s, rtt_s, verify_s)
    times = {g: token_s(alpha, g, draft_s, rtt_s, verify_s) for g in range(2, MAX_WINDOW + 1)}
    assert time_s == pytest.approx(min(times.values()))
    assert times[window] == pytest.approx(time_s)
