from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.awc.stabiliser import Stabiliser


@given(st.lists(st.floats(-50, 50), max_size=40))
def test_windows_lie_between_1_and_12(predictions: list[float]) -> None:
    stabiliser = Stabiliser()
    for prediction in predictions:
        assert 1 <= stabiliser.settle(prediction) <= 12


def test_the_average_moves_by_its_weight_and_is_rounded() -> None:
    stabiliser = Stabiliser(ema=0.4)
    assert [stabiliser.settle(p) for p in (4, 10, 10, 10)] == [4, 6, 8, 9]  # 4, 6.4, 7.84, 8.7


def test_fused_needs_two_in_a_row_and_the_window_stays_until_then() -> None:
    stabiliser = Stabiliser(ema=1.0, patience=2)
    assert [stabiliser.settle(p) for p in (6, 1, 5, 1, 1, 1, 7)] == [6, 6, 5, 5, 1, 1, 7]


def test_nonsense_is_refused() -> None:
    for arguments in ({"ema": 0.0}, {"ema": 1.5}, {"patience": 0}):
        with pytest.raises(ValueError, match="needs 0 < ema"):
            Stabiliser(**arguments)  # type: ignore[arg-type]
