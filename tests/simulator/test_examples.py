"""The examples show what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.config import load
from simulator.run import simulate

EXAMPLES = Path(__file__).parents[2] / "simulator" / "examples"


@pytest.mark.parametrize("name", ["pool", "laptops"])
def test_speculation_pays(name: str) -> None:
    def tpot_s(mode: str) -> float:
        config = load(EXAMPLES / f"{name}.yaml", [f"mode={mode}", "workload.count=160"])
        median: float = simulate(config).summary()["tpot_s"]["p50"]
        return median

    assert tpot_s("speculative") < 0.85 * tpot_s("cloud")
