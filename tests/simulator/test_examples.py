"""The examples show what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.simulator.config.config import load
from tandem.simulator.runs.run import simulate
from tests.effort import tried

EXAMPLES = Path(__file__).parents[2] / "simulator" / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool", "laptops"])
def test_speculation_pays(name: str) -> None:
    def tpot_s(mode: str) -> float:
        config = load(EXAMPLES / f"{name}.yaml", [f"mode={mode}", "workload.count=160"])
        median: float = simulate(config).summary()["tpot_s"]["p50"]
        return median

    assert tpot_s("speculative") < 0.85 * tpot_s("cloud")


def test_drafting_pays_at_devices_with_a_part_of_a_model() -> None:
    def medians(*changes: str) -> tuple[float, float]:
        summary = simulate(
            load(EXAMPLES / "split.yaml", [f"workload.count={tried(16, 40)}", *changes])
        ).summary()
        return summary["ttft_s"]["p50"], summary["tpot_s"]["p50"]

    plain = medians("split.chunking.name=whole", "split.drafting.name=none", "split.drafter=none")
    ttft_s, tpot_s = medians()
    assert ttft_s < plain[0]
    assert tpot_s < 0.85 * plain[1]
