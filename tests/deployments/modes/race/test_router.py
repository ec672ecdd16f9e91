"""Forecasts of races: a budget, of the request or the usual one, bounds what the server is paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.alone import expected_tokens, target_alone
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.modes.race.router import RaceRouter, Taught
from tandem.deployments.modes.race.settings import MigrationChoice, RaceSettings
from tandem.deployments.request.assignment import EndpointInfo, Prices, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.routing.assigner import Assigner
from tandem.policies.cost import PerToken, Used
from tandem.policies.race.dispatch import Side
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.objectives import Prediction
from tandem.policies.routing.replica import routing
from tests.deployments.modes.test_alone import surroundings

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


def test_a_race_takes_in_the_answer_so_far_and_delays_others_only_where_the_server_goes_on() -> None:
    """The server is dear, so that the device goes on with the answer; for nothing, the server would."""
    around = surroundings()
    part = RaceRouter(RaceSettings(), around)
    for sessions, seconds in ((1, 0.01), (9, 0.05)):
        around.shared.target("target").step.note(sessions, seconds)
    wanted = RoutingRequest("race", "phone", prompt_tokens=50, sent=10, budget=1.0, reader_rate=5.0)
    endpoints = {"server": SERVER, "device": replace(PHONE, joules=PerToken(0.5, 2.0))}
    alone, tokens = target_alone(around, wanted, SERVER), expected_tokens(around, wanted)
    assert alone.others_s > 0.0

    dear = part.predict(wanted, endpoints, Prices(PerToken(1e-3, 1.0), exchange_rate=1e-6))
    joules = 60 * 0.5 + round(tokens) * 2.0
    assert dear.joules.value == pytest.approx(joules)
    assert dear.usd.value == pytest.approx(60 * 1e-3 + joules * 1e-6)
    assert (dear.others_s, dear.tokens, dear.rate) == (0.0, tokens, 5.0)
    assert dear.lost == around.shared.agreement("").lost

    cheap = part.predict(replace(wanted), endpoints, Prices(PerToken(0.0, 0.0), exchange_rate=1e-6))
    assert (cheap.others_s, cheap.lost.value) == (pytest.approx(alone.others_s), 0.0)
    assert cheap.joules.value == pytest.approx(60 * 0.5)


def test_what_a_race_has_shown_is_learnt_once() -> None:
    around = surroundings()
    part = RaceRouter(RaceSettings(), around)
    wanted = RoutingRequest("race", "phone", request=7, prompt_tokens=50, account="me", budget=0.5)
    first = part.brief(wanted, {"server": SERVER, "device": PHONE}, DEAR)
    assert part.brief(wanted, {"server": SERVER, "device": PHONE}, DEAR).start is first.start, "it goes on"
    events = [
        ("took_in", Side.SERVER, 50, 0.0),
        ("first_token", Side.SERVER, 50, 0.4),
        ("took_in", Side.DEVICE, 51, 0.0),
        ("resumed", Side.DEVICE, 51, 0.7),
    ]
    report = Report("me", "phone", 9, True, Bill(1, Used(server_in=60, device_in=51), 0.0), request=7)
    for _ in range(2):
        part.learn(report, Taught(events))  # type: ignore[arg-type]
    history = part.rivals.of(SERVER, PHONE)
    assert (len(history.ttft), history.prefill.seen, list(part.races)) == (1, 1, [])
    assert part.spent("me")[str(Side.SERVER)] == (50, 60), (
        "it was stopped on the way, and is paid for all the same"
    )
    assert part.spent("you") == {str(side): (0, 0) for side in Side}


def test_other_settings_are_those_of_accounts_that_have_raced() -> None:
    part = RaceRouter(RaceSettings(), surroundings())
    before = part.brief(
        RoutingRequest("race", "phone", account="me"), {"server": SERVER, "device": PHONE}, DEAR
    )
    part.follow(RaceSettings(migration=MigrationChoice(name="never")))
    after = part.brief(
        RoutingRequest("race", "phone", account="me"), {"server": SERVER, "device": PHONE}, DEAR
    )
    assert type(after.migration) is not type(before.migration)
    assert not after.migration.prepares


@pytest.mark.parametrize(
    ("server", "device", "assumed"), [(0, 0, True), (2, 0, True), (0, 2, True), (2, 2, False)]
)
def test_a_forecast_counts_as_assumed_until_both_were_seen(server: int, device: int, assumed: bool) -> None:
    around = surroundings()
    silent = EndpointInfo("phone", "phone", "phone", device=True)
    for _ in range(server):
        around.shared.target("target").first.note(50, 0.4)
        around.shared.target("target").step.note(1, 0.01)
    for _ in range(device):
        around.shared.device("phone").first.note(50, 0.4)
        around.shared.device("phone").decode.note(0.05)
    part = RaceRouter(RaceSettings(), around)
    wanted = RoutingRequest("race", "phone", prompt_tokens=50)
    assert part.predict(wanted, {"server": SERVER, "device": silent}, DEAR).assumed is assumed
