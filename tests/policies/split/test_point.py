from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split import LinearDelay, Refusal, SplitDevice, SplitPoint, Workload, choose_split_point
from tandem.policies.split.point import SplitDecision, round_s, ttft_s

DEVICE = SplitDevice(
    layer_s=1e-3,
    prefill_layer_s=1e-4,
    adapter_s=5e-4,
    head_s=1.5e-3,
    up_bytes_s=1e6,
    down_bytes_s=2e6,
    rtt_s=0.01,
)
WORK = Workload(layers=10, token_bytes=1000, prompt_tokens=100, mu=9, delay_s=LinearDelay(0.02, 1e-3))
POINTS = [SplitPoint(1, 0.9, 0.3), SplitPoint(2, 0.5, 0.5), SplitPoint(4, 0.1, 0.6)]

points = st.lists(
    st.builds(SplitPoint, m=st.integers(1, 9), recovery=st.floats(0, 1), alpha=st.floats(0, 1)), max_size=6
)


def test_a_round_and_the_first_token_by_hand() -> None:
    # a token through two layers, the head; 10 ms of latency, 1 ms up, 0.5 ms down; eight of ten layers of g(10)
    assert round_s(2, 0, DEVICE, WORK) == pytest.approx(0.0035 + 0.0115 + 0.8 * 0.030)
    # three tokens; two drafted; g(12)
    assert round_s(2, 2, DEVICE, WORK) == pytest.approx(0.0115 + 0.0145 + 0.8 * 0.032)
    assert ttft_s(2, DEVICE, WORK) == pytest.approx(0.0215 + 0.1105 + 0.8 * 0.129)


def test_the_best_draft_is_found_for_a_split() -> None:
    choice = choose_split_point(POINTS[1:2], DEVICE, WORK, 0.5)
    assert isinstance(choice, SplitDecision)
    assert (choice.m, choice.draft) == (2, 2)
    assert choice.tpot_s == pytest.approx(0.0516 / 1.75)
    assert choice.ttft_s == pytest.approx(0.2352)


def test_it_says_why_there_is_none() -> None:
    assert choose_split_point(POINTS, DEVICE, WORK, 0.05) is Refusal.LEAKAGE
    assert choose_split_point([], DEVICE, WORK, 1.0) is Refusal.LEAKAGE
    assert choose_split_point(POINTS, DEVICE, WORK, 1.0, most_ttft_s=0.1) is Refusal.TTFT


def test_a_slow_device_keeps_fewer_layers() -> None:
    slow = SplitDevice(0.05, 0.01, 0.02, 0.02, 1e6, 2e6)
    fast = SplitDevice(1e-5, 1e-6, 1e-5, 1e-5, 1e6, 2e6)
    chosen = [choose_split_point(POINTS, device, WORK, 1.0) for device in (slow, fast)]
    assert [choice.m for choice in chosen if isinstance(choice, SplitDecision)] == [1, 4]


@given(points, st.floats(0, 1), st.one_of(st.just(float("inf")), st.floats(0, 0.5)))
def test_the_owners_limit_is_obeyed_and_nothing_allowed_is_faster(
    table: list[SplitPoint], most_recovery: float, most_ttft_s: float
) -> None:
    choice = choose_split_point(table, DEVICE, WORK, most_recovery, most_ttft_s)
    allowed = [point for point in table if point.recovery <= most_recovery]
    in_time = [point for point in allowed if ttft_s(point.m, DEVICE, WORK) <= most_ttft_s]
    if isinstance(choice, Refusal):
        assert not in_time
        assert (choice is Refusal.LEAKAGE) == (not allowed)
        return
    assert choice.m in {point.m for point in in_time}
    assert choice.ttft_s <= most_ttft_s
    for point in in_time:
        alone = choose_split_point([point], DEVICE, WORK, 1.0)
        assert isinstance(alone, SplitDecision)
        assert choice.tpot_s <= alone.tpot_s
