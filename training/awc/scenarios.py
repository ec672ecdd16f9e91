"""Scenarios for training and judging AWC: drawn conditions, simulated with every fixed window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.awc.exploration import Exploration
from tandem.policies.speculation.window import StaticWindow, WindowPolicy, WindowState
from tandem.simulator.config.config import Config, parse
from tandem.simulator.runs.run import simulate

WINDOWS = (1, *range(2, MAX_WINDOW + 1))  # 1 is fused
SAMPLES = 8  # states kept of a run
OUTPUT_TOKENS = 96
LIMITED = 1 / 3  # of the scenarios: targets that take only so many sequences a step


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario, simulated.

    index: its number.
    cost_s: seconds per output token by window, see `cost`.
    states: what policies saw under each window, as rows of WindowState's fields.
    """

    index: int
    cost_s: dict[int, float]
    states: list[list[float]]

    @property
    def best(self) -> int:
        """The window of least cost."""
        return min(self.cost_s, key=self.cost_s.__getitem__)


def draw(index: int, outside: bool = False, requests: int = 3) -> Config:
    """Scenario number `index`: one target, 1 to 32 devices that ask again and again, each `requests` times (a
    few devices more often, so that their mean is one). Some targets take all that is asked in a step, others only so
    many sequences, padded to the longest.

    outside: conditions beyond the training ranges: RTTs up to 150 ms, drafters that cost next to nothing or as much as
    the target.
    """
    random = np.random.Generator(np.random.PCG64([20251121, int(outside), index]))

    def between(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    devices = int(between(1, 32.99))
    verify_s = between(0.008, 0.12)
    draft_share = between(0.006, 1.2) if outside else between(0.02, 0.8)
    rtt_s = between(0.08, 0.15) if outside else between(0.001, 0.1)
    colocated = bool(random.random() < 0.5)
    position = between(0.0005, 0.02)
    raw: dict[str, Any] = {
        "name": f"scenario {index}",
        "seed": index,
        "mode": "speculative",
        "fused_window": int(random.integers(2, 7)),
        "workload": {
            "kind": "synthetic",
            "count": max(8 * requests, requests * devices),
            "seed": index,
            "prompt": {"mean": between(32, 512), "cv": 0.3},
            "output": {"mean": OUTPUT_TOKENS, "cv": 0.2},
            "arrival": {"kind": "closed", "think_s": 0.0},
            "acceptance": {"kind": "alpha", "alpha": float(random.uniform(0.3, 0.97))},
        },
        "engine": {
            "batching": {"name": "chunked", "parameters": {"chunk": 512, "context_doubles": 10**9}},
            "token_budget": 2048,
            "kv_blocks": 1 << 16,
        },
        "targets": [
            {
                "model": "drawn",
                "measured": {
                    "base_s": verify_s,
                    "token_s": verify_s * position,
                    "sequence_s": verify_s * between(0.0005, 0.01),
                },
                "measured_draft": {
                    "base_s": verify_s * between(0.02, 0.4),
                    "token_s": verify_s * position / 20,
                }
                if colocated
                else None,
                "engine": {"max_sessions": int(devices * random.uniform(1.0, 4.0)) + 1},
            }
        ],
        "devices": [
            {
                "count": devices,
                "measured": {"base_s": verify_s * draft_share, "token_s": verify_s * draft_share / 50},
                "link": {"rtt_ms": rtt_s * 1e3, "jitter_ms": rtt_s * 1e3 * float(random.uniform(0, 0.2))},
            }
        ],
    }
    if random.random() < LIMITED:
        raw["engine"]["batching"] = {"name": "lab", "parameters": {"size": int(between(2, 32.99))}}
        raw["targets"][0]["padded"] = True
    return parse(raw)


def cost(config: Config, policy: Callable[[], WindowPolicy]) -> float:
    """Return the objective: TPOT plus the TTFT spread over the answer, in seconds per output token, mean over the
    requests, as felt by a reader who waits for the end."""
    answers = simulate(config, window=policy).answers
    return float(np.mean([answer.e2e_s / answer.tokens for answer in answers]))


def outcome(index: int, requests: int = 3) -> Outcome:
    """Simulate a scenario with every fixed window."""
    config, short = draw(index, requests=requests), draw(index, requests=1)
    costs: dict[int, float] = {}
    states: list[list[float]] = []
    for size in WINDOWS:
        seen: list[WindowState] = []
        costs[size] = cost(config, lambda size=size: StaticWindow(size))  # type: ignore[misc]
        cost(short, lambda size=size, seen=seen: Fixed(size, seen))  # type: ignore[misc]
        picked = np.random.Generator(np.random.PCG64([index, size])).choice(
            len(seen), min(SAMPLES, len(seen)), replace=False
        )
        states += [row(seen[i]) for i in picked]
    return Outcome(index, costs, states)


class Fixed:
    """A fixed window with AWC's exploration, so that its states are those that AWC decides from.

    seen: gets every state.
    """

    def __init__(self, size: int, seen: list[WindowState]) -> None:
        self._size, self._seen = size, seen
        self._exploration = Exploration()

    def choose(self, state: WindowState) -> int:
        wished = self._exploration.first(state)
        if wished is not None:
            return wished
        self._seen.append(state)
        if len(self._seen) % 20 == 0:
            return 4 if self._size == 1 else 1
        return self._size


def row(state: WindowState) -> list[float]:
    """A state as numbers, in the order of its fields."""
    return [float(getattr(state, name)) for name in WindowState.__slots__]
