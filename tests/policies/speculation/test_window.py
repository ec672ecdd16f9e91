from __future__ import annotations

import pytest

from tandem.policies.speculation.window import DynamicWindow, StaticWindow, WindowState


def test_static() -> None:
    assert StaticWindow(7).choose(WindowState(0.1, 0.0, 0.0, 0.0, 3)) == 7
    with pytest.raises(ValueError, match="at least 1"):
        StaticWindow(0)


def test_dynamic_follows_acceptance_within_its_bounds() -> None:
    policy = DynamicWindow(start=3, least=2, most=5)
    first = policy.choose(WindowState(0.0, 0.0, 0.0, 0.0, 0))
    assert first == 3  # nothing was seen yet
    steps = [
        policy.choose(WindowState(a, 0.0, 0.0, 0.0, 3)) for a in (0.8, 0.9, 1.0, 0.5, 0.2, 0.1, 0.0, 0.0)
    ]
    assert steps == [4, 5, 5, 5, 4, 3, 2, 2]
    with pytest.raises(ValueError, match="least ≤ start ≤ most"):
        DynamicWindow(start=9, most=5)
    assert DynamicWindow(start=5, most=5).memory == (5,)


def test_what_is_left_out_of_a_state_is_unknown() -> None:
    state = WindowState(0.5, 0.0, 0.0, 0.0, 3)
    assert (state.verify_s, state.draft_s, state.fused_s, state.alone_s, state.read_s) == (0, 0, 0, 0, 0)
    assert (state.verify_least_s, state.fused_least_s, state.alpha, state.judged, state.prior) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert (state.mean_window, state.drafted, state.behind) == (0, 0, 0)
    assert (state.fused_share, state.own) == (0.5, 1.0)
