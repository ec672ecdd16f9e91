"""Savings of migrations, and the effect of a loser that holds the prompt."""

from __future__ import annotations

import numpy as np

from tandem.benchmarks.disco.data import DEVICES, SERVICES
from tandem.benchmarks.disco.migration import CONSISTENT, Migration, Moved
from tandem.policies.estimators.windows import Latencies
from tandem.policies.race.dispatch import Side

PROMPTS = np.full(3, 40)
SERVER_S = np.full(3, 0.4)


def moved(device_start_s: float) -> Moved:
    """Three answers, whose races a server won that is dear to decode on; the device began then, if at all."""
    service, device = next(iter(SERVICES.values())), next(iter(DEVICES.values()))
    migration = Migration(service, device, CONSISTENT[Side.SERVER], Latencies([0.4] * 8))
    starts_s, ones = np.full(3, device_start_s), np.ones(3)
    return migration.move(PROMPTS, SERVER_S, starts_s, SERVER_S, ones)


def test_a_loser_that_holds_the_prompt_gets_the_answer_cheaper_and_in_time() -> None:
    held, cold = moved(0.39), moved(np.inf)
    assert held.usd_without - cold.usd_without > 0, "both took the prompt in"
    assert cold.usd < cold.usd_without
    assert held.usd_without - held.usd > cold.usd_without - cold.usd, "what is saved grows"
    assert len(held.delayed) == len(cold.delayed) == 3
    assert held.stalls_s.max() <= cold.stalls_s.max() + 1e-9
