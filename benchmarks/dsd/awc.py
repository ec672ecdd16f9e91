"""Loss of AWC against the best fixed window of each scenario, known only afterwards.

    python -m benchmarks awc [--scenarios 400]

Held-out scenarios from the training ranges, and others outside of them: RTTs from 80 to 150 ms (drawn from the public
cellular and Wi-Fi conditions' range), drafters that cost next to nothing or more than the target. Simulated;
cost is the time to the last token per token. A few scenarios weigh much in the mean, hence so many of them. For scale,
on the same scenarios: the dynamic window, static 4, always fused, and the single window that is the best for all.

Fused rounds alone are the best in most of what is drawn, where little can be lost; `balanced` counts these scenarios
for a third and all others for two thirds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.policies.speculation.window import StaticWindow, window
from tandem.simulator.runs.tasks import ray_map
from tandem.training.awc.scenarios import WINDOWS, cost, draw

FIRST = (
    500_000  # training takes its scenarios from 0 on; those from 100,000 on were looked at while AWC was made
)
REQUESTS = 8  # of each device: a pair lives longer than its first answer


SHARE = 1 / 3  # of scenarios where always fused is the best, once balanced


class Scenario(NamedTuple):
    """Costs beyond the best fixed window's, as a share of that.

    fixed: by window; 1 is fused.
    adaptive: by policy.
    """

    fixed: dict[int, float]
    adaptive: dict[str, float]

    @property
    def fused(self) -> bool:
        """Whether it is best always to fuse."""
        return self.fixed[1] == 0


def regrets(index: int, outside: bool) -> Scenario:
    """Return the regrets of one scenario."""
    config = draw(index, outside, requests=REQUESTS)
    fixed = {size: cost(config, partial(StaticWindow, size)) for size in WINDOWS}
    best = min(fixed.values())
    adaptive = {name: cost(config, partial(window.create, name)) for name in ("awc", "dynamic")}
    return Scenario(
        {size: value / best - 1 for size, value in fixed.items()},
        {name: value / best - 1 for name, value in adaptive.items()},
    )


def by_policy(scenarios: Sequence[Scenario]) -> dict[str, list[float]]:
    """The regrets of each policy, and of fixed windows."""
    single = min(WINDOWS, key=lambda size: mean(one.fixed[size] for one in scenarios))
    return {
        **{name: [one.adaptive[name] for one in scenarios] for name in ("awc", "dynamic")},
        **{
            name: [one.fixed[size] for one in scenarios]
            for name, size in (("static 4", 4), ("fused", 1), ("best single", single))
        },
    }


def balanced(scenarios: Sequence[Scenario], values: Sequence[float]) -> float:
    """Return the mean of one value per scenario, with scenarios that are best fused weighted by SHARE; NaN if there is
    one kind."""
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for one, value in zip(scenarios, values, strict=True):
        kinds[one.fused].append(value)
    if not all(kinds.values()):
        return math.nan
    return SHARE * mean(kinds[True]) + (1 - SHARE) * mean(kinds[False])


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("awc", __doc__)
    parser.add_argument("--scenarios", type=int, default=400, help="of each kind (default 400)")
    options = parser.parse_args(arguments)
    indices = range(FIRST, FIRST + options.scenarios)
    found: dict[str, list[Scenario]] = {}
    for name, outside in (("training ranges", False), ("outside", True)):
        results = ray_map(partial(regrets, outside=outside), indices, chunk=2)
        found[name] = [next(results) for _ in report.progress(indices, name)]
    report.table(
        "Regret against the best fixed window of each scenario (simulated)",
        [
            "scenarios",
            "best fused",
            "policy",
            "mean",
            "± (standard error)",
            "median",
            "90 %",
            "worst",
            "balanced",
        ],
        [
            [
                name,
                f"{mean(one.fused for one in scenarios):.0%}",
                policy,
                *_row(values),
                f"{balanced(scenarios, values):.1%}",
            ]
            for name, scenarios in found.items()
            for policy, values in by_policy(scenarios).items()
        ],
    )
    figures = {}
    for suffix, scenarios in zip(("mean", "outside"), found.values(), strict=True):
        values = by_policy(scenarios)["awc"]
        figures[f"regret_{suffix}"] = round(mean(values), 4)
        figures[f"regret_{suffix}_balanced"] = round(balanced(scenarios, values), 4)
    report.figures("awc", figures)


def _row(values: Sequence[float]) -> list[str]:
    error = stdev(values) / len(values) ** 0.5
    spread = (mean(values), error, median(values), float(np.percentile(values, 90)), max(values))
    return [f"{value:.1%}" for value in spread]
