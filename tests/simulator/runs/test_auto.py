"""Policy `auto` in virtual time, beside the modes that a client could name."""

from __future__ import annotations

from statistics import mean

import pytest

from tandem.policies.routing.objectives import OBJECTIVES
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tests.simulator.configurations import config

LOST = 0.3
"""Share of a device's tokens that the target would not give."""


def run(mode: str | None) -> Result:
    """Forty requests over one target that fills up, and devices that are slower."""
    return simulate(
        config(
            mode=mode,
            reader="cloud",
            router={"collaboration": {"name": "auto" if mode is None else "explicit"}},
            window={"name": "awc"},
            workload={
                "count": 40,
                "prompt": {"mean": 40, "cv": 0.5},
                "output": {"mean": 60, "cv": 0.5},
                "arrival": {"kind": "poisson", "rate_per_s": 4.0},
                "acceptance": {"kind": "alpha", "alpha": 1 - LOST},
            },
            targets=[
                {"model": "t", "measured": {"base_s": 0.03, "token_s": 0.004}, "engine": {"max_sessions": 4}}
            ],
        )
    )


def loss(result: Result) -> float:
    values, losses = OBJECTIVES["balanced"], []
    for answer in result.answers:
        assert answer.finished
        assert answer.stats is not None
        lost = LOST * answer.origins.get("device", 0) / answer.tokens
        losses.append(answer.stats.usd + values.second_usd * answer.e2e_s + values.quality_usd * lost)
    return mean(losses)


@pytest.mark.slow
def test_it_is_better_than_every_fixed_mode() -> None:
    auto = run(None)
    assert all(answer.stats and answer.stats.forecast for answer in auto.answers)
    assert len({answer.mode for answer in auto.answers}) > 1
    for mode in ("cloud", "speculative"):
        assert loss(auto) < loss(run(mode))
