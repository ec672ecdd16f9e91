"""Dispatch: when device and server start on a prompt, so that the constrained one keeps its budget.

DiSCo (Sun et al. 2025), section 4.2 and algorithms 2 and 3. The budget b is the share of all prompt tokens that the
constrained endpoint may process. The plan is not a table rebuilt now and then: it follows from two windows of samples
and changes with every sample, for the cost of noting it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from tandem.policies.base import Registry
from tandem.policies.estimators.windows import Latencies, Lengths

NEVER = math.inf
REFIT = 64  # samples after which a fit is renewed


class Side(StrEnum):
    """The two endpoints of a race: the user's device, and the paid server."""

    DEVICE = "device"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class DispatchState:
    """State when a request arrives.

    tokens: prompt length.
    lengths: p(l), distribution of prompt lengths.
    ttft: F(t), distribution of the server's time to first token, seconds.
    budget: b in [0, 1].
    constrained: endpoint that the budget limits.
    coin: uniform in [0, 1), drawn anew for each request, for random choices. It decides at most one: a request has at
        most two plans, one for coins below some value and one for the others.
    """

    tokens: int
    lengths: Lengths
    ttft: Latencies
    budget: float
    constrained: Side
    coin: float


@dataclass(frozen=True, slots=True)
class Start:
    """Delay after which each endpoint starts if the other has given no token: seconds since the request arrived.

    server_s: of the server; NEVER: it does not start.
    device_s: of the device; NEVER: it does not start.
    """

    server_s: float
    device_s: float


BOTH = Start(0.0, 0.0)
SERVER_ONLY, DEVICE_ONLY = Start(0.0, NEVER), Start(NEVER, 0.0)


class DispatchPolicy(Protocol):
    def choose(self, state: DispatchState) -> Start:
        """Return the delays. At least one endpoint starts at once; the constrained one's expected share of prompt
        tokens is at most the budget."""
        ...


dispatch: Registry[DispatchPolicy] = Registry("dispatch")


@dispatch.register("server")
class ServerOnly:
    """Sends everything to the server."""

    def choose(self, state: DispatchState) -> Start:
        return SERVER_ONLY


@dispatch.register("device")
class DeviceOnly:
    """Sends everything to the device."""

    def choose(self, state: DispatchState) -> Start:
        return DEVICE_ONLY


@dispatch.register("stochastic")
class Stochastic:
    """DiSCo's baselines Stoch-S and Stoch-D: sends a random share b of the prompts to the constrained endpoint alone,
    and the others to the other endpoint."""

    def choose(self, state: DispatchState) -> Start:
        spend = state.coin < state.budget
        return DEVICE_ONLY if spend == (state.constrained is Side.DEVICE) else SERVER_ONLY


@dispatch.register("disco")
class Disco:
    """DiSCo's algorithm 2 if the device is constrained, its algorithm 3 if the server is.

    Of prompts of the last length for which the budget of the device lasts, a part does not wait, by chance. In the
    paper all of them wait a little less than longer ones, which costs as much and gains less.

    tail_share: α, share of the device's budget kept for the server's slowest answers.
    """

    def __init__(self, tail_share: float = 0.05) -> None:
        if not 0.0 < tail_share < 1.0:
            raise ValueError(f"tail_share must lie between 0 and 1, not {tail_share}")
        self._alpha = tail_share

    def choose(self, state: DispatchState) -> Start:
        if state.constrained is Side.SERVER:
            return long_prompts_to_the_server(state)
        if not len(state.ttft):  # no F yet
            return Start(0.0, 0.0 if state.coin < state.budget else NEVER)
        return Start(0.0, self.wait_s(state))

    def wait_s(self, state: DispatchState) -> float:
        """Return W[l] of DiSCo's algorithm 2: seconds that the device waits for the server."""
        budget, ttft = state.budget, state.ttft
        if budget <= 0.0:
            return NEVER
        tail = min(self._alpha, budget)
        left = budget - tail  # after protecting the tail; spent on the shortest prompts first
        if left > 0.0:
            to_zero = 1.0 - tail  # share of their tokens that prompts of one length cost if they never wait
            below, here, _ = state.lengths.around(state.tokens)
            left -= below * to_zero
            if left >= here * to_zero and left > 0.0:
                return 0.0
            if left > 0.0 and state.coin * here * to_zero < left:
                return 0.0
        return ttft.quantile(1.0 - tail)


@dispatch.register("disco-linear")
class DiscoLinear(Disco):
    """DiSCo's linear form for a constrained device, its equation (1): from l_th on the wait grows with the length,
    W(l) = min(β·l, w_tail).

    tail_share: as in Disco.
    threshold_share: share of the budget beyond α that prompts shorter than l_th use by never waiting. β then follows
        from DiSCo's equation (2), by bisection.
    """

    def __init__(self, tail_share: float = 0.05, threshold_share: float = 0.5) -> None:
        super().__init__(tail_share)
        if not 0.0 <= threshold_share <= 1.0:
            raise ValueError(f"threshold_share must lie between 0 and 1, not {threshold_share}")
        self._share = threshold_share
        self._fitted: tuple[Lengths, Latencies, tuple[float, ...]] | None = None
        self._line = 0, 0.0, 0.0

    def wait_s(self, state: DispatchState) -> float:
        if state.budget <= self._alpha or not len(state.lengths):
            return super().wait_s(state)
        threshold, beta, tail_s = self._plan(state)
        return 0.0 if state.tokens < threshold else min(beta * state.tokens, tail_s)

    def _plan(self, state: DispatchState) -> tuple[int, float, float]:
        """Return l_th (shorter prompts never wait), β in seconds per token and w_tail in seconds, refitted now and
        then."""
        lengths, ttft, budget = state.lengths, state.ttft, math.floor(1000 * state.budget) / 1000
        at, fitted = (budget, lengths.seen // REFIT, ttft.seen // REFIT), self._fitted
        if fitted is None or fitted[0] is not lengths or fitted[1] is not ttft or fitted[2] != at:
            self._fitted, self._line = (lengths, ttft, at), self._fit(lengths, ttft, budget)
        return self._line

    def _fit(self, lengths: Lengths, ttft: Latencies, budget: float) -> tuple[int, float, float]:
        tail_s = ttft.quantile(1.0 - self._alpha)
        threshold = lengths.threshold(self._share * (budget - self._alpha) / (1.0 - self._alpha))
        tokens, shares = lengths.shares()
        waiting = tokens >= threshold
        most = budget - shares[~waiting].sum()
        tokens, shares = tokens[waiting], shares[waiting]

        def spent(beta: float) -> float:
            return float(shares @ (1.0 - ttft.cdfs(np.minimum(beta * tokens, tail_s))))

        if spent(0.0) <= most:
            return threshold, 0.0, tail_s
        low, high = 0.0, 2.0 * tail_s / threshold  # the value at which all wait for w_tail
        for _ in range(40):
            beta = (low + high) / 2
            low, high = (beta, high) if spent(beta) > most else (low, beta)
        return threshold, high, tail_s


def long_prompts_to_the_server(state: DispatchState) -> Start:
    """Return the delays by DiSCo's algorithm 3: the device takes every prompt, the server also those of at least l_th
    tokens.

    Prompts of exactly l_th tokens go to the server as often as the budget allows.
    """
    lengths, budget = state.lengths, state.budget
    if not len(lengths):
        return BOTH if state.coin < budget else DEVICE_ONLY
    _, here, longer = lengths.around(state.tokens)
    if longer >= budget:
        return DEVICE_ONLY
    if longer + here <= budget:
        return BOTH
    return BOTH if state.coin * here < budget - longer else DEVICE_ONLY
