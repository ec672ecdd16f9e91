"""The pool as queues beside the whole simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.benchmarks.autoscaling import days
from tandem.benchmarks.autoscaling.frontier import GROUP
from tandem.benchmarks.autoscaling.queueing import Outcome, simulate
from tandem.simulator.config.config import parse
from tandem.simulator.config.servers import TargetGroup
from tandem.simulator.runs.run import simulate as simulate_whole
from tandem.simulator.workload import Request

SCALED: dict[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 16,
    "downscale_delay_s": 30.0,
    "policy": {"name": "work", "parameters": {"load": 0.7, "window_s": 20}},
}


def whole(requests: list[Request], group: dict[str, Any]) -> tuple[float, float, float]:
    """Return the whole simulator's replica-seconds, P99 of TTFT and mean stall."""
    workload = {"kind": "synthetic", "count": 1, "acceptance": {"kind": "alpha", "alpha": 0.0}}
    raw = {"mode": "cloud", "workload": workload, "targets": [group], "router": {"routing": {"name": "jsq"}}}
    result = simulate_whole(parse(raw), requests=requests)
    summary = result.summary()
    assert not summary["failed"]
    return result.replica_s, summary["ttft_s"]["p99"], summary["reading"]["stall_mean_s"]


def queues(requests: list[Request], group: dict[str, Any]) -> Outcome:
    last_s = requests[-1].arrival_s
    return simulate(requests, TargetGroup(**group), last_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "group"),
    [
        ("week", {**GROUP, "count": 4}),
        ("office", {**GROUP, "count": 4, "autoscaling": SCALED}),
    ],
)
def test_it_is_as_the_whole_simulator(trace: str, group: dict[str, Any]) -> None:
    """Over some minutes of a day, a fixed pool and one that follows its load."""
    begin_s = days.WARM_S + 0.5 * days.DAY_S
    requests = [r for r in days.requests(trace, 7)[1] if begin_s <= r.arrival_s < begin_s + 150]
    replica_s, p99_s, stall_s = whole(requests, group)
    fast = queues(requests, group)
    assert fast.replica_s == pytest.approx(replica_s, rel=0.1)
    assert fast.p99_s == pytest.approx(p99_s, rel=0.2)
    assert fast.stall_mean_s == pytest.approx(stall_s, rel=0.3, abs=0.2)


def test_a_few_requests_are_served_to_the_step() -> None:
    """Below overload the steps are the same, and so are all times."""
    requests = [Request(0.5 * i, 300 + 37 * i, 20 + i, reader_rate=10.0, max_tokens=100) for i in range(40)]
    group = {**GROUP, "count": 2}
    _, p99_s, stall_s = whole(requests, group)
    fast = queues(requests, group)
    assert len(fast.ttft_s) == 40
    assert fast.p99_s == pytest.approx(p99_s, rel=0.02)
    assert fast.stall_mean_s == pytest.approx(stall_s, abs=0.02)


def test_replicas_are_paid_for_while_they_are_there() -> None:
    requests = [Request(10.0 * i, 100, 10, reader_rate=10.0) for i in range(10)]
    assert queues(requests, {**GROUP, "count": 3}).replica_s == pytest.approx(3 * 90.0)
    since = simulate(requests, TargetGroup(**GROUP, count=3), 100.0, since_s=40.0)
    assert since.replica_s == pytest.approx(3 * 60.0)
    assert len(since.ttft_s) == 6, "who came before does not count"


def test_what_goes_hands_its_answers_over() -> None:
    """Long answers outlast the drain of a pool that shrinks, and are whole all the same."""
    bounds = {
        "min_replicas": 1,
        "max_replicas": 4,
        "downscale_delay_s": 0.0,
        "policy": {"name": "ongoing_requests", "parameters": {"target": 10, "look_back_s": 1}},
    }
    requests = [Request(0.0, 500, 900, reader_rate=10.0, max_tokens=1000) for _ in range(8)]
    group = {**GROUP, "count": 4, "drain_s": 5.0, "autoscaling": bounds}
    outcome = simulate(requests, TargetGroup(**group), 60.0)
    assert len(outcome.ttft_s) == len(outcome.stall_s) == 8
    assert outcome.replica_s < 4 * 20.0
    assert np.isfinite(outcome.stall_s).all()
