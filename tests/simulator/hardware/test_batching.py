from __future__ import annotations

from typing import Any

import pytest

from tandem.simulator import hardware
from tandem.simulator.config.config import parse
from tandem.simulator.hardware import MeasuredTimer, derive_batching
from tandem.simulator.hardware.batching import NEVER, Batching
from tandem.simulator.runs.run import simulate
from tests.effort import tried


def test_a_chunk_makes_a_step_at_most_sixteen_times_as_long() -> None:
    """Without a chunk 20 ms and 32 positions of 1 ms each: 52 ms, so that there is time for 780 positions more."""
    assert derive_batching(MeasuredTimer(base_s=0.020, token_s=0.001)) == Batching(512, NEVER)


def test_attention_that_grows_is_seen() -> None:
    """A chunk of 8 tokens' time a token takes twice that with 2,000 tokens before it."""
    timer = MeasuredTimer(base_s=1.0, token_s=1e-3, context_s=0.0)

    class Growing:
        def step_s(self, tokens: int, sequences: int, context: int, prefills: Any = ()) -> float:
            attention_s = sum(chunk * before * 1e-3 / 2000 for chunk, before in prefills)
            return timer.step_s(tokens, sequences, context) + attention_s

    assert derive_batching(Growing()).context_doubles == 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "rate_per_s"),
    [
        ("4xA100", "Llama-2-70B", 1.3),
        pytest.param("H100", "Llama-3.1-8B", 5.0, marks=pytest.mark.slow),
        pytest.param("RTX4090", "Llama-3.1-8B", 2.1, marks=pytest.mark.slow),
    ],
)
def test_what_is_derived_is_nearly_the_best_of_a_sweep(name: str, model: str, rate_per_s: float) -> None:
    """About 60 % load, prompts of a thousand tokens; the end of the last answer weighs in the rate of a run this
    short."""

    def figures(**parameters: int) -> tuple[float, float]:
        config = parse(
            {
                "workload": {
                    "count": 80,
                    "prompt": {"mean": 1000, "cv": 0.5},
                    "output": {"mean": 220, "cv": 0.5},
                    "arrival": {"rate_per_s": rate_per_s},
                    "acceptance": {"kind": "alpha"},
                },
                "mode": "cloud",
                "engine": {"batching": {"name": "chunked", "parameters": parameters}},
                "targets": [{"hardware": name, "model": model}],
            }
        )
        summary = simulate(config).summary()
        return summary["ttft_s"]["mean"], summary["tokens_per_s"]

    ttft_s, tokens_per_s = figures()
    swept = [figures(chunk=chunk) for chunk in tried((512, 4096), (128, 512, 1024, 2048, 4096, 8192))]
    assert ttft_s <= 1.05 * min(ttft for ttft, _ in swept)
    assert tokens_per_s >= 0.97 * max(rate for _, rate in swept)
    assert hardware.derive_batching(hardware.timer(name, model)).chunk >= 1024
