"""Agreement of the simulated engine with queueing theory and the arithmetic of speculation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tests.effort import slow_after
from tests.simulator.configurations import config

SERVICE_S = 0.02


def single_server(arrivals_s: np.ndarray) -> Result:
    """Requests of one step each, which one server takes one at a time."""
    made = config(
        mode="cloud",
        devices=[],
        targets=[{"model": "t", "measured": {"base_s": SERVICE_S}}],
        engine={"batching": {"name": "fifo", "parameters": {"size": 1}}, "max_waiting": 100_000},
    )
    return simulate(made, requests=[Request(float(at_s), 1, 1) for at_s in arrivals_s])


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.8, 0.5])
def test_the_wait_of_single_steps_is_that_of_an_m_d_1_queue(load: float) -> None:
    gaps_s = np.random.default_rng(17).exponential(SERVICE_S / load, 6000)
    result = single_server(np.cumsum(gaps_s))
    waits_s = np.array([a.first_s - a.arrival_s for a in result.answers]) - SERVICE_S
    lindley_s = np.zeros(len(gaps_s))
    for i in range(1, len(gaps_s)):
        lindley_s[i] = max(0.0, lindley_s[i - 1] + SERVICE_S - gaps_s[i])
    assert waits_s == pytest.approx(lindley_s, abs=1e-9)
    expected_s = load * SERVICE_S / (2 * (1 - load))  # Pollaczek–Khinchine
    batches = waits_s.reshape(20, -1).mean(axis=1)
    error_s = batches.std(ddof=1) / np.sqrt(len(batches))
    assert waits_s.mean() == pytest.approx(expected_s, abs=3 * error_s)
    assert error_s < 0.15 * expected_s
    assert result.summary()["utilisation"][0] == pytest.approx(load, rel=0.05)


@pytest.mark.slow
def test_so_many_are_there_as_come_times_how_long_they_stay() -> None:
    """Little's law: the open sessions that samples find are the rate of arrivals times the time in the system."""
    gaps_s = np.random.default_rng(3).exponential(SERVICE_S / 0.8, 6000)
    result = single_server(np.cumsum(gaps_s))
    stays_s = np.array([a.last_s - a.arrival_s for a in result.answers])
    span_s = max(a.last_s for a in result.answers)
    samples = np.array([load for _, load in result.loads["verifier"]])
    assert samples.mean() == pytest.approx(stays_s.sum() / span_s, rel=0.15)


@pytest.mark.parametrize("gap_s", [0.0, 0.001, 0.3])
def test_fcfs_that_keeps_room_for_all_that_clients_allow_preempts_nobody(gap_s: float) -> None:
    """64 + 200 tokens each, 640 in all: two run at a time, in order, and their readers wait for nothing."""
    scheduling = {"name": "fcfs", "parameters": {"reserve": 1.0}}
    engine = {"kv_blocks": 40, "scheduling": scheduling}
    target = {"model": "t", "measured": {"base_s": SERVICE_S}}
    asked = [Request(i * gap_s, 64, 200, max_tokens=200, reader_rate=10.0) for i in range(12)]
    result = simulate(config(mode="cloud", devices=[], targets=[target], engine=engine), requests=asked)
    summary = result.summary()
    assert (summary["finished"], summary["preempted"]) == (12, 0)
    assert summary["reading"]["stall_max_s"] == pytest.approx(0.0, abs=1e-9)
    firsts_s = [answer.first_s for answer in result.answers]
    assert firsts_s == sorted(firsts_s)


@pytest.mark.parametrize(("alpha", "window"), slow_after(1, [(0.8, 4), (0.5, 2), (0.9, 8)]))
def test_a_round_yields_as_many_tokens_as_the_closed_form_says(alpha: float, window: int) -> None:
    """1 + α + … + α^γ, with each draft accepted independently (Leviathan et al. 2023, equation 1)."""
    bits = (np.random.default_rng(1).random(20_000) < alpha).astype(np.uint8).tobytes()
    made: dict[str, Any] = {"engine": {"kv_blocks": 2000}, "reader": "cloud", "history": True}
    asked = [Request(0.0, 10, len(bits), bits)]
    (answer,) = simulate(config(**made), requests=asked, window=lambda: StaticWindow(window)).answers
    assert answer.history is not None
    yields = np.array([r.tokens for r in answer.history if r.window == window])
    expected = (1 - alpha ** (window + 1)) / (1 - alpha)
    assert yields.mean() == pytest.approx(expected, abs=4 * yields.std() / np.sqrt(len(yields)))
    assert len(yields) > 2000
