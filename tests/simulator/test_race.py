"""Races in virtual time: by hand where the numbers are simple, and the policies' promises over many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.deployments.request.tokenlog import Origin
from tandem.policies.cost import Used
from tandem.policies.race.dispatch import Side
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tests.effort import slow_after
from tests.simulator.configurations import config

SERVER = {"model": "t", "measured": {"base_s": 0.1, "token_s": 0.0, "context_s": 0.0}}
DEVICE = {"rates": {"prefill_tokens_per_s": 100, "decode_tokens_per_s": 20}, "power_w": 10.0}


def race(requests: list[Request], dispatch: str, migration: str = "never", **settings: Any) -> Result:
    """One server that takes 0.1 s a step; devices that take in 100 tokens/s and give out 20."""
    devices = {**DEVICE, "count": settings.pop("devices", 1)}
    engine = {"latency": settings.pop("latency", None)}
    racing = {"dispatch": {"name": dispatch}, "migration": {"name": migration}}
    made = config(
        mode="race",
        reader="device",
        racing=racing,
        accounts=settings,
        engine=engine,
        targets=[SERVER],
        devices=[devices],
        history=True,
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
    """The server takes one step for the prompt and the first token, though it is asked for them one after another."""
    (answer,) = race([request()], dispatch, budget=1.0).answers
    assert answer.first_s == pytest.approx(first_s)
    assert answer.origins == {origin: 4}
    assert answer.stats.used == used


@pytest.mark.parametrize("reader", ["device", "cloud"])
def test_a_device_alone_takes_as_long_in_its_own_mode(reader: str) -> None:
    """Include the link and the first decode step, which the first simulator forgot in mode device."""
    devices = [{**DEVICE, "sessions": 2, "link": {"rtt_ms": 20}}]
    settings = {"reader": reader, "devices": devices, "targets": [SERVER], "history": True}
    racing = {"dispatch": {"name": "device"}, "migration": {"name": "never"}}
    asked = [request(50, 4), request(50, 4, 10.0)]
    alone = simulate(config(mode="device", **settings), requests=asked).answers
    raced = simulate(config(mode="race", racing=racing, **settings), requests=asked).answers
    assert [a.times_s for a in alone] == [a.times_s for a in raced]
    first_s = 50 / 100 + 1 / 20 + (0.0 if reader == "device" else 0.02)
    assert alone[0].first_s == pytest.approx(first_s)


def test_the_first_wins_and_the_other_stops() -> None:
    """A budget of 1 starts both at once; the device takes 0.07 s over a prompt of two tokens, the server 0.1 s."""
    result = race([request(prompt=2)], "disco", budget=1.0)
    (answer,) = result.answers
    assert answer.first_s == pytest.approx(0.07)
    assert answer.origins == {Origin.DEVICE: 4}
    assert answer.stats.used == Used(2, 0, 2, 4)
    assert result.servers[0].steps == 1
    assert result.servers[0].open_sessions == 0


@pytest.mark.parametrize("dispatch", ["server", "disco"])
def test_the_answer_moves_to_the_cheaper_one_when_the_reader_has_enough(dispatch: str) -> None:
    """The device costs nothing, and loses a long prompt, or has not begun with it. A reader of 2 tokens/s has
    B = 2 · k·l tokens before it when the device has to take in l tokens: prompt and answer; or, where it lost and
    goes on with the prompt, the rest of that and the answer but for the first token, which it says itself."""
    (answer,) = race(
        [request(prompt=100, output=60, rate=2.0)], dispatch, "buffered", budget=1.0, exchange_rate=0.0
    ).answers
    figures, lost = answer.stats.figures["race"], dispatch == "disco"
    assert (figures.migrations, figures.kept) == (1, lost)
    assert answer.first_s == pytest.approx(0.1)
    assert answer.times_s is not None
    times = np.array(answer.times_s)
    gap = int(np.argmax(np.diff(times)))
    sent = gap + 1
    assert answer.origins == {Origin.CLOUD: sent, Origin.DEVICE: 60 - sent}
    assert answer.stats.used.device_in == 100 + sent
    taken_over_s = 1.05 + (sent - 1) / 100 if lost else times[gap] + (100 + sent) / 100
    assert times[gap + 1] == pytest.approx(taken_over_s + 0.05, rel=0.02)
    read_s = times[0] + np.arange(60) / 2.0
    assert (times <= read_s).all(), "the reader has noticed nothing"
    assert sent < 30, "and it did not wait for longer than needed"


@pytest.mark.parametrize("dispatch", ["server", "disco"])
def test_a_target_that_has_the_prompt_gets_the_answer_sooner(dispatch: str) -> None:
    """The target took in the prompt while the server gave what the reader needed, and pays for it once. The first
    answer tells how long that takes with the first token after it."""
    answers = {}
    for migration in ("buffered", "prepared"):
        asked = [request(100, 60, at_s, rate=5.0) for at_s in (0.0, 100.0)]
        _, answers[migration] = race(asked, dispatch, migration, budget=1.0, exchange_rate=0.0).answers
    answer, other = answers["prepared"], answers["buffered"]
    figures, lost = answer.stats.figures["race"], dispatch == "disco"
    assert (figures.migrations, figures.kept, figures.prepared) == (1, lost, not lost)
    assert answer.origins[Origin.CLOUD] < other.origins[Origin.CLOUD]
    sent = answer.origins[Origin.CLOUD]
    assert answer.stats.used.device_in == 100 + (not lost) + sent
    assert answer.times_s is not None
    times = np.array(answer.times_s)
    assert (times <= times[0] + np.arange(60) / 5.0).all(), "the reader has noticed nothing"


def test_it_stays_where_it_is_cheapest() -> None:
    (answer,) = race(
        [request(prompt=100, output=60, rate=2.0)], "disco", "buffered", budget=1.0, exchange_rate=1.0
    ).answers
    assert answer.stats.figures["race"].migrations == 0


@pytest.mark.parametrize("exchange_rate", [0.0, 1.0])  # the server is constrained, or the device is
@pytest.mark.parametrize("share", slow_after(1, [0.2, 0.6]))
def test_the_budget_is_kept(share: float, exchange_rate: float) -> None:
    rng = np.random.default_rng(5)
    requests = [request(int(n), 2, 20.0 * i) for i, n in enumerate(rng.integers(1, 200, 1500))]
    latency = {"median_s": 0.5, "sigma": 0.8}
    result = race(requests, "disco", budget=share, exchange_rate=exchange_rate, latency=latency)
    tokens, spent = result.budgets[Side.DEVICE if exchange_rate else Side.SERVER]
    assert tokens == sum(answer.prompt_tokens for answer in result.answers[-1000:])
    assert spent / tokens == pytest.approx(share, abs=0.02)
    used = [answer.stats.used for answer in result.answers[-1000:] if answer.stats is not None]
    if exchange_rate:  # a device that is stopped has not taken everything in
        assert sum(each.device_in for each in used) <= spent
    else:
        assert sum(each.server_in for each in used) == spent


@pytest.mark.slow
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
    ttft_s = [[answer.first_s - answer.arrival_s for answer in result.answers] for result in (disco, chance)]
    assert np.mean(ttft_s[0]) < 0.9 * np.mean(ttft_s[1])
    assert np.percentile(ttft_s[0], 99) < 0.9 * np.percentile(ttft_s[1], 99)


def test_a_server_that_is_still_coming_to_rest_resumes() -> None:
    """The device is full, so that the hand-over fails at once, without a link that would take its time."""
    settings: dict[str, Any] = {
        "reader": "device",
        "targets": [{**SERVER, "measured_draft": None}],
        "devices": [{**DEVICE, "sessions": 1, "link": {"rtt_ms": 0}}],
        "racing": {"dispatch": {"name": "server"}, "migration": {"name": "buffered"}},
        "accounts": {"budget": 1.0, "exchange_rate": 0.0},
        "engine": {"max_sessions": 1, "token_budget": 16, "latency": {"median_s": 0.3, "sigma": 1.0}},
    }
    asked = [request(1, tokens) for tokens in (1, 2, 5, 1, 1)]
    answers = simulate(config(mode="race", **settings), requests=asked).answers
    assert [answer.failure for answer in answers] == [None] * 5
    assert sum(answer.stats.figures["race"].migrations_failed for answer in answers)
