"""Mode speculative: its figures, and what the router expects and learns of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.learning.report import Report
from tandem.deployments.learning.shared import AGREES, AGREES_WEIGHT
from tandem.deployments.modes.alone import agreement, expected_tokens, target_alone
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.speculative.mode import (
    PairBriefing,
    Speculation,
    SpeculativeMode,
    SpeculativeRouter,
    SpeculativeRun,
    _Taught,
)
from tandem.deployments.modes.speculative.pairs import pair_name
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.assignment import EndpointInfo, Prices, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.request.job import Job
from tandem.deployments.request.pools import DRAFTER, VERIFIER
from tandem.engine.base import Sampling
from tandem.policies.cost import PerToken, Used
from tandem.policies.routing.objectives import Estimate, Prediction
from tandem.policies.speculation.closed_form import expected_way
from tandem.policies.speculation.rounds import AloneRound, Learnt, PairRound
from tests.deployments.modes.test_alone import surroundings

TARGET = EndpointInfo("verifier 1", "10.0.0.1:1", VERIFIER, "large")
DRAFTS = EndpointInfo("drafter 1", "10.0.0.2:1", DRAFTER, "small", decode_token_s=0.002)
PHONE = EndpointInfo(
    "phone", "phone", "phone", "small", decode_token_s=0.001, device=True, joules=PerToken(0.5, 2.0)
)
PRICES = Prices(PerToken(1e-6, 2e-6), exchange_rate=1e-3)
WANTED = RoutingRequest("speculative", "phone", prompt_tokens=50, sent=7, reader_rate=4.0)
QUICK: list[Learnt] = [PairRound(4, 4, 5, 0.04, 0.01, 0, 4)] * 40
USELESS: list[Learnt] = [*[PairRound(4, 0, 1, 0.4, 1.0, 0, 4)] * 40, *[AloneRound(64, 64 * 0.01)] * 4]


def part() -> SpeculativeRouter:
    return SpeculativeRouter(SpeculativeSettings(), surroundings())


def report(counts: bool = True, **came: float) -> Report:
    expected = Prediction(Estimate(1.0), Estimate(0.1))
    forecast = Forecast(
        "speculative", "phone", expected, expected, ("speculative",),
        content="code", target="large", load=3, prompt_tokens=50,
    )  # fmt: skip
    return Report(
        "me", "phone", 5, True, Bill(1, Used(10, 5), 0.0),
        mode="speculative", forecast=forecast, counts=counts, **came,
    )  # fmt: skip


def test_figures_of_rounds() -> None:
    seen = Speculation(
        rounds=10, drafted=30, accepted=24, fused_rounds=4, fused_drafted=10, single_rounds=1, switches=2
    )
    assert seen.distributed_rounds == 5
    assert seen.acceptance == pytest.approx(0.8)
    assert seen.accepted_per_round == pytest.approx(2.4)
    assert seen.mean_window == pytest.approx(20 / 5)
    assert seen.fused_share == pytest.approx(4 / 9)


def test_without_rounds_there_are_no_shares() -> None:
    seen = Speculation()
    assert (seen.acceptance, seen.accepted_per_round, seen.mean_window, seen.fused_share) == (None,) * 4
    assert seen == Speculation(0, 0, 0, 0, 0, 0, 0, 0)
    fused = Speculation(rounds=3, drafted=6, accepted=3, fused_rounds=2, fused_drafted=6, single_rounds=1)
    assert (fused.mean_window, fused.fused_share) == (None, 1.0)


ENDPOINTS = pytest.mark.parametrize(
    "endpoints",
    [{"target": TARGET, "device": PHONE}, {"target": TARGET, "device": PHONE, "drafter": DRAFTS},
     {"target": TARGET, "drafter": DRAFTS}],
    ids=["device", "both", "cloud"],
)  # fmt: skip


@ENDPOINTS
@pytest.mark.parametrize("rounds", [QUICK, USELESS], ids=["quick", "useless"])
def test_an_answer_is_expected_to_take_the_best_way_of_its_pair(
    endpoints: dict[str, EndpointInfo], rounds: list[Learnt]
) -> None:
    here, drafter = part(), endpoints.get("device", DRAFTS)
    around, pair = here.router, pair_name(drafter, TARGET)
    around.shared.target("large").step.note(1, 0.02)
    here.learn(report(), [_Taught(pair, "small", rounds)])
    expected = here.predict(WANTED, endpoints, PRICES)
    alone, agreed = target_alone(around, WANTED, TARGET), agreement(around, WANTED, "small")
    way = expected_way(here.pairs.state(drafter, TARGET), alone.tpot_s, 0.0, agreed.share)
    assert (way.drafted > 0) == (rounds is QUICK)
    tokens = expected_tokens(around, WANTED)
    joules = drafter.joules.of(50 + 7, round(tokens * way.drafted))
    assert (joules > 0) == drafter.device
    assert expected.ttft_s.value == alone.ttft_s
    assert expected.tpot_s.value == way.token_s
    assert expected.usd.value == pytest.approx(
        57 * 1e-6 + round(tokens) * 2e-6 + joules * PRICES.exchange_rate
    )
    assert expected.joules.value == joules
    assert (expected.tokens, expected.rate, expected.assumed) == (tokens, 4.0, True)
    assert expected.others_s == pytest.approx(alone.others_s * (way.steps + way.drafted))
    informs = agreed.lost.value * agreed.lost.doubt if drafter.device and way.drafted else 0.0
    assert expected.informs == informs


@pytest.mark.parametrize(("told_s", "measured_s"), [(0.001, 0.0), (0.0, 0.002)])
def test_of_a_new_pair_the_drafters_speed_counts(told_s: float, measured_s: float) -> None:
    here = part()
    here.router.shared.target("large").step.note(1, 0.2)
    device = replace(PHONE, decode_token_s=told_s)
    if measured_s:
        here.router.shared.device("phone").decode.note(measured_s)
    quick = here.predict(WANTED, {"target": TARGET, "device": device}, PRICES)
    slow = part()
    slow.router.shared.target("large").step.note(1, 0.2)
    late = slow.predict(WANTED, {"target": TARGET, "device": replace(PHONE, decode_token_s=0.1)}, PRICES)
    drafter = here.predict(WANTED, {"target": TARGET, "drafter": replace(DRAFTS, decode_token_s=0.1)}, PRICES)
    assert quick.tpot_s.value < late.tpot_s.value == drafter.tpot_s.value


@ENDPOINTS
def test_a_request_is_told_of_its_pair_and_of_its_targets_queue(endpoints: dict[str, EndpointInfo]) -> None:
    here, drafter = part(), endpoints.get("device", DRAFTS)
    pair = here.pairs.of(drafter, TARGET)
    pair.note(4, 3, 4, 0.02, 0.2)
    busy = replace(TARGET, sessions=5)
    told = here.brief(WANTED, endpoints | {"target": busy}, PRICES)
    assert told == PairBriefing(4 / here.router.fleet.batch_limit, 8, pair.snapshot())
    assert told.pair.seen == 1


def test_rounds_are_learnt_of_their_pair_and_how_often_the_small_model_agrees() -> None:
    here, pair = part(), pair_name(PHONE, TARGET)
    rounds: list[Learnt] = [
        PairRound(4, 4, 5, 0.04, 0.01, 0, 4),
        PairRound(4, 1, 2, 0.04, 0.01, 0, 4),
        AloneRound(8, 0.4),
        PairRound(4, 0, 1, 0.04, 0.01, 0, 4),
    ]
    known = here.router.shared.agreement("small", "code")
    assert known.share == AGREES
    here.learn(report(counts=False), [_Taught(pair, "small", rounds)])
    assert known.share == AGREES, "others' promises may not rest on it"
    here.learn(report(), [_Taught(pair, "small", rounds)])
    judged = 7 + AGREES_WEIGHT  # a draft after the first wrong one is not judged
    of_all = (5 + AGREES_WEIGHT * AGREES) / judged
    of_model = (5 + AGREES_WEIGHT * of_all) / judged
    assert known.share == pytest.approx((5 + AGREES_WEIGHT * of_model) / judged)
    assert here.router.shared.agreement("small").share == pytest.approx(of_model)
    assert here.pairs.of(PHONE, TARGET).seen == 2 * len(rounds)
    here.learn(replace(report(), forecast=None), [_Taught(pair, "small", rounds)])
    assert known.share == pytest.approx(
        (5 + AGREES_WEIGHT * here.router.shared.agreement("small").share) / judged
    ), "of answers without a forecast the content is not known"
    assert here.pairs.of(PHONE, TARGET).seen == 3 * len(rounds)


def test_a_targets_steps_are_not_learnt_of_rounds() -> None:
    here = part()
    here.learn(report(ttft_s=0.4, tpot_s=0.2), None)
    times = here.router.shared.target("large")
    assert (times.first.seen, times.step.seen) == (1, 0)


def test_what_rounds_taught_is_reported_once_there_are_any() -> None:
    run = SpeculativeMode(SpeculativeSettings(), Services()).start(Job(1, (5,), Sampling()))
    assert isinstance(run, SpeculativeRun)
    assert run.report() == []
    empty, full = (_Taught(pair_name(PHONE, TARGET), "small", list(rounds)) for rounds in ((), QUICK))
    run._taught += [empty, full]
    assert run.report() == [full]
