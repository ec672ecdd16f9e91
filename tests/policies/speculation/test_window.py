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


def test_dynamic_begins_at_four_and_stays_between_two_and_twelve() -> None:
    policy = DynamicWindow()
    sizes = [
        policy.choose(WindowState(a, 0.0, 0.0, 0.0, 3)) for a in (0.25, 0.75, *[0.76] * 10, *[0.24] * 12)
    ]
    assert sizes == [4, 4, *range(5, 13), 12, 12, *range(11, 1, -1), 2, 2]


@pytest.mark.parametrize(
    "bounds", [{"least": 1, "start": 1, "most": 1}, {"low": 0.0, "high": 0.0}, {"low": 1.0, "high": 1.0}]
)
def test_bounds_may_be_equal(bounds: dict[str, float]) -> None:
    DynamicWindow(**bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"least": 0}, {"start": 1}, {"start": 13}, {"low": 0.8}, {"low": -0.1}, {"high": 1.1}]
)
def test_bounds_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 1 ≤ least ≤ start ≤ most and 0 ≤ low ≤ high ≤ 1"):
        DynamicWindow(**wrong)  # type: ignore[arg-type]


def test_of_other_pairs_nothing_is_known_either() -> None:
    state = WindowState(0.5, 0.0, 0.0, 0.0, 3)
    assert (state.shared_verify_s, state.shared_draft_s, state.verify_growth, state.widened) == (0.0,) * 4
    assert (state.draft_growth, state.base_s, state.position_s, state.helper) == (1.0, 0.0, 0.0, False)
