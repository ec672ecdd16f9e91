"""Exploration: first rounds, and how soon the mode that seems worse is tried again."""

from __future__ import annotations

from math import exp

import pytest

from tandem.policies.speculation.awc.exploration import Exploration
from tandem.policies.speculation.window import WindowState

STATE = WindowState(0.5, 0.04, 0.02, 0.0, 1, verify_s=0.05, draft_s=0.01, fused_s=0.02)
DEVICE_S = 0.04 + 0.05 + 6 * 0.01
"""Seconds of a round with a window of six."""


def tries(exploration: Exploration, chosen: int, other: int, gap: float) -> int:
    """Return after how many rounds the other mode is tried."""
    return next(n for n in range(1, 10_000) if exploration.again(STATE, chosen, other, gap) == other)


@pytest.mark.parametrize("gap", [0.1, 3.0])
def test_the_device_is_tried_once_fused_rounds_have_saved_up_for_it(gap: float) -> None:
    lost_s = DEVICE_S * max(0.25, 1 - exp(-gap))
    per_round_s = 0.048 * 0.02
    exploration = Exploration(share=0.048)
    assert tries(exploration, 1, 6, gap) == int(lost_s / per_round_s) + 1
    both = tries(exploration, 1, 6, gap) + int(lost_s / per_round_s) + 1
    assert both == int(2 * lost_s / per_round_s) + 1, "what is left counts for the next time"


def test_fused_rounds_are_tried_more_rarely() -> None:
    """A fifth of the share, as drafting in the cloud may delay the others."""
    assert tries(Exploration(share=0.05), 6, 1, 0.1) == int(0.02 * 0.25 / (0.2 * 0.05 * DEVICE_S)) + 1


def test_it_begins_where_another_process_is() -> None:
    exploration, other = (
        Exploration(start=5, rounds=2, share=0.05),
        Exploration(start=5, rounds=2, share=0.05),
    )
    assert exploration.memory == (2, 0.0, 0.0)
    exploration.first(STATE)
    exploration.again(STATE, 1, 6, 0.1)
    other.memory = exploration.memory
    assert other.memory == (1, pytest.approx(0.05 * 0.02), 1.0)
    assert [each.first(STATE) for each in (other, other)] == [5, None]


@pytest.mark.parametrize(
    "wrong", [{"start": 1}, {"start": 13}, {"rounds": 0}, {"share": -0.1}, {"share": 1.1}]
)
def test_parameters_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 2 ≤ start ≤ 12, rounds ≥ 1 and 0 ≤ share ≤ 1"):
        Exploration(**wrong)  # type: ignore[arg-type]


def test_the_bounds_of_parameters_are_allowed() -> None:
    for start, share in ((2, 0.0), (12, 1.0)):
        exploration = Exploration(start, 1, share)
        unseen = WindowState(0, 0.01, 0, 0, 0)
        assert [exploration.first(unseen) for _ in range(3)] == [start] * 3, (
            "no round has drafted anything yet"
        )
