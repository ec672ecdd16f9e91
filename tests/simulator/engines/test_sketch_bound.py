"""Unlike devices: an answer that is sketched comes hardly later than the target's own."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.deployments.modes.sketch.mode import Sketched
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.workload import Request
from tests.simulator.configurations import TARGET, config
from tests.simulator.worlds import run

TARGET_S = {**TARGET, "measured": {"base_s": 0.04, "token_s": 0.0002}}
QUICK, SLOW = ({"prefill_tokens_per_s": 4000, "decode_tokens_per_s": rate} for rate in (200, 3))


def answers(mode: str, devices: list[dict[str, Any]], at_once: int, rounds: int = 3) -> list[SimulatedAnswer]:
    """Return the answers of so many questions at once, again and again."""
    said: dict[str, Any] = {
        "mode": mode,
        "targets": [TARGET_S],
        "devices": devices,
        "sketch": {
            "sketching": {"name": "latency", "parameters": {"sure": 0.8}},
            "models": {f"devices-{n}": {"capability": 0.9} for n in range(len(devices))},
        },
        "history": True,
    }
    asked = [Request(60.0 * n, 40, 300, b"\1" * 300) for n in range(rounds) for _ in range(at_once)]
    return run(config(**said), asked)[1]


def longest_s(answers: list[SimulatedAnswer]) -> float:
    return max(answer.last_s - answer.arrival_s for answer in answers)


@pytest.mark.parametrize("at_once", [1, 2, 4, 8, 16])
def test_slow_devices_make_no_answer_late(at_once: int) -> None:
    """One quick device and three that would take 100 s."""
    devices = [{"rates": QUICK, "sessions": 4}, {"count": 3, "rates": SLOW, "sessions": 4}]
    sketched, alone = (answers(mode, devices, at_once) for mode in ("sketch", "cloud"))
    assert longest_s(sketched) <= 1.1 * longest_s(alone)
    assert any(Sketched.of(answer.stats).sketches for answer in sketched if answer.stats is not None)
