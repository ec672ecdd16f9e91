from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.estimators.step_time import SmallSteps, StepTimeModel, StepTimes


@given(
    base_s=st.floats(1e-3, 0.1),
    token_s=st.floats(1e-5, 1e-3),
    sizes=st.lists(st.integers(1, 512), min_size=30),
)
def test_it_learns_a_line(base_s: float, token_s: float, sizes: list[int]) -> None:
    pace = StepTimeModel()
    for size in [*sizes, 1, 512] * 3:
        pace.note(size, base_s + token_s * size)
    assert pace.token_s == pytest.approx(token_s, rel=1e-3)
    assert pace.base_s == pytest.approx(base_s, rel=1e-2)
    assert pace.step_s(100) == pytest.approx(base_s + 100 * token_s, rel=1e-2)


@given(steps=st.lists(st.tuples(st.integers(1, 512), st.floats(1e-5, 1.0)), min_size=1, max_size=50))
def test_whatever_it_sees_times_stay_positive(steps: list[tuple[int, float]]) -> None:
    pace = StepTimeModel()
    for tokens, seconds in steps:
        pace.note(tokens, seconds)
        assert pace.base_s > 0
        assert pace.token_s > 0


def test_it_forgets() -> None:
    pace = StepTimeModel()
    for size in (10, 400) * 200:
        pace.note(size, 0.1 + 1e-3 * size)
    for size in (10, 400) * 600:
        pace.note(size, 0.01 + 1e-4 * size)
    assert pace.step_s(100) == pytest.approx(0.02, rel=0.05)


@given(
    steps=st.lists(st.tuples(st.integers(1, 512), st.floats(1e-5, 1.0)), max_size=40), cut=st.integers(0, 40)
)
def test_whoever_adopts_a_snapshot_goes_on_alike(steps: list[tuple[int, float]], cut: int) -> None:
    one, other = StepTimeModel(), StepTimeModel(1.0, 1.0)
    for tokens, seconds in steps[:cut]:
        one.note(tokens, seconds)
    snapshot = msgspec.msgpack.decode(msgspec.msgpack.encode(one.snapshot()), type=StepTimes)
    other.adopt(snapshot)
    if not one.seen:
        assert other.step_s(1) == 2.0, "nothing was seen that it could adopt"
        return
    for tokens, seconds in steps[cut:]:
        one.note(tokens, seconds)
        other.note(tokens, seconds)
    assert one.seen == len(steps)
    assert other.snapshot() == one.snapshot()
    other.adopt(snapshot)
    assert other.snapshot() == one.snapshot(), "what has seen no more is not adopted"


def test_small_steps_are_as_they_were_measured_and_between() -> None:
    line = StepTimeModel(base_s=0.01, token_s=0.012)
    small = SmallSteps(line)
    assert small.step_s(3) == pytest.approx(line.step_s(3))
    small.note(1, 0.027)
    assert small.step_s(1) == 0.027
    assert small.step_s(3) == pytest.approx(0.027 + 2 * 0.012)
    small.note(5, 0.097)
    assert small.step_s(3) == pytest.approx((0.027 + 0.097) / 2)
    small.note(5, 0.197)
    assert small.step_s(5) == pytest.approx(0.107)
    small.note(SmallSteps.MOST + 1, 9.0)
    assert small.step_s(9) == pytest.approx(0.107 + 4 * 0.012)
    small.note(1, 0.0)
    assert small.step_s(1) > 0
