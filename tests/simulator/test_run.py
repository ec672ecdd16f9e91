"""What requests may say of themselves."""

from __future__ import annotations

from simulator.run import simulate
from simulator.workload import Request
from tests.simulator.configurations import TARGET, config


def test_one_run_may_mix_modes() -> None:
    requests = [Request(i * 1.0, 20, 10, bytes(10), mode=("cloud", "device")[i % 2]) for i in range(4)]
    summary = simulate(config(mode=None), requests=requests).summary()
    assert summary["tokens_by_origin"] == {"cloud": 20, "device": 20}


def test_without_a_mode_the_collaboration_policy_chooses() -> None:
    """A request of a device is answered speculatively, one without a device in the cloud."""
    request = Request(0.0, 20, 10, bytes([1] * 10))
    with_devices = simulate(config(mode=None), requests=[request]).summary()
    assert with_devices["drafted"] > 0
    without = simulate(config(mode=None, devices=[]), requests=[request]).summary()
    assert without["tokens_by_origin"] == {"cloud": 10}


def test_a_client_gets_no_more_than_it_allows() -> None:
    requests = [Request(0.0, 20, 10, bytes(10), max_tokens=4), Request(0.0, 20, 10, bytes(10))]
    summary = simulate(config(mode="cloud"), requests=requests).summary()
    assert summary["tokens_by_origin"] == {"cloud": 14}


def test_a_run_ends_though_its_last_answers_end_in_the_same_moment() -> None:
    requests = [Request(0.0, 20, 10, bytes(10)) for _ in range(3)]
    summary = simulate(config(mode="cloud", targets=[TARGET], devices=[]), requests=requests).summary()
    assert summary["finished"] == 3
