"""Distributions, and what a session's stay adds to them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram

from tandem.engine.distribution import FEW, LATENCY_S, REQUEST_S, TOKEN_S, TOKENS, Distribution
from tandem.engine.served import Served, Stay


@pytest.mark.parametrize("bounds", [LATENCY_S, REQUEST_S, TOKEN_S, TOKENS, FEW])
def test_it_counts_as_prometheus_does(bounds: tuple[float, ...]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("it", "", buckets=bounds, registry=registry)
    ours = Distribution.over(bounds)
    for value in (0.0, *bounds, *(bound * 1.01 for bound in bounds), 1e9):
        theirs.observe(value)
        ours.add(value, bounds)
    (family,) = registry.collect()
    shown = [(sample.labels["le"], sample.value) for sample in family.samples if "le" in sample.labels]
    assert ours.cumulative(bounds) == shown
    assert ours.total == pytest.approx(next(s.value for s in family.samples if s.name == "it_sum"))


def test_two_are_merged() -> None:
    one, other = Distribution.over(FEW), Distribution.over(FEW)
    one.add(1, FEW)
    other.add(1, FEW)
    other.add(100, FEW)
    one.merge(other)
    assert one == Distribution([0, 2, 0, 0, 0, 0, 0, 1], 102)
    with pytest.raises(ValueError, match="zip"):
        one.merge(Distribution.over(TOKENS))


def test_a_stay_is_told_once() -> None:
    served, stay = Served(), Stay()
    stay.prefilled(3.0, 10, served)
    stay.end(3.0, served)
    assert served == Served(), "it has not begun"
    stay.found = 4
    for now_s in (2.5, 2.75):
        stay.begin(2.0, now_s, served)
    stay.preempted = 2
    stay.prefilled(3.0, 10, served)
    stay.end(5.5, served)
    assert (served.queue_s.total, served.prefill_s.total, served.inference_s.total) == (0.5, 0.5, 3.0)
    assert (served.prefilled.total, served.preemptions.total) == (6, 2)
    assert sum(served.queue_s.counts) == sum(served.inference_s.counts) == 1


def test_a_session_that_is_opened_during_a_step_has_not_waited() -> None:
    served = Served()
    Stay().begin(2.0, 1.5, served)
    assert (served.queue_s.counts[0], served.queue_s.total) == (1, 0.0)
