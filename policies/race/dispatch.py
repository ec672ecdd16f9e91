"""Dispatch: when device and server start on a prompt, so that one of them spends no more than its budget.

DiSCo (Sun et al. 2025), section 4.2 and algorithms 2 and 3. The budget b is the share of all prompt tokens
that the constrained endpoint may process. The plan is no table that is made anew now and then: what a prompt of
length l gets follows from two windows of samples, so the plan changes with every sample for the cost of noting it.
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
REFIT = 64  # samples after which what is fitted to them is fitted again


class Side(StrEnum):
    """The two endpoints of a race: the one that the user owns, and the one that charges money."""

    DEVICE = "device"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class DispatchState:
    """What is known when a request arrives.

    tokens: the prompt's length.
    lengths: p(l), how long prompts are.
    ttft: F(t), the server's time to first token in seconds.
    budget: b in [0, 1].
    constrained: the endpoint that the budget limits.
    coin: uniform in [0, 1), drawn anew for each request, for what is decided by chance. It decides one thing at most:
        there are no more than two plans for a request, one for coins below some value and one for the others.
    """

    tokens: int
    lengths: Lengths
    ttft: Latencies
    budget: float
    constrained: Side
    coin: float


@dataclass(frozen=True, slots=True)
class Start:
    """When each endpoint starts, if the other has given no token by then: seconds after the request came.

    server_s: the server; NEVER: not at all.
    device_s: the device; NEVER: not at all.
    """

    server_s: float
    device_s: float


BOTH = Start(0.0, 0.0)
SERVER_ONLY, DEVICE_ONLY = Start(0.0, NEVER), Start(NEVER, 0.0)


class DispatchPolicy(Protocol):
    def choose(self, state: DispatchState) -> Start:
        """At least one endpoint starts at once. The constrained one's expected share of prompt tokens is at
        most the budget."""
        ...


dispatch: Registry[DispatchPolicy] = Registry("dispatch")


@dispatch.register("server")
class ServerOnly:
    """Everything to the server."""

    def choose(self, state: DispatchState) -> Start:
        return SERVER_ONLY


@dispatch.register("device")
class DeviceOnly:
    """Everything to the device."""

    def choose(self, state: DispatchState) -> Start:
        return DEVICE_ONLY


@dispatch.register("stochastic")
class Stochastic:
    """DiSCo's baselines Stoch-S and Stoch-D: the constrained endpoint alone serves a random share b of the prompts,
    the other one the rest."""

    def choose(self, state: DispatchState) -> Start:
        spend = state.coin < state.budget
        return DEVICE_ONLY if spend == (state.constrained is Side.DEVICE) else SERVER_ONLY


@dispatch.register("disco")
class Disco:
    """DiSCo's algorithm 2 where the device is constrained, its algorithm 3 where the server is.

    tail_share: α, the part of the device's budget that is kept for the server's slowest answers.
    """

    def __init__(self, tail_share: float = 0.05) -> None:
        if not 0.0 < tail_share < 1.0:
            raise ValueError(f"tail_share must lie between 0 and 1, not {tail_share}")
        self._alpha = tail_share

    def choose(self, state: DispatchState) -> Start:
        if state.constrained is Side.SERVER:
            return long_prompts_to_the_server(state)
        if not len(state.ttft):  # no F yet: nothing to plan with
            return Start(0.0, 0.0 if state.coin < state.budget else NEVER)
        return Start(0.0, self.wait_s(state))

    def wait_s(self, state: DispatchState) -> float:
        """W[l] of DiSCo's algorithm 2: how long the device waits for the server, seconds."""
        budget, ttft = state.budget, state.ttft
        if budget <= 0.0:
            return NEVER
        tail = min(self._alpha, budget)
        left = budget - tail  # after protecting the tail; spent on the shortest prompts first
        if left > 0.0:
            to_zero = 1.0 - tail  # that prompts of a length never wait costs this part of their tokens
            below, here, _ = state.lengths.around(state.tokens)
            left -= below * to_zero
            if left >= here * to_zero and left > 0.0:
                return 0.0
            if left > 0.0:
                tail += left / here
        return ttft.quantile(1.0 - tail)


@dispatch.register("disco-linear")
class DiscoLinear(Disco):
    """DiSCo's other form for a constrained device, its equation (1): from l_th on the wait grows with the length,
    W(l) = min(β·l, w_tail).

    tail_share: as in Disco.
    threshold_share: part of the budget beyond α that prompts shorter than l_th use up by never waiting. β then follows
        from DiSCo's equation (2), and is found by bisection.
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
        """(l_th: shorter prompts never wait, β in seconds a token, w_tail in seconds), fitted again after a while."""
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
        low, high = 0.0, 2.0 * tail_s / threshold  # at which all wait for w_tail
        for _ in range(40):
            beta = (low + high) / 2
            low, high = (beta, high) if spent(beta) > most else (low, beta)
        return threshold, high, tail_s


def long_prompts_to_the_server(state: DispatchState) -> Start:
    """DiSCo's algorithm 3: the device takes every prompt, and the server those of l_th tokens and more as well.

    Prompts of l_th tokens themselves go to the server as often as the budget still has room for.
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
