"""Compressed days."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.benchmarks.autoscaling import days
from tandem.benchmarks.autoscaling.days import BEGIN_S, DAY_S, NAMES, SPAN_S, WARM_S, requests


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_earlier_days_come_before_the_one_that_is_judged(name: str) -> None:
    before, there = requests(name, 0)
    assert before[0].arrival_s >= -BEGIN_S
    assert before[-1].arrival_s < 0 <= there[0].arrival_s
    assert there[-1].arrival_s < SPAN_S
    assert requests(name, 0) == (before, there)
    assert requests(name, 1) != (before, there)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("week", 2.0), ("burstgpt", 5.0), ("office", 3.0)])
def test_days_have_a_trough(name: str, least: float) -> None:
    """The busiest quarter of the day has so many times the requests of the quietest."""
    counts = np.mean(
        [
            np.histogram([r.arrival_s for r in requests(name, seed)[1]], 4, (WARM_S, SPAN_S))[0]
            for seed in range(5)
        ],
        axis=0,
    )
    assert counts.max() > least * counts.min()


def test_code_comes_in_bursts() -> None:
    per_s = np.histogram([r.arrival_s for r in requests("code", 0)[1]], int(SPAN_S / 10), (0, SPAN_S))[0]
    assert np.median(per_s) < per_s.mean()
    assert per_s.var() > 5 * per_s.mean(), "Poisson has 1"


@pytest.mark.parametrize("name", NAMES)
def test_without_the_data_there_are_stand_ins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = requests(name, 0)[1]
    monkeypatch.setattr(days, "rows", lambda name: None)
    standing_in = requests(name, 0)[1]
    assert 0.5 < len(standing_in) / len(real) < 2
    assert all(1 <= r.prompt_tokens <= 7500 and 1 <= r.output_tokens <= 1024 for r in standing_in)
    assert DAY_S < SPAN_S


def test_the_source_says_what_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = np.zeros((1, 3))
    monkeypatch.setattr(days, "rows", lambda name: trace if name == "conv" else None)
    assert days.source("week") == "lengths of Azure 2023, stand-in arrivals"
    assert days.source("office") == "stand-in lengths, stand-in arrivals"
    monkeypatch.setattr(days, "rows", lambda name: trace)
    assert days.source("code") == "lengths of Azure 2023, arrivals in its blocks"
