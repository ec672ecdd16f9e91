"""Expected times of an endpoint that answers by itself, from what the router has learnt and what devices tell."""

from __future__ import annotations

from typing import NamedTuple

from tandem.deployments.modes.base import Surroundings
from tandem.deployments.request.assignment import EndpointInfo, RoutingRequest

UNKNOWN_PREFILL_S, UNKNOWN_DECODE_S = 0.005, 0.05
"""Assumed seconds per token of a device that does not tell its speed."""


class Alone(NamedTuple):
    """Expected times of one answer.

    ttft_s: to the first token, queue and link included.
    tpot_s: of each later one.
    others_s: for which others wait because of it.
    """

    ttft_s: float
    tpot_s: float
    others_s: float = 0.0


def expected_tokens(around: Surroundings, wanted: RoutingRequest) -> float:
    """Return the expected tokens of the rest of the answer."""
    return max(1.0, around.shared.lengths.remaining(wanted.sent, wanted.max_tokens))


def target_alone(around: Surroundings, wanted: RoutingRequest, target: EndpointInfo) -> Alone:
    """Return a target's times, with the load that it has."""
    times, tokens = around.shared.target(target.model), expected_tokens(around, wanted)
    load, limit = around.fleet.load(target) + 1, around.fleet.batch_limit
    step_s = times.step.step_s(min(load, limit))
    waiting = max(0, load - limit)  # an answer ends every tokens · step / limit seconds
    pending = around.fleet.pending(target, times.first.token_s)
    first_s = times.first_token_s(target, wanted.prompt_tokens + wanted.sent + round(pending))
    slowed_s = min(load, limit) * times.step.token_s * tokens if times.step.seen else 0.0
    return Alone(first_s + waiting * tokens * step_s / limit, step_s, slowed_s)


def device_alone(around: Surroundings, wanted: RoutingRequest, device: EndpointInfo) -> Alone:
    """Return a device's times, shared with the sessions that it has."""
    shared = 1 + around.fleet.load(device)
    decode_s = shared * (device.decode_token_s or UNKNOWN_DECODE_S)
    prefill_s = shared * (device.prefill_token_s or UNKNOWN_PREFILL_S) * (wanted.prompt_tokens + wanted.sent)
    return Alone(device.rtt_s + device.load_s + prefill_s + decode_s, decode_s)
