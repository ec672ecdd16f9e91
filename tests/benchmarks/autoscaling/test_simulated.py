"""Choice of settings, and their evaluation."""

from __future__ import annotations

import pytest

from tandem.benchmarks.autoscaling.simulated import (
    GOOD_S,
    KINDS,
    LOADS,
    PEAK_S,
    SPAN_S,
    Outcome,
    candidates,
    choose,
    requests,
    said,
)
from tandem.benchmarks.paths import DATA
from tandem.simulator.config.config import parse
from tests.simulator.configurations import TARGET, raw

needs_data = pytest.mark.skipif(not (DATA / "azure_llm_2023").is_dir(), reason="no traces here")


def outcome(replica_s: float, ttft_p99_s: float) -> Outcome:
    return Outcome(replica_s, 1.0, 0.1, ttft_p99_s, 0.0, 0)


def test_the_fewest_replicas_of_those_that_are_good_enough() -> None:
    good_s = GOOD_S["steady"]
    tried = [("few", outcome(1, 2 * good_s)), ("right", outcome(2, good_s)), ("many", outcome(3, 0.1))]
    assert choose("steady", tried)[0] == "right"
    assert choose("steady", tried[:1])[0] == "few"
    assert choose("steady", [("slow", outcome(1, 9e9)), *tried[:1]])[0] == "few", "nobody is good enough"


@pytest.mark.parametrize("load", LOADS)
def test_serve_has_no_less_to_choose_from(load: str) -> None:
    tried = candidates(load)
    assert set(tried) == set(KINDS)
    assert len(tried["serve"]) >= len(tried["tandem"])
    for autoscaling, replicas in (how for kind in KINDS for how in tried[kind]):
        parse(raw(targets=[{**TARGET, "count": replicas, "autoscaling": autoscaling}]))
        assert said(autoscaling, replicas)


@needs_data
@pytest.mark.parametrize("load", LOADS)
def test_what_is_judged_was_not_chosen_on(load: str) -> None:
    before, peak = requests(load, 0.0, PEAK_S), requests(load, PEAK_S, SPAN_S)
    assert before[-1].arrival_s < PEAK_S
    assert 0 <= peak[0].arrival_s <= peak[-1].arrival_s < SPAN_S
    assert len(peak) >= 8266, "the busiest 20 minutes of conversation"
