"""What AWC loses against the best fixed window of each scenario, known only afterwards.

    python -m benchmarks.awc [--scenarios 400]

Held-out scenarios from the training ranges, and others outside of them: RTTs from 80 to 150 ms (drawn from the public
cellular and Wi-Fi conditions' range), drafters that cost next to nothing or more than the target. Simulated;
cost is the time to the last token per token. A few scenarios weigh much in the mean, hence so many of them. Static 4
and the dynamic window on the same scenarios, for scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from statistics import mean, median, stdev

import numpy as np

from benchmarks import report
from cluster.simulator.tasks import ray_map
from policies.awc.scenarios import WINDOWS, cost, draw
from policies.window import StaticWindow, window

FIRST = 100_000  # training takes its scenarios from 0 on
REQUESTS = 8  # of each device: a pair lives longer than its first answer


def regrets(index: int, outside: bool) -> dict[str, float]:
    """By policy: its cost beyond the best fixed window's, as a share of that."""
    config = draw(index, outside, requests=REQUESTS)
    fixed = {size: cost(config, partial(StaticWindow, size)) for size in WINDOWS}
    best = min(fixed.values())
    learnt = {name: cost(config, partial(window.create, name)) / best - 1 for name in ("awc", "dynamic")}
    return {**learnt, "static 4": fixed[4] / best - 1, "fused": fixed[1] / best - 1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", type=int, default=400, help="of each kind (default 400)")
    options = parser.parse_args()
    indices = range(FIRST, FIRST + options.scenarios)
    found: dict[str, list[dict[str, float]]] = {}
    for name, outside in (("training ranges", False), ("outside", True)):
        results = ray_map(partial(regrets, outside=outside), indices, chunk=2)
        found[name] = list(report.progress(_counted(results, options.scenarios), name))
    report.table(
        "Regret against the best fixed window of each scenario (simulated)",
        ["scenarios", "policy", "mean", "± (standard error)", "median", "90 %", "worst"],
        [
            [name, policy, *_row([r[policy] for r in rows])]
            for name, rows in found.items()
            for policy in ("awc", "dynamic", "static 4", "fused")
        ],
    )
    report.figures(
        "awc",
        {
            "regret_mean": round(mean(r["awc"] for r in found["training ranges"]), 4),
            "regret_outside": round(mean(r["awc"] for r in found["outside"]), 4),
        },
    )


def _counted(results: object, count: int) -> Sequence[dict[str, float]]:
    return [next(results) for _ in range(count)]  # type: ignore[call-overload]


def _row(values: Sequence[float]) -> list[str]:
    error = stdev(values) / len(values) ** 0.5
    spread = (mean(values), error, median(values), float(np.percentile(values, 90)), max(values))
    return [f"{value:.1%}" for value in spread]


if __name__ == "__main__":
    main()
