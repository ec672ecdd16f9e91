"""Races in virtual time: by hand where the numbers are simple, and the policies' promises over many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cluster.simulator.analysis import Result
from cluster.simulator.run import simulate
from cluster.simulator.workload import Request
from cluster.tokenlog import Origin
from policies.cost import Used
from tests.cluster.simulator.configurations import config

SERVER = {"model": "t", "measured": {"base_s": 0.1, "token_s": 0.0, "context_s": 0.0}}
DEVICE = {"rates": {"prefill_tokens_per_s": 100, "decode_tokens_per_s": 20}, "power_w": 10.0}


def race(requests: list[Request], dispatch: str, migration: str = "never", **settings: Any) -> Result:
    """One server that takes 0.1 s a step; devices that take in 100 tokens/s and give out 20."""
    devices = {**DEVICE, "count": settings.pop("devices", 1)}
    policies = {"dispatch": {"name": dispatch}, "migration": {"name": migration}}
    made = config(
        mode="race",
        reader="device",
        policies=policies,
        targets=[SERVER],
        drafters=[devices],
        history=True,
        race=settings,
    )
    return simulate(made, requests=requests)


def request(prompt: int = 5, output: int = 4, at_s: float = 0.0, rate: float = 0.0) -> Request:
    return Request(at_s, prompt, output, bytes(output), None, rate)


@pytest.mark.parametrize(
    ("dispatch", "origin", "first_s", "used"),
    [
        ("server", Origin.CLOUD, 0.1, Used(5, 4, 0, 0)),
        ("device", Origin.DEVICE, 0.05 + 0.05, Used(0, 0, 5, 4)),
    ],
)
def test_alone(dispatch: str, origin: Origin, first_s: float, used: Used) -> None:
    (log,) = race([request()], dispatch).logs
    assert log.first_s == pytest.approx(first_s)
    assert log.origins == {origin: 4}
    assert log.used == used


def test_the_first_wins_and_the_other_stops() -> None:
    """A budget of 1 starts both at once; the device takes 0.07 s over a prompt of two tokens, the server 0.1 s."""
    result = race([request(prompt=2)], "disco", budget=1.0)
    (log,) = result.logs
    assert log.first_s == pytest.approx(0.07)
    assert log.origins == {Origin.DEVICE: 4}
    assert log.used == Used(2, 0, 2, 4)
    assert result.servers[0].steps == 1
    assert result.servers[0].open_sessions == 0


def test_the_answer_moves_to_the_cheaper_one_when_the_reader_has_enough() -> None:
    """The server wins a long prompt, the device costs nothing. A reader of 2 tokens/s has B = 2 · k·l tokens
    before it when the device has taken over l tokens."""
    (log,) = race(
        [request(prompt=100, output=60, rate=2.0)], "disco", "buffered", budget=1.0, exchange_rate=0.0
    ).logs
    assert log.migrations == 1
    assert log.first_s == pytest.approx(0.1)
    assert log.times_s is not None
    times = np.array(log.times_s)
    gap = int(np.argmax(np.diff(times)))
    sent = gap + 1
    assert log.origins == {Origin.CLOUD: sent, Origin.DEVICE: 60 - sent}
    took_s = times[gap + 1] - times[gap]
    assert took_s == pytest.approx((100 + sent) / 100 + 0.05, rel=0.02)
    read_s = times[0] + np.arange(60) / 2.0
    assert (times <= read_s).all(), "the reader has noticed nothing"
    assert sent < 30, "and it did not wait for longer than needed"


def test_it_stays_where_it_is_cheapest() -> None:
    (log,) = race(
        [request(prompt=100, output=60, rate=2.0)], "disco", "buffered", budget=1.0, exchange_rate=1.0
    ).logs
    assert log.migrations == 0


@pytest.mark.parametrize("exchange_rate", [0.0, 1.0])  # the server is constrained, or the device is
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_the_budget_is_kept(share: float, exchange_rate: float) -> None:
    rng = np.random.default_rng(5)
    requests = [request(int(n), 2, 20.0 * i) for i, n in enumerate(rng.integers(1, 200, 1500))]
    latency = {"median_s": 0.5, "sigma": 0.8}
    result = race(requests, "disco", budget=share, exchange_rate=exchange_rate, latency=latency)
    logs = result.logs[-1000:]
    spent = sum((log.used.device_in if exchange_rate else log.used.server_in) for log in logs if log.used)
    assert spent / sum(log.prompt_tokens for log in logs) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("exchange_rate", [0.0, 1.0])
def test_disco_beats_chance_at_the_same_budget(exchange_rate: float) -> None:
    rng = np.random.default_rng(11)
    requests = [request(int(n), 2, 20.0 * i) for i, n in enumerate(rng.lognormal(3.5, 0.8, 800) + 1)]
    settings: dict[str, Any] = {
        "budget": 0.5,
        "exchange_rate": exchange_rate,
        "latency": {"median_s": 0.4, "sigma": 1.0},
    }
    disco, chance = (race(requests, name, **settings) for name in ("disco", "stochastic"))
    ttft_s = [[log.first_s - log.arrival_s for log in result.logs] for result in (disco, chance)]
    assert np.mean(ttft_s[0]) < 0.9 * np.mean(ttft_s[1])
    assert np.percentile(ttft_s[0], 99) < 0.9 * np.percentile(ttft_s[1], 99)
