"""Simulations from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import tandem

POOL = Path(__file__).parents[3] / "simulator" / "examples" / "pool.yaml"


def test_changes_reach_the_configuration() -> None:
    result = tandem.simulate(POOL, {"workload.count": 12, "window.name": "dynamic"})
    assert len(result.frame()) == len(result.answers) == 12
    assert result.config.window.name == "dynamic"  # type: ignore[attr-defined]  # a field of each mode's
    assert tandem.simulate(result.config).json() == result.json()


def test_requests_of_ones_own() -> None:
    few = [tandem.Request(0.1 * i, 20, 4, bytes(4)) for i in range(3)]
    assert [answer.tokens for answer in tandem.simulate(POOL, requests=few).answers] == [4, 4, 4]


def test_a_wrong_key_is_named() -> None:
    with pytest.raises(tandem.ConfigError, match="did you mean workload"):
        tandem.simulate(POOL, {"wrkload.count": 12})


def test_a_sweep_is_a_row_for_every_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function: Callable, items: Iterable, chunk: int) -> Iterable:
        return map(function, items)

    monkeypatch.setattr("tandem.simulator.runs.tasks.ray_map", here)
    table = tandem.sweep(
        {"workload": {"count": 5}, "targets": [{"model": "m", "measured": {"base_s": 0.01}}]},
        {
            "workload.arrival": [
                {"kind": "poisson", "rate_per_s": 2.0},
                {"kind": "poisson", "rate_per_s": 9.0},
            ],
            "seed": [0, 1],
        },
    )
    assert list(table["seed"]) == [0, 1, 0, 1]
    assert set(table["finished" if "finished" in table else "requests"]) == {5}


def test_a_map_is_a_row_for_every_mode_at_every_point() -> None:
    table = tandem.mode_map(
        {
            "workload": {"count": 4},
            "targets": [{"model": "m", "measured": {"base_s": 0.01}}],
            "devices": [{"rates": {"prefill_tokens_per_s": 400, "decode_tokens_per_s": 80}}],
        },
        {"seed": [0, 1]},
        {"workload.output.mean": 8},
        in_process=True,
    )
    assert set(table["mode"]) >= {"auto", "cloud", "device", "speculative", "race"}
    assert set(table["seed"]) == {0, 1}
    cloud = table[table["mode"] == "cloud"]
    assert list(cloud["picked.cloud"]) == [1.0, 1.0]
    assert (cloud["loss_usd"] > cloud["usd"]).all()
