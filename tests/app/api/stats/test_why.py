from __future__ import annotations

import pytest

from tandem.app.api.stats.why import why
from tandem.deployments.request.forecast import Change, Forecast
from tandem.deployments.request.job import JobStats
from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import Candidate, Estimate, Leaves, Prediction

EXPECTED = Prediction(
    Estimate(0.5, 0.2, 0.1),
    Estimate(0.05),
    Estimate(1e-4),
    lost=Estimate(0.25),
    leaves=Leaves.NOTHING,
    tokens=11,
)
FORECAST = Forecast("device", "phone", EXPECTED, EXPECTED, ("device",))


def test_it_tells_what_was_expected_what_came_and_what_was_second() -> None:
    reason = Reason(2e-3, Candidate("cloud", None, EXPECTED), 3e-3, candidates=4)
    forecast = Forecast("device", "phone", EXPECTED, EXPECTED, ("device",), reason=reason)
    told = why([JobStats(ttft_s=0.4, total_s=0.9, tokens=11, forecast=forecast)])
    assert told is not None
    assert told.chosen.device == "phone"
    assert told.chosen.ttft_s.low < 0.5 == told.chosen.ttft_s.value < told.chosen.ttft_s.high
    assert (told.chosen.quality, told.chosen.leaves) == (0.75, "nothing")
    assert (told.came.ttft_s, told.came.tpot_s) == (0.4, pytest.approx(0.05))
    assert told.runner_up is not None
    assert (told.runner_up.mode, told.by_usd, told.ways) == ("cloud", 1e-3, 4)


def test_changes_on_the_way_are_told() -> None:
    to = Forecast("cloud", None, EXPECTED, EXPECTED, ("cloud",))
    forecast = FORECAST._replace(reason=Reason(2e-3))
    told = why([JobStats(tokens=11, forecast=forecast, changes=[Change(5, to)])])
    assert told is not None
    assert told.chosen is not None
    assert told.chosen.mode == "device", "the first way"
    assert [(each.position, each.chosen.mode) for each in told.changes] == [(5, "cloud")]


def test_nothing_is_told_where_nothing_was_compared() -> None:
    assert why([JobStats()]) is None
    assert why([JobStats(forecast=FORECAST)]) is None
