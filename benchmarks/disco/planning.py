"""Cost of planning in DiSCo's policies: from samples to the first decision, an update, and a decision."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from tandem.policies.estimators.windows import Latencies, Lengths
from tandem.policies.race.dispatch import DispatchState, Side, dispatch

SIZES = (1_000, 10_000, 100_000)
PAPER_MS = {Side.SERVER: (0.128, 0.969, 9.082), Side.DEVICE: (0.486, 1.741, 14.856)}
"""Section 5.3 and figure 9, on a MacBook Pro with an M1."""


def samples(count: int, seed: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """(prompt lengths in tokens, times to first token in seconds), both log-normal as the paper's synthetic ones."""
    draw = np.random.default_rng(seed)
    return np.clip(draw.lognormal(3.5, 1.0, count), 1, 8000).astype(np.int64), draw.lognormal(
        -0.8, 0.6, count
    )


def planning_ms(side: Side, rounds: int) -> list[list[float]]:
    """Return, by size of the sample, the milliseconds until the first decision is given. The server's plan needs
    lengths alone. A plan is a function of the length here, where the paper makes a table of all lengths."""
    found = []
    policy = dispatch.create("disco")
    for size in SIZES:
        lengths, times = samples(size)
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            known = Lengths(lengths, kept=size)
            ttft = Latencies(times, kept=size) if side is Side.DEVICE else Latencies()
            policy.choose(DispatchState(40, known, ttft, 0.5, side, 0.5))
            took.append(1e3 * (time.perf_counter() - began))
        found.append(took)
    return found


def update_us(rounds: int, calls: int = 2000) -> list[float]:
    """Microseconds to take in a prompt's length and a time to first token, windows full and plan up to date."""
    lengths, times = samples(8192)
    known, ttft = Lengths(lengths, kept=4096), Latencies(times, kept=4096)
    more = list(zip(lengths.tolist(), times.tolist(), strict=True))[:calls]

    def take_in() -> None:
        for length, time_s in more:
            known.note(length)
            ttft.note(time_s)

    return [_per_call_us(take_in, calls) for _ in range(rounds)]


def dispatch_us(rounds: int, calls: int = 2000) -> list[float]:
    """Microseconds a decision, of the slower side."""
    lengths, times = samples(4096)
    known, ttft, policy = Lengths(lengths), Latencies(times), dispatch.create("disco")
    by_side = []
    for side in Side:
        states = [DispatchState(int(n), known, ttft, 0.5, side, 0.5) for n in lengths[:calls]]

        def decide(states: list[DispatchState] = states) -> None:
            for state in states:
                policy.choose(state)

        by_side.append([_per_call_us(decide, calls) for _ in range(rounds)])
    return max(by_side, key=median)


def _per_call_us(run: Callable[[], None], calls: int) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) / calls * 1e6
