"""The mode is chosen: policy `auto` beside an oracle and every fixed mode, in virtual time.

    tandem benchmark auto [--seeds 1] [--count 240] [--judged 24] [--only NAME]

The oracle runs every mode on the same request, with the device of its client, under the same load by others, and knows
how each ends: the answer's length, too, which nobody else knows beforehand. Fixed modes serve the whole workload, so
that they bear their own load; `random` draws one for every request, `by length` takes the device for prompts up to the
workload's mean, and the cloud for longer ones. The objective is `balanced`. Policy and formulas were made with the
seeds 1 to 3; the seeds judged are others.

regret_mean, regret_p95: by how much the policy's losses exceed the oracle's, over all judged requests; regret_total: in
sum. over_best_fixed_min: mean loss of the best fixed mode over the policy's, in the workload where that is least.
recovery_requests: requests after a drift (links, load, model, devices that leave) until twelve judged in a row are
within 10 % of the oracle, the most of all drifts; null where it does not come to that. calibrated_*: share of 80 %
intervals that hold.
decision_ms: CPU time of a decision beside 10,000 devices, the median.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.choice.decision import decision_ms
from tandem.benchmarks.choice.oracle import Judgement, judge, mean_loss
from tandem.benchmarks.choice.workloads import BY_LENGTH, MODES, RANDOM, WORKLOADS, Workload
from tandem.policies.routing.objectives import OBJECTIVES
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.results.loss import loss_usd

FIRST_SEED = 101
"""First of the seeds that are judged."""
WARM = 0.25
"""Share of the requests before the first that is judged."""
DEVICES = 10_000
"""Devices beside which a decision is timed."""
NEAR, IN_A_ROW = 1.1, 12
"""Ratio to the oracle's losses, and judged requests, after which a drift counts as over."""


class Outcome(NamedTuple):
    """Outcome of one workload under one seed.

    auto: mean loss of the policy.
    fixed: of each fixed mode, and of the rivals that choose by chance or by the prompt's length.
    held: shares of 80 % intervals that hold, of TTFT and TPOT.
    recovery: requests after the drift until it is over; None without a drift.
    """

    workload: Workload
    judgement: Judgement
    auto: float
    fixed: dict[str, float]
    held: tuple[float, float]
    recovery: float | None

    @property
    def regrets(self) -> list[float]:
        """Return by how much each judged loss exceeds the oracle's, as a share of that."""
        return [own / min(modes) - 1.0 for own, modes in zip(*self.judgement[:2], strict=True)]

    @property
    def total(self) -> float:
        """Return by how much all of them exceed the oracle's."""
        return sum(self.judgement.own) / sum(map(min, self.judgement.modes)) - 1.0


def evaluate(workload: Workload, seed: int, count: int, judged: int) -> Outcome:
    """Run one workload. count: of requests; judged: how many of them the oracle answers, more of a drift's."""
    objective, drifts = OBJECTIVES["balanced"], workload.drifts
    first = count // 2 if drifts else round(WARM * count)
    indices = range(first, count, max(1, (count - first) // (2 * judged if drifts else judged)))
    found = judge(workload, seed, count, indices, objective)
    return Outcome(
        workload,
        found,
        mean(loss_usd(answer, objective) for answer in found.answers),
        {mode: mean_loss(workload, seed, count, objective, mode) for mode in (*MODES, RANDOM, BY_LENGTH)},
        held(found.answers[round(WARM * count) :]),
        recovery(found, [index - first for index in indices]) if drifts else None,
    )


def held(answers: Sequence[SimulatedAnswer]) -> tuple[float, float]:
    """Return the shares of answers whose time to first token, and per token, lies in its 80 % interval."""
    found: dict[str, list[bool]] = {"ttft_s": [], "tpot_s": []}
    for answer in answers:
        stats = answer.stats
        if stats is None or stats.forecast is None or not answer.finished:
            continue
        if not (stats.replans or stats.changes):
            for each in stats.forecast.compared(stats.ttft_s, stats.tpot_s, stats.tokens):
                found[each.figure].append(each.held)
    ttft, tpot = (mean(each) if each else math.nan for each in found.values())
    return ttft, tpot


def recovery(found: Judgement, since: Sequence[int]) -> float:
    """Return the requests after a drift until it is over; infinite if it never is. since: of each judged one."""
    best = [min(modes) for modes in found.modes]
    for end in range(IN_A_ROW, len(best) + 1):
        if sum(found.own[end - IN_A_ROW : end]) <= NEAR * sum(best[end - IN_A_ROW : end]):
            return float(since[end - IN_A_ROW])
    return math.inf


def _row(one: Outcome) -> list[str]:
    best = min(one.fixed, key=one.fixed.__getitem__)
    modes = Counter(answer.mode or "failed" for answer in one.judgement.answers)
    return [
        one.workload.name,
        f"{mean(one.regrets):.1%}",
        f"{np.percentile(one.regrets, 95):.1%}",
        f"{one.total:.1%}",
        f"{1e3 * one.auto:.3f}",
        f"{1e3 * one.fixed[best]:.3f} ({best})",
        f"{one.held[0]:.0%}, {one.held[1]:.0%}",
        ", ".join(f"{mode} {number}" for mode, number in modes.most_common()),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = report.parser("auto", __doc__)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--count", type=int, default=240, help="requests of each workload")
    options.add_argument("--judged", type=int, default=24, help="of them, that the oracle answers")
    options.add_argument("--only", help="name of one workload")
    chosen = options.parse_args(arguments)
    logging.getLogger("tandem.deployments").setLevel(logging.ERROR)
    jobs = [
        (workload, FIRST_SEED + seed)
        for workload in WORKLOADS
        if chosen.only in (None, workload.name)
        for seed in range(chosen.seeds)
    ]
    outcomes = [
        evaluate(workload, seed, chosen.count, chosen.judged)
        for workload, seed in report.progress(jobs, "workloads")
    ]
    report.table(
        "Losses in thousandths of a dollar; regret beside an oracle that knows how every mode ends",
        ["workload", "regret", "P95", "in sum", "auto", "best fixed", "intervals held", "answers by mode"],
        map(_row, outcomes),
    )
    regrets = [each for one in outcomes for each in one.regrets]
    over = [min(one.fixed.values()) / one.auto for one in outcomes]
    recoveries = [one.recovery for one in outcomes if one.recovery is not None]
    own = sum(sum(one.judgement.own) for one in outcomes)
    best = sum(sum(map(min, one.judgement.modes)) for one in outcomes)
    report.figures(
        "auto",
        {
            "regret_mean": mean(regrets),
            "regret_p95": float(np.percentile(regrets, 95)),
            "regret_total": own / best - 1.0,
            "over_best_fixed_min": min(over),
            "over_best_fixed_share": mean(ratio > 1.0 for ratio in over),
            "recovery_requests": max(recoveries, default=math.nan),
            "calibrated_ttft": mean(one.held[0] for one in outcomes),
            "calibrated_tpot": mean(one.held[1] for one in outcomes),
            "decision_ms": decision_ms(DEVICES),
        },
    )
