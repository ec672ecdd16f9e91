"""Expected times of an endpoint that answers by itself, from what the router has learnt and what devices tell."""

from __future__ import annotations

from typing import NamedTuple

from tandem.deployments.learning.report import Report
from tandem.deployments.learning.shared import DECODE_S, PREFILL_S
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.request.assignment import EndpointInfo, Prices, RoutingRequest
from tandem.policies.routing.objectives import Estimate, Prediction


class Alone(NamedTuple):
    """Expected times of one answer.

    ttft_s: to the first token, queue and link included.
    tpot_s: of each later one.
    others_s: for which others wait because of it.
    assumed: whether nothing of it has been measured or told.
    """

    ttft_s: float
    tpot_s: float
    others_s: float = 0.0
    assumed: bool = False


class Agreed(NamedTuple):
    """Share of a small model's tokens that are the target's, and the quality that its answers lack."""

    share: float
    lost: Estimate


def kind_of(around: Surroundings, wanted: RoutingRequest) -> str:
    """Return the class of requests whose answers are taken to be alike."""
    known = around.shared.planned(wanted)
    if (kind := known.get("kind")) is None:
        kind = known["kind"] = (
            f"{wanted.account} {wanted.max_tokens.bit_length()} {wanted.prompt_tokens.bit_length()}"
        )
    return str(kind)


def expected_tokens(around: Surroundings, wanted: RoutingRequest) -> float:
    """Return the expected tokens of the rest of the answer."""
    known = around.shared.planned(wanted)
    if (tokens := known.get("tokens")) is None:
        tokens = max(1.0, around.shared.remaining(kind_of(around, wanted), wanted.sent, wanted.max_tokens))
        known["tokens"] = tokens
    return float(tokens)


def target_alone(around: Surroundings, wanted: RoutingRequest, target: EndpointInfo) -> Alone:
    """Return a target's times, with the load that it has."""
    planned, key = around.shared.planned(wanted), target.key
    if (known := planned.get(key)) is None:
        known = planned[key] = _target_alone(around, wanted, target)
    found: Alone = known
    return found


def _target_alone(around: Surroundings, wanted: RoutingRequest, target: EndpointInfo) -> Alone:
    times, tokens = around.shared.target(target.model), expected_tokens(around, wanted)
    load, limit = around.fleet.load(target) + 1, around.fleet.batch_limit
    step_s = times.step.step_s(min(load, limit))
    waiting = max(0, load - limit)  # an answer ends every tokens · step / limit seconds
    pending = around.fleet.pending(target, times.first.token_s)
    first_s = times.first_token_s(target, wanted.prompt_tokens + wanted.sent + round(pending))
    slowed_s = 0.0
    if times.step.seen:  # each answer in a step waits for all of its positions, the prompts' among them
        positions = tokens + wanted.prompt_tokens
        slowed_s = min(load, limit) * times.hurried(step_s) * times.step.token_s * positions
    assumed = times.first.few or not times.step.seen
    return Alone(first_s + waiting * tokens * step_s / limit, step_s, slowed_s, assumed)


def agreement(around: Surroundings, wanted: RoutingRequest, model: str) -> Agreed:
    """Return how often a small model says what the target would, in such an answer."""
    planned, key = around.shared.planned(wanted), (Agreed, model)
    if (known := planned.get(key)) is None:
        agreement = around.shared.agreement(model, wanted.content)
        known = planned[key] = Agreed(agreement.share, agreement.lost)
    found: Agreed = known
    return found


def by_target(
    around: Surroundings, wanted: RoutingRequest, target: EndpointInfo, prices: Prices
) -> Prediction:
    """Return what an answer is expected to bring that the target gives alone."""
    alone, tokens = target_alone(around, wanted, target), expected_tokens(around, wanted)
    return Prediction(
        ttft_s=Estimate(alone.ttft_s),
        tpot_s=Estimate(alone.tpot_s),
        usd=Estimate(prices.server.of(wanted.prompt_tokens + wanted.sent, round(tokens))),
        tokens=tokens,
        rate=wanted.reader_rate,
        others_s=alone.others_s,
        assumed=alone.assumed,
    )


def learn_target(around: Surroundings, report: Report, mode: str, steps: bool = True) -> None:
    """Learn a target's times from an answer that was expected in a mode and came in it. steps: whether the target's
    steps were its own."""
    forecast = report.forecast
    if forecast is None or not forecast.mode == report.mode == mode:
        return
    times = around.shared.target(forecast.target)
    if report.ttft_s and forecast.load <= around.fleet.batch_limit:  # otherwise it waited for a place
        times.first.note(forecast.prompt_tokens, report.ttft_s)
    if steps and report.tpot_s:
        times.step.note(forecast.load, report.tpot_s)


def device_alone(around: Surroundings, wanted: RoutingRequest, device: EndpointInfo) -> Alone:
    """Return a device's times, shared with the sessions that it has."""
    planned, key = around.shared.planned(wanted), (device.name, device.model)
    if (known := planned.get(key)) is None:
        known = planned[key] = _device_alone(around, wanted, device)
    found: Alone = known
    return found


def _device_alone(around: Surroundings, wanted: RoutingRequest, device: EndpointInfo) -> Alone:
    shared, known = 1 + around.fleet.load(device), wanted.prompt_tokens + wanted.sent
    decode_s, assumed = device.decode_token_s, False
    if not decode_s:
        decode_s, assumed = _measured_decode_s(around, device)
    if device.prefill_token_s:
        first_s = device.rtt_s + shared * (device.prefill_token_s * known + decode_s)
    else:
        times = around.shared.measured(device.name)
        if times is not None and times.first.seen:
            first_s = shared * times.first.step_s(known)
            assumed = assumed or times.first.few
        else:
            first_s, assumed = device.rtt_s + shared * (PREFILL_S * known + decode_s), True
    return Alone(first_s + device.load_s, shared * decode_s, assumed=assumed)


def draft_token_s(around: Surroundings, device: EndpointInfo) -> float:
    """Return the seconds that a device takes to draft a token."""
    return device.decode_token_s or _measured_decode_s(around, device)[0]


def _measured_decode_s(around: Surroundings, device: EndpointInfo) -> tuple[float, bool]:
    """Return seconds per token, and whether they are assumed."""
    times = around.shared.measured(device.name)
    return (DECODE_S, True) if times is None or not times.decode.seen else (times.decode.value, False)
