"""Replicas for the work to come."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from tandem.policies.autoscaling import PoolState, ReplicaState, autoscaling
from tandem.policies.autoscaling.forecast import FLOOR, LEAST, SAMPLE_S, Forecasts, History

TOKEN_S = 1e-3
SEASON_S = 600.0
START_S = 30.0


def sizes(rate: Callable[[float], float], seconds: int, **parameters: float) -> list[float]:
    """Return what is wanted second by second; rate: replica-seconds of prompts that arrive per second."""
    policy = autoscaling.create(
        "forecast", load=1.0, season_s=SEASON_S, start_s=START_S, sample_s=5.0, **parameters
    )
    prefilled, wanted = 0.0, []
    for second in range(seconds):
        prefilled += rate(float(second)) / TOKEN_S
        state = ReplicaState(
            "a", sessions=99, prefilled=prefilled, kv_capacity=1e6, places=99, token_s=TOKEN_S, base_s=0.01
        )
        wanted.append(policy.desired(PoolState(float(second), 1, (state,))))
    return wanted


def wave(second: float) -> float:
    """Four replicas' work, and one's at the trough."""
    return 2.5 - 1.5 * math.cos(2 * math.pi * second / SEASON_S)


DRAW = random.Random(5)
BURSTS = [DRAW.uniform(0, 1800) for _ in range(30)]


def bursts(second: float) -> float:
    """Four replicas' work for 15 seconds, at any time."""
    return 4.0 if any(begin <= second < begin + 15 for begin in BURSTS) else 0.0


def test_an_even_load_needs_no_spares() -> None:
    assert sizes(lambda _: 3.0, 900)[-1] == pytest.approx(3.0, rel=0.1)


def test_replicas_are_there_when_the_season_brings_the_work() -> None:
    """From the second day on there are enough for the work of a start's time later, and hardly more."""
    wanted = sizes(wave, 1800, cover=0.98)
    day = range(1200, 1800 - int(START_S), 5)
    assert all(wanted[t] >= 0.95 * wave(t + START_S) for t in day)
    paid = sum(wanted[t] for t in day) / sum(max(wave(t), wave(t + START_S)) for t in day)
    assert paid < 1.15


def test_bursts_that_outrun_a_start_keep_their_replicas() -> None:
    """Bursts that come and go faster than a replica starts have replicas between them, too."""
    wanted = sizes(bursts, 1800, cover=0.97)
    quiet = [wanted[second] for second in range(900, 1800) if not bursts(second)]
    assert sum(quiet) / len(quiet) >= 3.0


def test_less_cover_is_fewer_replicas() -> None:
    less, more = (sum(sizes(bursts, 1500, cover=cover)[900:]) for cover in (0.5, 0.95))
    assert less < more


def test_without_a_season_it_follows_the_load() -> None:
    """In the first day there is none yet."""
    wanted = sizes(lambda second: 1.0 if second < 200 else 3.0, 400)
    assert wanted[190] == pytest.approx(1.0, rel=0.05)
    assert wanted[399] >= 2.9


def test_nothing_to_do_is_nothing() -> None:
    policy = autoscaling.create("forecast")
    idle = ReplicaState("a", kv_capacity=1e6, places=99, token_s=TOKEN_S)
    assert [policy.desired(PoolState(float(t), 1, (idle,))) for t in range(30)][-1] == 0.0


def test_a_pool_that_was_empty_had_no_work_meanwhile() -> None:
    forecasts = Forecasts(0.9, SEASON_S, 1)
    for second in range(0, 300, 5):
        forecasts.note(float(second), 2.0, START_S)
    before = forecasts.needed
    forecasts.note(900.0, 2.0, START_S)
    assert forecasts.needed < before


def test_starts_may_become_slower_and_faster() -> None:
    """Forecasts stay beside the values that they were made for."""
    forecasts = Forecasts(0.9, SEASON_S, 1)
    for sample in range(400):
        start_s = (30.0, 60.0, 15.0)[sample // 40 % 3]
        forecasts.note(5.0 * sample, 1.0 + sample % 2, start_s)
        assert sample < 50 or 1.0 <= forecasts.needed < 3.0


@pytest.mark.parametrize("season_s", [100.0, 86_400.0])
def test_a_season_is_smoothed_over_an_hour_and_three_of_a_day(season_s: float) -> None:
    """Half of it on either side."""
    forecasts = Forecasts(0.9, season_s, 2)
    samples = season_s / SAMPLE_S
    assert forecasts._smooth == [max(1, round(samples / 48)), max(1, round(samples / 16))]


def test_earlier_seasons_are_looked_up_around_the_same_moment() -> None:
    forecasts = Forecasts(0.9, 20 * SAMPLE_S, 3)
    values = np.arange(50.0)
    assert forecasts._earlier(values, 19, 2) is None, "the first one is not over"
    assert forecasts._earlier(values, 20, 2) == pytest.approx((0 + 1 + 2) / 3)
    assert forecasts._earlier(values, 31, 2) == pytest.approx(11.0)
    assert forecasts._earlier(values, 52, 2) == pytest.approx((12.0 + 32.0) / 2)
    assert forecasts._earlier(values, 75, 2) == pytest.approx((15.0 + 35.0) / 2), "55 has not come"


def test_a_sharp_season_is_forecast_to_the_sample() -> None:
    """Work comes in one sample of twenty: a start's time before it, the pool is told."""
    forecasts = Forecasts(0.9, 20 * SAMPLE_S, 3)
    for sample in range(60):
        forecasts._values.add(float(sample % 20 == 10))
    narrow = len(forecasts.PAST_S)  # the season as it was, smoothed over three samples
    said = {ahead: forecasts._forecast(ahead)[narrow] for ahead in (1, 9, 10, 11, 12, 13)}
    most, least = 1 / 3, max(LEAST, FLOOR / 20)
    assert [said[ahead] for ahead in (9, 10, 11, 12, 13)] == pytest.approx([least, most, most, most, least])


def test_the_latest_numbers_by_hand() -> None:
    history = History(3)
    for number in range(10):
        history.add(float(number))
        assert list(history.all()) == [float(n) for n in range(max(0, number - 2), number + 1)]
    history.repeat(5.0, 2)
    assert list(history.all()) == [9.0, 5.0, 5.0]
    history.repeat(4.0, 99)
    history.add(3.0)
    assert list(history.all()) == [4.0, 4.0, 3.0]


@pytest.mark.parametrize(
    "wrong",
    [{"cover": 0.0}, {"cover": 1.5}, {"season_s": 0}, {"seasons": 0}, {"sample_s": 0}, {"start_s": 0}],
)
def test_parameters_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        autoscaling.create("forecast", **wrong)


@pytest.mark.parametrize(("sessions", "wanted"), [(99.0, 3.0 / 0.75), (2.0, 2.0)])
def test_the_cache_that_sessions_want_needs_its_room(sessions: float, wanted: float) -> None:
    """Three replicas' caches at three quarters; no more replicas than sessions."""
    policy = autoscaling.create("forecast", memory=0.75)
    full = ReplicaState("a", sessions=sessions, kv_wanted=3e6, kv_capacity=1e6, places=99, token_s=TOKEN_S)
    assert policy.desired(PoolState(0.0, 1, (full,))) == pytest.approx(wanted)


def test_samples_that_were_missed_are_none() -> None:
    forecasts = Forecasts(0.9, SEASON_S, 1)
    for now_s in (0.0, 5.0, 20.0):
        forecasts.note(now_s, 2.0, START_S)
    assert forecasts._values.all().tolist() == [2.0, 2.0, 0.0, 0.0, 2.0]
    late = Forecasts(0.9, SEASON_S, 1)
    late.note(1000.0, 2.0, START_S)
    assert late._values.all().tolist() == [2.0], "nothing was missed before the first one"


def test_short_samples_are_allowed() -> None:
    assert autoscaling.create("forecast", season_s=0.5, sample_s=0.5, start_s=0.5) is not None
