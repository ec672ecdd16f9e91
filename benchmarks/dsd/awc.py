"""Loss of the window policies against the best fixed window of each scenario, known only afterwards.

    tandem benchmark awc [--scenarios 100]

Held-out scenarios from the training ranges, and others outside of them: RTTs from 80 to 150 ms (drawn from the public
cellular and Wi-Fi conditions' range), drafters that cost next to nothing or more than the target. Simulated;
cost is the time to the last token per token. A few scenarios weigh much in the mean, hence so many of them. The fixed
windows include fused rounds throughout, and the target alone. For scale, on the same scenarios: the paper's network,
the dynamic window, windows by gain, static 4, always fused, always the target alone, and the single window that is the
best for all.

The cloud by itself, fused or alone, is the best in most of what is drawn; `balanced` counts these scenarios for a third
and all others for two thirds, in the mean and in the 95th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.dsd.setting import fixed_window
from tandem.policies.speculation.window import window
from tandem.simulator.runs.tasks import ray_map
from tandem.training.awc.scenarios import WINDOWS, cost, draw

FIRST = (
    500_000  # training takes its scenarios from 0 on; those from 100,000 on were looked at while AWC was made
)
REQUESTS = 8  # of each device: a pair lives longer than its first answer


SHARE = 1 / 3  # of scenarios where the cloud by itself is the best, once balanced
FIXED = (0, *WINDOWS)  # 0 is the target alone
ADAPTIVE = ("awc", "awc-paper", "dynamic", "gain")


class Scenario(NamedTuple):
    """Costs beyond the best fixed window's, as a share of that.

    fixed: by window; 0 is the target alone, 1 is fused.
    adaptive: by policy.
    """

    fixed: dict[int, float]
    adaptive: dict[str, float]

    @property
    def cloud(self) -> bool:
        """Whether the cloud by itself is the best, fused or alone."""
        return 0 in (self.fixed[0], self.fixed[1])


def regrets(index: int, outside: bool) -> Scenario:
    """Return the regrets of one scenario."""
    config = draw(index, outside, requests=REQUESTS)
    fixed = {size: cost(config, partial(fixed_window, size)) for size in FIXED}
    best = min(fixed.values())
    adaptive = {name: cost(config, partial(window.create, name)) for name in ADAPTIVE}
    return Scenario(
        {size: value / best - 1 for size, value in fixed.items()},
        {name: value / best - 1 for name, value in adaptive.items()},
    )


def by_policy(scenarios: Sequence[Scenario]) -> dict[str, list[float]]:
    """The regrets of each policy, and of fixed windows."""
    single = min(FIXED, key=lambda size: mean(one.fixed[size] for one in scenarios))
    return {
        **{name: [one.adaptive[name] for one in scenarios] for name in ADAPTIVE},
        **{
            name: [one.fixed[size] for one in scenarios]
            for name, size in (("static 4", 4), ("fused", 1), ("alone", 0), ("best single", single))
        },
    }


def balanced(scenarios: Sequence[Scenario], values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the 95th percentile of one value per scenario, with scenarios where the cloud by itself is
    the best weighted by SHARE; NaN if there is one kind."""
    cloud = sum(one.cloud for one in scenarios)
    if not 0 < cloud < len(scenarios):
        return math.nan, math.nan
    weights = np.array(
        [SHARE / cloud if one.cloud else (1 - SHARE) / (len(scenarios) - cloud) for one in scenarios]
    )
    order = np.argsort(values)
    ascending = np.asarray(values)[order]
    at = np.searchsorted(np.cumsum(weights[order]), 0.95 - 1e-9)
    return float(weights @ np.asarray(values)), float(ascending[min(int(at), len(ascending) - 1)])


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("awc", __doc__)
    parser.add_argument("--scenarios", type=int, default=100, help="of each kind (default 100)")
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
            "best in the cloud",
            "policy",
            "mean",
            "± (standard error)",
            "median",
            "90 %",
            "worst",
            "balanced mean, 95 %",
        ],
        [
            [
                name,
                f"{mean(one.cloud for one in scenarios):.0%}",
                policy,
                *_row(values),
                ", ".join(f"{value:.1%}" for value in balanced(scenarios, values)),
            ]
            for name, scenarios in found.items()
            for policy, values in by_policy(scenarios).items()
        ],
    )
    figures = {}
    for suffix, scenarios in zip(("mean", "outside"), found.values(), strict=True):
        by_name = by_policy(scenarios)
        figures[f"regret_{suffix}"] = round(mean(by_name["awc"]), 4)
        regrets_ = {name: balanced(scenarios, values) for name, values in by_name.items()}
        figures[f"regret_{suffix}_balanced"], figures[f"regret_{suffix}_p95"] = (
            round(value, 4) for value in regrets_["awc"]
        )
        figures[f"regret_{suffix}_balanced_next"] = round(
            min(found_mean for name, (found_mean, _) in regrets_.items() if name != "awc"), 4
        )
    report.figures("awc", figures)


def _row(values: Sequence[float]) -> list[str]:
    error = stdev(values) / len(values) ** 0.5
    spread = (mean(values), error, median(values), float(np.percentile(values, 90)), max(values))
    return [f"{value:.1%}" for value in spread]
