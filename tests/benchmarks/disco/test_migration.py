"""Savings of migrations, and the effect of a loser that holds the prompt."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.benchmarks.disco.course import Draws
from tandem.benchmarks.disco.data import DEVICES, SERVICES
from tandem.benchmarks.disco.migration import CONSISTENT, Known, Migration, Moved
from tandem.policies.estimators.windows import Latencies
from tandem.policies.race.dispatch import Side

PROMPTS = np.full(3, 40)
SERVER_S = np.full(3, 0.4)


def moved(device_start_s: float, policy: str = "prepared") -> Moved:
    """Three answers, whose races a server won that is dear to decode on; the device began then, if at all."""
    service, device = next(iter(SERVICES.values())), next(iter(DEVICES.values()))
    known = Known(Latencies([0.4] * 8), Latencies([0.1] * 8))
    migration = Migration(service, device, CONSISTENT[Side.SERVER], known, policy)
    return migration.move(PROMPTS, SERVER_S, np.full(3, device_start_s), [Draws(0.4, 0.1, 1.0)] * 3)


def test_a_loser_that_holds_the_prompt_gets_the_answer_cheaper_and_in_time() -> None:
    held, cold = moved(0.39), moved(np.inf)
    assert held.usd_without - cold.usd_without > 0, "both took the prompt in"
    assert cold.usd < cold.usd_without
    assert held.usd_without - held.usd > cold.usd_without - cold.usd, "what is saved grows"
    assert len(held.delayed) == len(cold.delayed) == 3
    assert held.stalls_s.max() <= cold.stalls_s.max() + 1e-9


def test_who_prepares_migrates_sooner_and_keeps_nobody_waiting() -> None:
    """The device begins 0.39 s before the server's token or not at all, and takes in the prompt for over a second."""
    for start_s in (0.01, np.inf):
        ours, theirs = moved(start_s), moved(start_s, "buffered")
        assert (ours.usd_without, ours.usd_at_best) == (
            theirs.usd_without,
            pytest.approx(theirs.usd_at_best, rel=0.1),
        )
        assert ours.usd < theirs.usd
        assert ours.stalls_s.max() < 1e-9
