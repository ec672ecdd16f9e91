"""Forecasts at the router: the modes' own formulas, corrected by what came of other answers of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes.alone import kind_of
from tandem.deployments.modes.base import RouterPart, Surroundings
from tandem.deployments.request.assignment import EndpointInfo, Endpoints, Present, Prices, RoutingRequest
from tandem.deployments.request.forecast import SHORT, Forecast
from tandem.deployments.request.pools import VERIFIER
from tandem.policies.estimators.correction import FADE, WEIGHT, Correction, Corrections
from tandem.policies.estimators.coverage import Coverage
from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import NOTHING, Estimate, Prediction

FEW_S = 0.01
"""Seconds that are added to times before they are compared: less is no difference."""
ASSUMED = 0.05
"""Weight of what corrects an assumed time: that is replaced by a measured one soon."""
MOST_UNEVEN_S = 0.5
"""Longest wait of one reader, for what comes unevenly, that is learnt from."""
KEPT = 1024
"""Modes and readers' rates whose waits are kept."""
Kind = tuple[str, ...]


class Predicted(NamedTuple):
    """Prediction of one way to answer; the fields are those of a Forecast."""

    expected: Prediction
    formula: Prediction
    kind: Kind


class _Uneven:
    """Decaying mean of waits, which are taken to be none at first."""

    __slots__ = ("_n", "_sum_s")

    def __init__(self) -> None:
        self._n = self._sum_s = 0.0

    @property
    def mean_s(self) -> float:
        return self._sum_s / (self._n + WEIGHT)

    def note(self, waited_s: float) -> None:
        self._n, self._sum_s = FADE * self._n + 1.0, FADE * self._sum_s + waited_s


class Way(NamedTuple):
    """A way to answer: a mode, the device that takes part, if one does, and all endpoints by role."""

    mode: str
    device: str | None
    endpoints: Endpoints


class Forecaster:
    """Predicts what ways to answer a request bring, and learns from reports how wrong it was.

    parts: the modes' own, by name.
    prices: of a request at some endpoints.
    """

    def __init__(
        self,
        parts: Mapping[str, RouterPart[Any]],
        around: Surroundings,
        prices: Callable[[RoutingRequest, Endpoints], Prices],
    ) -> None:
        self._around = around
        self._parts, self._fleet, self._shared, self._prices = parts, around.fleet, around.shared, prices
        self._first, self._step = Corrections(), Corrections()
        self._usd, self._joules = Corrections(0.3, 0.3), Corrections(0.3, 0.3)
        self._uneven: LRUTable[tuple[str, int], _Uneven] = LRUTable(KEPT)  # seconds, by mode and rate
        self._coverage: dict[tuple[str, str], Coverage] = {}  # by mode and figure
        self._replicas: dict[str, set[str]] = {}  # the last ones that were up, by model

    def see(self) -> None:
        """Take over which replicas are up. Of a model that none of its last ones serve, nothing is known any more: it
        has been deployed anew, perhaps with other hardware or weights."""
        up: dict[str, set[str]] = {}
        for each in self._fleet.replicas(VERIFIER):
            up.setdefault(each.model, set()).add(each.key)
        for model, keys in up.items():
            if keys.isdisjoint(self._replicas.get(model, keys)):
                self._shared.forget_target(model)
                for known in (self._first, self._step):
                    known.forget(model)
        self._replicas |= up

    def begin(self) -> None:
        """Begin with the ways to answer one request."""
        self._shared.plan_anew()

    def predict(self, mode: str, wanted: RoutingRequest, endpoints: Endpoints) -> Predicted | None:
        """Return what an answer by these endpoints is expected to bring; None where the mode cannot say."""
        formula = self._parts[mode].predict(wanted, endpoints, self._prices(wanted, endpoints))
        if formula is None:
            return None
        names = [mode]
        for each in endpoints.values():
            if not each.device:
                names.append(mode + self._place(each, wanted))
                break
        for each in endpoints.values():
            if each.device:
                names.append(names[-1] + self._place(each, wanted))
        kind = tuple(names)
        return Predicted(self._corrected(formula, kind), formula, kind)

    def staying(self, wanted: RoutingRequest, present: Present) -> Prediction | None:
        """Return what the rest of an answer is expected to bring if it goes on as it does: nothing more is taken in,
        and tokens come as they do now. None where the mode cannot say."""
        rest = self.predict(present.mode, wanted, present.endpoints)
        one_token = replace(wanted, max_tokens=wanted.sent + 1)
        begun = self.predict(present.mode, one_token, present.endpoints)
        if rest is None or begun is None:
            return None
        expected, first = rest.expected, begun.expected
        return expected._replace(
            ttft_s=NOTHING,
            tpot_s=Estimate(present.tpot_s),
            usd=Estimate(max(0.0, expected.usd.value - first.usd.value)),
            joules=Estimate(max(0.0, expected.joules.value - first.joules.value)),
        )

    def _place(self, endpoint: EndpointInfo, wanted: RoutingRequest) -> str:
        """Return what tells an endpoint with its load from others, to add to a class."""
        known, key = self._shared.planned(wanted), (Kind, endpoint.key)
        if (place := known.get(key)) is None:
            load = self._fleet.load(endpoint)
            place = f" {endpoint.name} {load.bit_length()}"
            if not endpoint.device:
                place = f" {endpoint.model} {(load + 1).bit_length()}"
            known[key] = place
        return str(place)

    def forecast(self, way: Way, predicted: Predicted, wanted: RoutingRequest, reason: Reason) -> Forecast:
        """Return the forecast of the way that is taken."""
        target = next((each for each in way.endpoints.values() if not each.device), None)
        load, tokens, token_s = 0, wanted.prompt_tokens + wanted.sent, 0.0
        if target is not None:
            token_s = self._shared.target(target.model).first.token_s
            tokens += round(self._fleet.pending(target, token_s))
            load = self._fleet.load(target) + 1
        for each in way.endpoints.values():
            load = load or self._fleet.load(each) + 1
        return Forecast(
            mode=way.mode,
            device=way.device,
            expected=predicted.expected,
            formula=predicted.formula,
            kind=predicted.kind,
            about=kind_of(self._around, wanted),
            content=wanted.content,
            target="" if target is None else target.model,
            load=load,
            prompt_tokens=tokens,
            token_s=token_s,
            reason=reason,
        )

    def learn(self, report: Report) -> None:
        """Learn from an answer that was forecast, and went as it was planned."""
        forecast = report.forecast
        if forecast is None or forecast.mode != report.mode or not report.ttft_s:
            return
        formula, kind = forecast.formula, forecast.kind
        weight = ASSUMED if formula.assumed else 1.0
        for each in forecast.compared(report.ttft_s, report.tpot_s, report.tokens):
            self._coverage.setdefault((report.mode, each.figure), Coverage()).note(each.held)
        if (rate := formula.rate) and report.tokens >= SHORT:
            even_s = max(0.0, report.tpot_s - 1.0 / rate) * (report.tokens - 1)
            uneven_s = min(MOST_UNEVEN_S, max(0.0, report.stall_s - even_s))
            self._uneven.of((report.mode, round(rate)), _Uneven).note(uneven_s)
        self._first.note(kind, _ratio(report.ttft_s, formula.ttft_s.value), weight)
        if report.tokens >= SHORT and report.tpot_s:
            self._step.note(kind, log(report.tpot_s / max(1e-6, formula.tpot_s.value)), weight)
        if report.whole:
            bill = report.bill
            for known, came, said in (
                (self._usd, bill.server_usd + bill.device_usd, formula.usd.value),
                (self._joules, bill.joules, formula.joules.value),
            ):
                if came > 0 and said > 0:
                    known.note(kind[:1], log(came / said))

    def _corrected(self, formula: Prediction, kind: Kind) -> Prediction:
        uneven = self._uneven.get((kind[0], round(formula.rate))) if formula.rate else None
        return Prediction(
            _times(self._first.of(kind), formula.ttft_s, self._width(kind[0], "ttft_s")),
            _times(self._step.of(kind), formula.tpot_s, self._width(kind[0], "tpot_s")),
            _times(self._usd.of(kind[:1]), formula.usd),
            _times(self._joules.of(kind[:1]), formula.joules) if formula.joules.value else NOTHING,
            *formula[4:-1],
            0.0 if uneven is None else uneven.mean_s,
        )

    def _width(self, mode: str, figure: str) -> float:
        known = self._coverage.get((mode, figure))
        return 1.0 if known is None else known.width


def _times(known: Correction, formula: Estimate, width: float = 1.0) -> Estimate:
    return Estimate(formula.value * known.factor, known.noise, known.doubt, width)


def _ratio(came_s: float, expected_s: float) -> float:
    return log((came_s + FEW_S) / (expected_s + FEW_S))
