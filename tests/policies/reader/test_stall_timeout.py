from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.reader.stall_timeout import FACTOR, FLOOR_S, QUIET_S, Pace, Patience, next_token_s

seconds = st.floats(0, 1e3)


@given(seconds, st.floats(0.01, 100), st.none() | seconds)
def test_it_is_neither_hasty_nor_longer_than_the_limit(
    longest_s: float, step_s: float, dry_s: float | None
) -> None:
    limit_s = next_token_s(longest_s, step_s, dry_s)
    assert limit_s <= step_s
    assert limit_s >= min(step_s, FLOOR_S)
    assert limit_s >= min(step_s, 2 * longest_s)


@given(seconds, st.floats(0.01, 100), seconds)
def test_a_reader_who_has_run_dry_waits_for_no_more_than_the_grace(
    longest_s: float, step_s: float, dry_s: float
) -> None:
    assert next_token_s(longest_s, step_s, dry_s) <= dry_s + max(FLOOR_S, FACTOR * longest_s) + 1e-9


@given(st.floats(0, 20))
def test_nobody_is_hurried_while_there_is_something_to_read(dry_s: float) -> None:
    assert next_token_s(0.01, 30.0, dry_s) >= dry_s


@given(st.lists(seconds, min_size=1, max_size=50))
def test_a_long_interval_is_remembered_for_a_while(intervals: list[float]) -> None:
    pace = Pace()
    for interval in intervals:
        pace.note(interval)
    assert max(intervals[-5:]) * 0.85 <= pace.longest_s <= max(intervals)


def test_a_stall_is_noticed_long_before_the_limit() -> None:
    """Ten tokens/s for a reader of five, then nothing."""
    patience, pace, now_s = Patience(30.0, reader_rate=5.0), Pace(), 0.0
    for _ in range(20):
        now_s += 0.1
        pace.note(0.1)
        patience.delivered(1, now_s)
    unread_s = 20 / 5 - 1.9
    assert math.isclose(patience.next_s(pace.longest_s, True, now_s), FLOOR_S)
    assert patience.next_s(pace.longest_s, True, now_s) < unread_s + 2.0
    assert patience.next_s(pace.longest_s, False, now_s) == 30.0, "nobody else could go on"


def test_whoever_was_given_up_in_vain_makes_it_wait_longer() -> None:
    patience, pace = Patience(30.0), Pace()
    limits = []
    for _ in range(5):
        limits.append(patience.next_s(pace.longest_s, True, 0.0))
        patience.stalled()
    assert limits == [FLOOR_S, 2 * FLOOR_S, 4 * FLOOR_S, 30.0, 30.0]


def test_a_late_endpoint_is_asked_soon_but_not_while_there_is_something_to_read() -> None:
    assert Patience(30.0).probe_s(0.0) == QUIET_S
    patience = Patience(30.0, reader_rate=5.0)
    patience.delivered(50, 0.0)
    assert patience.probe_s(0.0) == 10.0
    assert patience.probe_s(9.9) == QUIET_S


def test_nobody_has_begun_and_nobody_reads_unless_it_is_said() -> None:
    patience = Patience(30.0)
    assert not patience.begun
    patience.delivered(1000, 0.0)
    assert patience.begun
    assert patience.next_s(0.0, True, 0.0) == FLOOR_S, "nobody reads along"
    assert patience.probe_s(0.0) == QUIET_S
