from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.routing.objectives import Estimate
from tandem.policies.routing.pace import FEWEST, LOOK_S, MOST_S, Pace

EXPECTED = Estimate(0.05, noise=0.1)


def looks(
    pace: Pace, tpot_s: float, seconds: float, since_s: float = 0.0, ahead_s: float = 0.0
) -> list[float]:
    """Return when it is time to look, if a token comes every `tpot_s`."""
    times = [since_s + n * tpot_s for n in range(1, round(seconds / tpot_s) + 1)]
    return [now_s for now_s in times if pace.delivered(1, ahead_s, now_s)]


def test_as_long_as_tokens_come_as_expected_nobody_looks() -> None:
    assert not looks(Pace(EXPECTED, 0.0), 0.05, 60.0)
    assert not looks(Pace(EXPECTED, 0.0), 0.06, 60.0), "a little late"


def test_late_tokens_are_a_reason_to_look_and_ever_more_seldom() -> None:
    times = looks(Pace(EXPECTED, 0.0), 0.1, 120.0)
    assert LOOK_S < times[0] < 1.5 * LOOK_S
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert all(later > 0.99 * sooner for sooner, later in itertools.pairwise(pauses))
    assert MOST_S <= pauses[-1] < 1.1 * MOST_S


def test_a_reader_who_need_not_wait_is_no_reason() -> None:
    assert not looks(Pace(EXPECTED, 8.0), 0.1, 60.0), "they come faster than they are read"
    assert looks(Pace(EXPECTED, 20.0), 0.1, 60.0)
    assert not looks(Pace(EXPECTED, 20.0), 0.1, 60.0, ahead_s=2 * LOOK_S), "there is much to read yet"


def test_one_long_wait_that_is_over_is_no_reason() -> None:
    pace = Pace(EXPECTED, 0.0)
    assert not looks(pace, 0.05, 2.0)
    assert not looks(pace, 0.05, 2.0, since_s=20.0)
    assert looks(pace, 0.2, 4.0, since_s=22.0), "and those that come late afterwards are one"


@given(
    gaps_s=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=200),
    tokens=st.integers(1, 9),
    rate=st.sampled_from([0.0, 4.0, 20.0]),
)
def test_two_looks_are_a_second_and_some_tokens_apart(gaps_s: list[float], tokens: int, rate: float) -> None:
    pace, now_s, last_s, since = Pace(EXPECTED, rate), 0.0, -LOOK_S, FEWEST
    for gap_s in gaps_s:
        now_s, since = now_s + gap_s, since + tokens
        tpot_s = pace.delivered(tokens, 0.0, now_s)
        assert tpot_s >= 0.0
        if tpot_s:
            assert tpot_s > EXPECTED.value
            assert now_s - last_s >= LOOK_S - 1e-9
            assert since >= FEWEST
            last_s, since = now_s, 0


def test_seconds_per_token_without_the_longest_wait() -> None:
    """Two tokens every 0.4 s, but for one wait of two seconds."""
    pace = Pace(EXPECTED, 0.0)
    times = [0.0, 0.4, 0.8, 2.8, 3.2, 3.6]
    assert [pace.delivered(2, 0.0, now_s) for now_s in times] == [0.0] * 5 + [pytest.approx(1.6 / 8)]


def test_the_first_tokens_may_come_at_any_time() -> None:
    for began_s in (0.0, 1e6):
        assert looks(Pace(EXPECTED, 0.0), 0.1, 5.0, since_s=began_s)[0] - began_s == pytest.approx(1.1)


def test_tokens_that_come_in_time_again_make_it_look_as_soon_as_at_first() -> None:
    pace = Pace(EXPECTED, 0.0)
    assert looks(pace, 0.1, 10.0)
    assert not looks(pace, 0.05, 20.0, since_s=10.0)
    assert looks(pace, 0.1, 5.0, since_s=30.0)[0] < 30.0 + 2.5
