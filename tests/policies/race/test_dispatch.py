"""Dispatch policies: DiSCo's budget invariants, and its plans by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.estimators.windows import Latencies, Lengths
from tandem.policies.race.dispatch import (
    BOTH,
    DEVICE_ONLY,
    NEVER,
    SERVER_ONLY,
    DispatchState,
    Side,
    Start,
    dispatch,
)

prompts = st.lists(
    st.one_of(st.integers(1, 400), st.integers(1, 20), st.integers(1, 200_000)), min_size=1, max_size=60
)
times = st.lists(st.floats(0.01, 50), min_size=1, max_size=60)
budgets = st.floats(0, 1)
BUDGETED = ["disco", "disco-linear", "stochastic"]


def state(tokens, lengths, ttft, budget, constrained, coin=0.5) -> DispatchState:
    return DispatchState(tokens, lengths, ttft, budget, constrained, coin)


LAST_COIN = math.nextafter(1.0, 0.0)


def by_coin(plan: Callable[[float], Start]) -> list[tuple[float, Start]]:
    """(probability, plan) of the plans that there are, one for coins below some value and one for the others."""
    low, high = plan(0.0), plan(LAST_COIN)
    if low == high:
        return [(1.0, low)]
    below, above = 0.0, LAST_COIN
    while below < (middle := (below + above) / 2) < above:
        below, above = (middle, above) if plan(middle) == low else (below, middle)
    return [(above, low), (1.0 - above, high)]


def spent(policy, prompt, ttft, budget, constrained) -> float:
    """Share of prompt tokens that the constrained endpoint takes in, expected over prompts, times and coins."""
    lengths, latencies = Lengths(prompt), Latencies(ttft)
    total = 0.0
    for tokens, prompts_alike in Counter(prompt).items():

        def plan(coin: float, tokens: int = tokens) -> Start:
            return policy.choose(state(tokens, lengths, latencies, budget, constrained, coin))

        for probability, start in by_coin(plan):
            if constrained is Side.SERVER:
                used = float(start.server_s == 0.0)
            else:  # it starts unless the server's token has come by then
                used = (
                    1.0 - latencies.cdf(start.device_s) if 0 < start.device_s < NEVER else start.device_s == 0
                )
            total += used * tokens * prompts_alike * probability
    return total / sum(prompt)


@pytest.mark.parametrize("name", list(dispatch))
@given(prompts, times, budgets, st.sampled_from(Side), st.integers(1, 500), st.lists(st.floats(0, 0.999)))
def test_a_coin_decides_one_thing(name, prompt, ttft, budget, constrained, tokens, coins):
    lengths, latencies, policy = Lengths(prompt), Latencies(ttft), dispatch.create(name)
    plans = [policy.choose(state(tokens, lengths, latencies, budget, constrained, c)) for c in sorted(coins)]
    assert len(list(groupby(plans))) <= 2


@pytest.mark.parametrize("name", BUDGETED)
@given(prompts, times, budgets)
def test_the_device_stays_within_its_budget(name, prompt, ttft, budget):
    used = spent(dispatch.create(name), prompt, ttft, budget, Side.DEVICE)
    assert used <= budget + 1e-9


@pytest.mark.parametrize("name", BUDGETED)
@given(prompts, times, budgets)
def test_the_server_gets_its_budget_exactly(name, prompt, ttft, budget):
    used = spent(dispatch.create(name), prompt, ttft, budget, Side.SERVER)
    assert used == pytest.approx(budget, abs=1e-6)


@given(st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
def test_a_continuous_distribution_is_spent_to_the_last_bit(budget, seed):
    """The invariant of algorithm 2 with an F that has no atoms: sum of p(l) l (1 - F(W[l])) / E[l] = b."""

    class Exponential(Latencies):
        def __len__(self):
            return 1

        def cdf(self, seconds):
            return 1.0 - math.exp(-seconds)

        def quantile(self, share):
            return -math.log1p(-share) if share > 0 else 0.0

    prompt = np.random.default_rng(seed).integers(1, 300, 40).tolist()
    lengths, ttft, disco = Lengths(prompt), Exponential(), dispatch.create("disco")
    used = 0.0
    for tokens in prompt:

        def plan(coin: float, tokens: int = tokens) -> Start:
            return disco.choose(state(tokens, lengths, ttft, budget, Side.DEVICE, coin))

        for probability, start in by_coin(plan):
            used += tokens * probability * (1.0 - ttft.cdf(start.device_s))
    assert used / sum(prompt) == pytest.approx(budget, abs=1e-6)


@given(prompts, times, budgets)
def test_discos_device_waits_longer_for_longer_prompts(prompt, ttft, budget):
    lengths, latencies = Lengths(prompt), Latencies(ttft)
    disco = dispatch.create("disco")
    waits = [disco.choose(state(n, lengths, latencies, budget, Side.DEVICE)).device_s for n in sorted(prompt)]
    assert waits == sorted(waits)


def test_discos_server_takes_the_long_prompts():
    lengths = Lengths([10] * 10 + [100] * 10)  # 100 and 1000 tokens of 1100
    disco = dispatch.create("disco")

    def start(tokens, budget, coin=0.5):
        return disco.choose(state(tokens, lengths, Latencies(), budget, Side.SERVER, coin))

    assert start(10, 0.5) == DEVICE_ONLY
    assert start(100, 0.95) == BOTH
    assert start(100, 500 / 1100, coin=0.49) == BOTH  # half of the long ones
    assert start(100, 500 / 1100, coin=0.51) == DEVICE_ONLY
    assert start(10, 1.0, coin=0.999) == BOTH
    assert start(100, 0.0, coin=0.0) == DEVICE_ONLY


def test_discos_device_protects_the_tail_first():
    ttft = Latencies(np.arange(1, 101) / 100)  # 0.01 ... 1.00 s
    lengths = Lengths([10] * 10 + [100] * 10)
    disco = dispatch.create("disco", tail_share=0.1)

    def wait(tokens, budget, coin=0.5):
        return disco.choose(state(tokens, lengths, ttft, budget, Side.DEVICE, coin)).device_s

    assert wait(10, 0.0) == wait(100, 0.0) == NEVER
    assert wait(10, 0.04) == wait(100, 0.04) == pytest.approx(0.96)  # b below alpha: all of it
    assert wait(10, 0.1) == wait(100, 0.1) == pytest.approx(0.9)
    assert wait(10, 0.1 + 0.9 * 100 / 1100) == 0.0  # enough for the short ones
    assert wait(100, 0.1 + 0.9 * 100 / 1100) == pytest.approx(0.9)
    assert wait(10, 0.13, coin=0.36) == 0.0  # for a part of them: 0.03 · 1100 of 0.9 · 100 tokens
    assert wait(10, 0.13, coin=0.37) == pytest.approx(0.9)
    assert wait(100, 1.0) == 0.0


def test_stochastic_baselines_use_one_endpoint_each():
    stochastic = dispatch.create("stochastic")
    args = (Lengths([5]), Latencies([1.0]), 0.3)
    assert stochastic.choose(state(5, *args, Side.SERVER, 0.2)) == SERVER_ONLY
    assert stochastic.choose(state(5, *args, Side.SERVER, 0.4)) == DEVICE_ONLY
    assert stochastic.choose(state(5, *args, Side.DEVICE, 0.2)) == DEVICE_ONLY
    assert stochastic.choose(state(5, *args, Side.DEVICE, 0.4)) == SERVER_ONLY


@pytest.mark.parametrize("name", ["disco", "disco-linear"])
@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_the_tails_share_is_checked(name, share):
    with pytest.raises(ValueError, match="tail_share"):
        dispatch.create(name, tail_share=share)


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.8])
def test_where_all_prompts_are_alike_the_linear_wait_spends_the_budget(budget: float) -> None:
    """The device starts after the server's token would have come with the share 1 − b: its own share is then b."""
    ttft = Latencies([n / 10 for n in range(1, 101)])
    start = dispatch.create("disco-linear").choose(state(10, Lengths([10] * 50), ttft, budget, Side.DEVICE))
    assert start == Start(0.0, pytest.approx(10 * (1 - budget), abs=0.15))


def test_who_starts_starts_at_once() -> None:
    starts = [(start.server_s, start.device_s) for start in (BOTH, SERVER_ONLY, DEVICE_ONLY)]
    assert starts == [(0.0, 0.0), (0.0, NEVER), (NEVER, 0.0)]
