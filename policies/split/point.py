"""Split point: how many of a model's first layers a device holds.

HAT takes m below a tenth of the layers, equal for all. Here each device gets its own. More layers leak less of the
prompt to the cloud and make a better drafter, and each drafted token passes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from tandem.policies.speculation.arithmetic import MAX_WINDOW, expected_tokens


class SplitPoint(NamedTuple):
    """A split for which weights exist.

    m: layers on the device.
    recovery: share of a prompt's tokens that an attack recovered from its hidden states.
    alpha: probability that a token drafted by its adapter is accepted if those before it are.
    """

    m: int
    recovery: float
    alpha: float


@dataclass(frozen=True, slots=True)
class SplitDevice:
    """Speed of a device and its link.

    layer_s: seconds of a layer for one token.
    prefill_layer_s: seconds of a layer per prompt token.
    adapter_s, head_s: seconds for one token.
    up_bytes_s, down_bytes_s: the link's bandwidths, above 0.
    rtt_s: its latency, both ways.
    """

    layer_s: float
    prefill_layer_s: float
    adapter_s: float
    head_s: float
    up_bytes_s: float
    down_bytes_s: float
    rtt_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Typical load of the device's requests.

    layers: of the whole model.
    token_bytes: A, size of a token's hidden state: hidden size times the size of an element.
    prompt_tokens: of a typical request.
    mu: μ, tokens in a batch of the cloud.
    delay_s: g, seconds of a batch in the cloud by its tokens, if it held all layers.
    """

    layers: int
    token_bytes: float
    prompt_tokens: int
    mu: float
    delay_s: Callable[[float], float]


class SplitDecision(NamedTuple):
    """Decision: m, the best draft length for it, and the expected seconds per output token and to the first one."""

    m: int
    draft: int
    tpot_s: float
    ttft_s: float


class Refusal(StrEnum):
    """Reason for which a device gets no split."""

    LEAKAGE = "no split point leaks as little as the device's owner accepts"
    TTFT = "no split point that leaks little enough gives its first token in time"


def choose_split_point(
    points: Iterable[SplitPoint],
    device: SplitDevice,
    work: Workload,
    most_recovery: float,
    most_ttft_s: float = inf,
    most_draft: int = MAX_WINDOW,
) -> SplitDecision | Refusal:
    """Return the fastest of the splits that leak no more than the owner accepts and meet the TTFT limit, or the reason
    for none.

    An unmeasured leakage is never accepted: a split is among `points` with its recovery, or not at all.
    """
    private = [point for point in points if point.recovery <= most_recovery]
    if not private:
        return Refusal.LEAKAGE
    expected = (_expected(point, device, work, most_draft) for point in private)
    in_time = [choice for choice in expected if choice.ttft_s <= most_ttft_s]
    return min(in_time, key=lambda choice: (choice.tpot_s, choice.ttft_s), default=Refusal.TTFT)


def _expected(point: SplitPoint, device: SplitDevice, work: Workload, most_draft: int) -> SplitDecision:
    def tpot_s(draft: int) -> float:
        return round_s(point.m, draft, device, work) / expected_tokens(point.alpha, draft)

    draft = min(range(most_draft + 1), key=tpot_s)
    return SplitDecision(point.m, draft, tpot_s(draft), ttft_s(point.m, device, work))


def round_s(m: int, draft: int, device: SplitDevice, work: Workload) -> float:
    """Return the seconds of a round: its draft, and the token before it, pass the device's layers once and travel up
    and down."""
    tokens = draft + 1
    device_s = tokens * m * device.layer_s + draft * (device.adapter_s + device.head_s) + device.head_s
    link_s = device.rtt_s + tokens * work.token_bytes * (1 / device.up_bytes_s + 1 / device.down_bytes_s)
    return device_s + link_s + _middle_s(m, tokens, work)


def ttft_s(m: int, device: SplitDevice, work: Workload) -> float:
    """Return the seconds to the first token if nothing overlaps; chunks do better, by a varying amount. Only the last
    of the deep hidden states has to come down."""
    prompt = work.prompt_tokens
    device_s = prompt * m * device.prefill_layer_s + device.head_s
    link_s = device.rtt_s + work.token_bytes * (prompt / device.up_bytes_s + 1 / device.down_bytes_s)
    return device_s + link_s + _middle_s(m, prompt, work)


def _middle_s(m: int, tokens: int, work: Workload) -> float:
    return work.delay_s(work.mu + tokens) * (work.layers - m) / work.layers
