from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.awc.stabiliser import Stabiliser


@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), max_size=40))
def test_windows_lie_between_1_and_12(predictions: list[tuple[float, bool]]) -> None:
    stabiliser = Stabiliser()
    for prediction, fused in predictions:
        assert 1 <= stabiliser.stabilise(prediction, fused) <= 12


def test_the_average_moves_by_its_weight_and_is_rounded() -> None:
    stabiliser = Stabiliser(ema=0.4)
    windows = [stabiliser.stabilise(p, fused=False) for p in (4, 10, 10, 10)]
    assert windows == [4, 6, 8, 9]  # 4, 6.4, 7.84, 8.7


def test_fused_needs_two_in_a_row_and_the_window_stays_until_then() -> None:
    stabiliser = Stabiliser(ema=1.0, patience=2)
    wished = [(6, False), (6, True), (5, False), (4, True), (4, True), (7, True), (7, False)]
    assert [stabiliser.stabilise(*wish) for wish in wished] == [6, 6, 5, 5, 1, 1, 7]


def test_the_way_to_fused_and_back_leads_over_no_narrower_windows() -> None:
    stabiliser = Stabiliser()
    modes = [False] * 3 + [True] * 5 + [False] * 3
    assert {stabiliser.stabilise(12, fused) for fused in modes} == {12, 1}


def test_windows_are_averaged_in_fused_mode_too() -> None:
    stabiliser = Stabiliser()
    for prediction in (3.0, *[11.0] * 20):
        stabiliser.stabilise(prediction, fused=True)
    assert stabiliser.stabilise(11.0, fused=False) == 11


def test_nonsense_is_refused() -> None:
    for arguments in ({"ema": 0.0}, {"ema": 1.5}, {"patience": 0}):
        with pytest.raises(ValueError, match="needs 0 < ema"):
            Stabiliser(**arguments)  # type: ignore[arg-type]
