from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split import CloudMonitor, DeviceMonitor, LinearDelay, MovingDelay

batches = st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-5, 2.0)), max_size=40)


@given(batches.filter(bool), st.integers(1, 4096), st.floats(1e-5, 2.0))
def test_hats_equation_2_holds_at_the_size_that_was_seen(
    seen: list[tuple[int, float]], size: int, seconds: float
) -> None:
    g = MovingDelay()
    for batch in seen:
        g.note(*batch)
    before = g(size)
    g.note(size, seconds)
    assert g(size) == pytest.approx(0.8 * before + 0.2 * seconds)


@given(batches, st.floats(0, 1e4), st.floats(0, 1e4))
def test_g_never_falls_and_stays_above_0(seen: list[tuple[int, float]], one: float, other: float) -> None:
    g = MovingDelay()
    for batch in seen:
        g.note(*batch)
    small, large = sorted((one, other))
    assert 0 < g(small) <= g(large)
    assert g.line(large) == pytest.approx(g(large))


def test_one_batch_is_enough_to_begin_with() -> None:
    g = MovingDelay()
    g.note(64, 0.5)
    assert g(64) == pytest.approx(0.5)
    assert 0 < g(1) < 0.5 < g(1000)


@given(st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3))
def test_sizes_between_and_beyond_follow_the_line(base_s: float, token_s: float) -> None:
    g = MovingDelay()
    for size in (1, 16, 256, 64, 8) * 12:
        g.note(size, base_s + token_s * size)
    for size in (0, 100, 2000):
        assert g(size) == pytest.approx(base_s + token_s * size, rel=0.02)


def test_a_slower_cloud_is_slower_at_all_sizes() -> None:
    g = MovingDelay()
    for size in (10, 100) * 30:
        g.note(size, 0.01 + 1e-4 * size)
    for _ in range(12):
        g.note(10, 2 * (0.01 + 1e-4 * 10))
    assert g(10) == pytest.approx(0.022, rel=0.1)
    assert g(100) > 1.4 * 0.02


def test_mu_moves() -> None:
    cloud = CloudMonitor()
    assert cloud.mu == 0.0
    cloud.note_batch(10, 0.02)
    cloud.note_batch(60, 0.05)
    assert cloud.mu == pytest.approx(0.8 * 10 + 0.2 * 60)
    cloud.note_overhead(-1.0)
    assert cloud.overhead_s == 0.0


def test_bandwidths_move_from_what_was_assumed() -> None:
    device = DeviceMonitor(up_bytes_s=1e6, down_bytes_s=2e6, rtt_s=0.05)
    assert (device.up_bytes_s, device.down_bytes_s, device.rtt_s) == (1e6, 2e6, 0.05)
    device.note_up(8000, 0.001)
    device.note_up(8000, 0.002)
    device.note_down(6000, 0.001)
    device.note_rtt(0.02)
    assert device.up_bytes_s == pytest.approx(0.8 * 8e6 + 0.2 * 4e6)
    assert device.down_bytes_s == pytest.approx(6e6)
    assert device.rtt_s == 0.02
    device.note_up(0, 1.0)
    device.note_down(8000, 0.0)
    assert device.up_bytes_s == pytest.approx(7.2e6), "neither says anything"
    assert device.down_bytes_s == pytest.approx(6e6)
    with pytest.raises(ValueError, match="above 0"):
        DeviceMonitor(up_bytes_s=0)


def test_branches_share_a_step() -> None:
    device = DeviceMonitor()
    for branches in (1, 4) * 20:
        device.note_draft(branches, 0.01 + 0.001 * branches)
    assert device.draft_s(1) == pytest.approx(0.011, rel=0.01)
    assert device.draft_s(8) == pytest.approx(0.018, rel=0.02)


@given(batches, batches)
def test_whoever_is_given_a_monitors_memory_goes_on_alike(
    before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> None:
    ours, theirs = (CloudMonitor(), DeviceMonitor(3e6, 4e6, 0.01)), (CloudMonitor(), DeviceMonitor())
    for tokens, seconds in before:
        ours[0].note_batch(tokens, seconds)
        ours[0].note_overhead(seconds)
        ours[1].note_draft(tokens, seconds)
        ours[1].note_up(tokens, seconds)
    theirs[0].memory, theirs[1].memory = ours[0].memory, ours[1].memory
    for tokens, seconds in after:
        for cloud, device in (ours, theirs):
            cloud.note_batch(tokens, seconds)
            device.note_draft(tokens, seconds)
            device.note_down(tokens, seconds)
    assert theirs[0].memory == ours[0].memory
    assert theirs[1].memory == ours[1].memory


def test_a_line() -> None:
    assert LinearDelay(0.01, 0.001)(5) == pytest.approx(0.015)


def test_a_crossing_that_nobody_saw_arrive() -> None:
    """Small ones tell of the latency, large ones of the bandwidths."""
    device = DeviceMonitor(1e6, 2e6)
    device.note_crossing(1000, 2000, 0.032)
    assert device.rtt_s == pytest.approx(0.03)
    assert (device.up_bytes_s, device.down_bytes_s) == (1e6, 2e6)
    device.note_crossing(1e6, 0, 0.53)
    assert (device.up_bytes_s, device.down_bytes_s) == (pytest.approx(2e6), 2e6)
    device.note_crossing(1e6, 1e6, 2.03)  # twice as long as was expected of each way
    assert device.down_bytes_s == pytest.approx(1e6)
    assert device.up_bytes_s == pytest.approx(0.8 * 2e6 + 0.2 * 1e6)
    device.note_crossing(1e6, 1e6, 0.01)  # sooner than light: that says nothing
    assert device.down_bytes_s == pytest.approx(1e6)


def test_a_link_is_assumed_to_be_hats_middle() -> None:
    device = DeviceMonitor()
    assert (device.up_bytes_s, device.down_bytes_s, device.rtt_s) == (7.5e6, 12.5e6, 0.0)
    for wrong in ((0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(ValueError, match="bandwidths must be above 0"):
            DeviceMonitor(*wrong)


def test_a_crossing_of_few_bytes_tells_the_latency_and_one_of_many_the_bandwidths() -> None:
    """Both by equal factors."""
    device = DeviceMonitor(1e6, 2e6, 0.0)
    device.note_crossing(10_000, 6_000, 0.0)
    assert device.rtt_s == 0.0, "it was quicker than the bandwidths allow"
    device.note_crossing(10_000, 6_000, 0.063)
    assert device.rtt_s == pytest.approx(0.2 * (0.063 - 0.010 - 0.003))
    device.note_crossing(100_000, 100_000, device.rtt_s + 2 * 0.15)
    assert (device.up_bytes_s, device.down_bytes_s) == (pytest.approx(0.5e6), pytest.approx(1e6))


def test_the_line_that_is_assumed_counts_until_a_batch_was_seen() -> None:
    assert MovingDelay(0.01, 1e-3)(10) == pytest.approx(0.02)
