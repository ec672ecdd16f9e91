"""Forecasts of races: a budget, of the request or the usual one, bounds what the server is paid."""

from __future__ import annotations

import pytest

from tandem.deployments.modes.base import Surroundings
from tandem.deployments.modes.race.router import RaceRouter
from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.request.assignment import EndpointInfo, Prices, RoutingRequest
from tandem.deployments.routing.assigner import Assigner
from tandem.policies.cost import PerToken
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.objectives import Prediction
from tandem.policies.routing.replica import routing

SERVER = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target")
PHONE = EndpointInfo("phone", "phone", "phone", decode_token_s=0.05, prefill_token_s=0.01, device=True)
DEAR = Prices(PerToken(1e-6, 2e-6))


def predicted(usual: float, budget: float | None) -> Prediction:
    """Return the forecast of a request. usual: budget of requests that bring none."""
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    part = RaceRouter(RaceSettings(), Surroundings(assigner, lambda: usual))
    wanted = RoutingRequest("race", "phone", prompt_tokens=50, budget=budget)
    return part.predict(wanted, {"server": SERVER, "device": PHONE}, DEAR)


@pytest.mark.parametrize("usual", [0.0, 0.5, 1.0])
def test_a_request_that_brings_no_budget_has_the_usual_one(usual: float) -> None:
    assert predicted(usual, None) == predicted(1.0 - usual, usual)


def test_the_server_is_paid_within_the_budget() -> None:
    paid = [predicted(0.5, budget).usd.value for budget in (0.0, 0.5, 1.0)]
    assert paid[0] == 0.0
    assert paid == sorted(paid)
    assert paid[2] > 0.0
