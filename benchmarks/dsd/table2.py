"""DSD's Table 2, predicted by the simulator: static, dynamic and adaptive windows in twelve settings.

    tandem benchmark dsd_table2 [--seeds 5] [--targets 3] [--orderings]

The paper prints neither its acceptance rates nor how many requests are under way. The latter follow, per data set, from
Little's law in one cell (static, 600 drafters, 10 ms), in proportion to the drafters elsewhere; α is fitted to that
cell's TPOT. What the fit leaves of that cell's error is shown, every other figure is a prediction. Runs are in steady
state, ten answers of each user (see `benchmarks.dsd.setting.measure`); intervals are 95 % over the seeds, of ratios
within a seed. Times are simulated, from public profiles where those are at hand.

The paper has 20 targets. --targets 3 keeps one of each kind, with as many drafters and users a target, in a seventh of
the time; throughputs are then scaled to 20.

The setting can be read in two ways, and both are predicted: physical (a round crosses the link once each way, γ drafts
take γ passes) and the authors' (their public simulator's: an RTT each way, γ drafts in one pass, TTFT until the first
accepted draft). Each policy is judged against γ = 4, and against the fixed window that is the best of its cell, known
only afterwards, in TPOT and in throughput; the target alone is one of them. A short run of every size leaves the few
that may be it.

--orderings adds what the paper says of those: the RTT at which fused rounds (with a drafter beside the target) overtake
distributed ones in throughput and in TPOT, routing over the drafters, and length-aware against FIFO batching.

Figures without a suffix are of the physical reading, *_authors of the other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.dsd.setting import (
    DATASETS,
    PAPER,
    PHYSICAL,
    POOLS,
    READINGS,
    TARGETS,
    TURNOVERS,
    WINDOWS,
    Cell,
    Reading,
    Setting,
    fixed_window,
    measure,
    under_way,
)
from tandem.benchmarks.intervals import Interval
from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.simulator.runs.tasks import ray_map

FIT = (600, 10, "static")
METRICS = ("throughput", "ttft_s", "tpot_s")
FIXED = (*range(9), 10, MAX_WINDOW)  # 0 is the target alone, 1 is fused
FIRST_SEED = 1000  # policies were made with seeds below
SHORT = 3  # turnovers of the runs that look for the best fixed window
FINALISTS = 2  # windows of these that may be the best, in each of TPOT and throughput
CLOSE = 0.01  # how near to the best fixed window an adaptive one should come
JUDGED = ("awc", "dynamic")
STATIC = 4  # γ of the policy `static`
Pool = tuple[int, int]
RTTS_MS = tuple(range(5, 125, 10))
DRAFTERS = (400, 700, 1000, 1500, 2000)


class Fitted(NamedTuple):
    """alpha: probability that a draft is accepted.
    users: requests under way with 600 drafters.
    """

    alpha: float
    users: float


class Run(NamedTuple):
    """One simulation.

    drafters: with 20 targets; with fewer, in proportion.
    fixed: a window of this size throughout, in place of the policy `window`; 0: the target alone.
    turnovers: answers of each user that count.
    """

    dataset: str
    fitted: Fitted
    reading: Reading
    drafters: int = 600
    rtt_ms: float = 10.0
    window: str = "static"
    fixed: int | None = None
    seed: int = FIRST_SEED
    routing: str = "jsq"
    batching: str = "lab"
    colocated: bool = False
    targets: int = TARGETS
    turnovers: int = TURNOVERS

    def cell(self) -> Cell:
        """Simulate it; its throughput is that of 20 targets."""
        drafters = self.drafters * self.targets / TARGETS
        setting = Setting(
            self.dataset,
            self.fitted.alpha,
            self.fitted.users,
            round(drafters),
            self.rtt_ms,
            window=self.window,
            routing=self.routing,
            batching=self.batching,
            seed=self.seed,
            targets=self.targets,
            turnovers=self.turnovers,
            reading=self.reading,
            colocated=self.colocated,
        )
        size = self.fixed
        found = measure(setting.config(), self.reading, None if size is None else lambda: fixed_window(size))
        return found._replace(throughput=found.throughput * TARGETS / self.targets)


def cells(runs: Iterable[Run], what: str) -> dict[Run, Cell]:
    """Simulate them, on as many cores as there are."""
    runs = list(dict.fromkeys(runs))
    found = ray_map(_simulated, runs, chunk=2)
    return dict(next(found) for _ in report.progress(runs, what))


def _simulated(run: Run) -> tuple[Run, Cell]:
    return run, run.cell()


def fit(dataset: str, reading: Reading = PHYSICAL, targets: int = TARGETS) -> Fitted:
    """Fit the fitted cell's TPOT to the printed one, as far as possible."""
    users = under_way(dataset, FIT)
    missed = bisect(
        lambda miss: Run(dataset, Fitted(1 - miss, users), reading, targets=targets).cell().tpot_s,
        PAPER[dataset][FIT].tpot_s,
        0.01,
        0.9,
    )
    return Fitted(1 - missed, users)


def bisect(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where a rising function comes nearest to a value, between two ends (their geometric mean first)."""
    for _ in range(8):
        middle = (low * high) ** 0.5
        if rising(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def crossover_ms(better: Mapping[float, float]) -> float:
    """RTT from which on fused rounds are better. better: by how much they are, by RTT in rising order. Infinite if they
    are nowhere; the first RTT if they are everywhere.
    """
    before: tuple[float, float] | None = None
    for rtt_ms, gap in better.items():
        if gap > 0:
            if before is None:
                return rtt_ms
            return before[0] + (rtt_ms - before[0]) * -before[1] / (gap - before[1])
        before = (rtt_ms, gap)
    return math.inf


class Prediction:
    """All cells of one data set in one reading, by seed."""

    def __init__(self, dataset: str, fitted: Fitted, reading: Reading, seeds: int, targets: int) -> None:
        self.dataset, self.fitted, self.reading = dataset, fitted, reading
        self._seeds, self.targets = range(FIRST_SEED, FIRST_SEED + seeds), targets
        self._cells: dict[Run, Cell] = {}
        self._finalists: dict[Pool, list[int]] = {}

    def trials(self) -> list[Run]:
        """Return short runs of every fixed window."""
        return [self._trial(pool, size) for pool in POOLS for size in FIXED]

    def runs(self, trials: Mapping[Run, Cell]) -> list[Run]:
        """Return the simulations to run. trials: the results of `trials`."""
        for pool in POOLS:
            by_tpot = sorted(FIXED, key=lambda size: trials[self._trial(pool, size)].tpot_s)
            by_throughput = sorted(FIXED, key=lambda size: -trials[self._trial(pool, size)].throughput)
            self._finalists[pool] = sorted({*by_tpot[:FINALISTS], *by_throughput[:FINALISTS]})
        return [
            run
            for pool in POOLS
            for seed in self._seeds
            for run in (
                *(self._run(pool, seed, window) for window in WINDOWS),
                *(self._run(pool, seed, fixed=size) for size in self._finalists[pool]),
            )
        ]

    def take(self, found: Mapping[Run, Cell]) -> None:
        """Take the results of `runs`."""
        self._cells |= found

    def cell(self, pool: Pool, window: str) -> Cell:
        """Return the mean over the seeds."""
        return Cell(*(mean(self._of(pool, metric, window)) for metric in METRICS))

    def best(self, pool: Pool, metric: str) -> int:
        """Return the fixed window that is the best over the seeds, known only afterwards."""
        means = {size: mean(self._of(pool, metric, fixed=size)) for size in self._finalists[pool]}
        return (max if metric == "throughput" else min)(means, key=means.__getitem__)

    def over(self, metric: str, pool: Pool, window: str, other: str | int) -> Interval:
        """Return a policy's figure over that of another policy, or of a fixed window, less 1, seed by seed."""
        fixed = other if isinstance(other, int) else None
        theirs = self._of(pool, metric, "" if isinstance(other, int) else other, fixed)
        pairs = zip(self._of(pool, metric, window), theirs, strict=True)
        return Interval.of([a / b - 1 for a, b in pairs])

    def regrets(self, pool: Pool, window: str) -> tuple[Interval, Interval]:
        """Return what a policy loses to the best fixed windows, as a share, of TPOT and of throughput."""
        tpot = self.over("tpot_s", pool, window, self.best(pool, "tpot_s"))
        throughput = self.over("throughput", pool, window, self.best(pool, "throughput"))
        return tpot, Interval(-throughput.mean, throughput.half)

    def errors(self, metric: str) -> list[float]:
        """Return the relative errors of all cells but the fitted one."""
        return [abs(self.error(key, metric)) for key in PAPER[self.dataset] if key != FIT]

    def error(self, key: tuple[int, int, str], metric: str) -> float:
        """Return one cell's error against the printed figure."""
        drafters, rtt_ms, window = key
        ours: float = getattr(self.cell((drafters, rtt_ms), window), metric)
        return ours / getattr(PAPER[self.dataset][key], metric) - 1

    def _of(self, pool: Pool, metric: str, window: str = "", fixed: int | None = None) -> list[float]:
        return [getattr(self._cells[self._run(pool, seed, window, fixed)], metric) for seed in self._seeds]

    def _run(self, pool: Pool, seed: int, window: str = "", fixed: int | None = None) -> Run:
        if fixed is not None or window == "static":
            window, fixed = "static", STATIC if fixed is None else fixed
        return Run(self.dataset, self.fitted, self.reading, *pool, window, fixed, seed, targets=self.targets)

    def _trial(self, pool: Pool, size: int) -> Run:
        return self._run(pool, FIRST_SEED, fixed=size)._replace(turnovers=SHORT)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("dsd_table2", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs a cell (default 5)")
    parser.add_argument("--targets", type=int, default=3, help="of the paper's 20 (default 3)")
    parser.add_argument("--orderings", action="store_true", help="fused rounds, routing and batching too")
    options = parser.parse_args(arguments)
    wanted = [(reading, dataset) for reading in READINGS for dataset in DATASETS]
    found = [
        Prediction(dataset, fit(dataset, reading, options.targets), reading, options.seeds, options.targets)
        for reading, dataset in report.progress(wanted, "fitting")
    ]
    trials = cells((run for one in found for run in one.trials()), "looking for fixed windows")
    simulated = cells((run for one in found for run in one.runs(trials)), "predicting")
    for one in found:
        one.take(simulated)
        _table(one)
    figures: dict[str, float] = {}
    for reading in READINGS:
        own = [one for one in found if one.reading is reading]
        _against_paper(reading, own)
        suffix = "" if reading is PHYSICAL else "_authors"
        figures |= {f"{name}{suffix}": value for name, value in _figures(own).items()}
    if options.orderings:
        crossings = {reading.name: _crossings(reading, found) for reading in READINGS}
        report.table(
            "Orderings",
            ["", "here", "paper"],
            [
                *(
                    [
                        f"fused overtakes distributed in {metric}, {dataset}, {name} reading",
                        _rtt(pair[i]),
                        "50 … 60 ms",
                    ]
                    for name, by_dataset in crossings.items()
                    for dataset, pair in by_dataset.items()
                    for i, metric in enumerate(("throughput", "TPOT"))
                ),
                *_orderings(found[0].fitted),
            ],
        )
        throughput_ms, tpot_ms = crossings[PHYSICAL.name]["GSM8K"]
        figures |= {
            "crossover_ms": round(tpot_ms, 1),
            "crossover_throughput_ms": round(throughput_ms, 1),
        }
    report.figures("dsd_table2", figures)


Crossings = dict[str, tuple[float, float]]
"""RTTs, ms, from which on fused rounds have the higher throughput and the lower TPOT, by data set."""


def _figures(own: Sequence[Prediction]) -> dict[str, float]:
    errors = {metric: [e for one in own for e in one.errors(metric)] for metric in METRICS}
    settings = [(one, pool) for one in own for pool in POOLS]
    figures: dict[str, float] = {}
    for window in JUDGED:
        regrets = [one.regrets(pool, window) for one, pool in settings]
        prefix = "" if window == "awc" else f"{window}_"
        figures |= {
            f"{prefix}within_best_fixed_cells": sum(
                max(each.mean for each in both) <= CLOSE for both in regrets
            ),
            f"{prefix}tpot_regret_max": round(max(tpot.mean for tpot, _ in regrets), 4),
            f"{prefix}throughput_regret_max": round(max(lost.mean for _, lost in regrets), 4),
        }
        for other in ("static", "dynamic"):
            if other != window:
                over = [one.over("throughput", pool, window, other) for one, pool in settings]
                figures |= {
                    f"{window}_over_{other}_cells": sum(each.mean + each.half >= 0 for each in over),
                    f"{window}_over_{other}_surely_cells": sum(each.mean > each.half for each in over),
                }
    over = [one.over("throughput", pool, "awc", "static") for one, pool in settings]
    return {
        **figures,
        "interval_max": round(max(each.half for each in over), 4),
        "tpot_gain_min": round(
            min(-one.over("tpot_s", pool, "awc", "static").mean for one, pool in settings), 4
        ),
        "unfitted_error": round(mean(e for metric in METRICS for e in errors[metric]), 4),
        **{f"unfitted_{m.removesuffix('_s')}_error": round(mean(errors[m]), 4) for m in METRICS},
        "fit_residual": round(max(abs(one.error(FIT, metric)) for one in own for metric in METRICS), 4),
    }


def _table(one: Prediction) -> None:
    rows = []
    for metric, scale, digits in (("throughput", 1, 1), ("ttft_s", 1e3, 0), ("tpot_s", 1e3, 1)):
        row = [{"throughput": "requests/s", "ttft_s": "TTFT ms", "tpot_s": "TPOT ms"}[metric]]
        for pool in POOLS:
            ours, theirs = (
                "/".join(f"{getattr(cell, metric) * scale:.{digits}f}" for cell in cells_)
                for cells_ in (
                    [one.cell(pool, w) for w in WINDOWS],
                    [PAPER[one.dataset][*pool, w] for w in WINDOWS],
                )
            )
            row.append(f"{ours}\n{theirs}")
        rows.append(row)
    rows += [
        [f"{name}, AWC to {other}", *(str(one.over(metric, pool, "awc", other)) for pool in POOLS)]
        for metric, name in (("throughput", "throughput"), ("tpot_s", "TPOT"))
        for other in ("static", "dynamic")
    ]
    rows.append(
        [
            "best fixed windows, of TPOT and throughput",
            *(f"γ = {one.best(pool, 'tpot_s')}, {one.best(pool, 'throughput')}" for pool in POOLS),
        ]
    )
    rows += [
        [f"{window} to these", *("\n".join(map(str, one.regrets(pool, window))) for pool in POOLS)]
        for window in (*JUDGED, "static")
    ]
    residual = ", ".join(f"{metric.removesuffix('_s')} {one.error(FIT, metric):+.0%}" for metric in METRICS)
    report.table(
        f"{one.dataset}, {one.reading.name} reading: static/dynamic/AWC, simulated above, the paper's below "
        f"(α {one.fitted.alpha:.3f}, {one.fitted.users:.0f} requests under way with 600 drafters; left of the fitted "
        f"cell's error: {residual})",
        ["", *(f"{drafters} drafters, {rtt} ms" for drafters, rtt in POOLS)],
        rows,
    )


def _against_paper(reading: Reading, own: Sequence[Prediction]) -> None:
    figures = _figures(own)
    gains = [-one.over("tpot_s", pool, "awc", "static").mean for one in own for pool in POOLS]
    possible = [one.regrets(pool, "static")[0].mean for one in own for pool in POOLS]

    def counted(window: str, other: str) -> str:
        surely, cells_ = (figures[f"{window}_over_{other}_{kind}cells"] for kind in ("surely_", ""))
        return f"{surely:g} and {cells_ - surely:g} of 12"

    report.table(
        f"Against the paper, {reading.name} reading",
        ["", "here", "paper"],
        [
            *(
                [f"mean error of {m}, cells not fitted", f"{figures[f'unfitted_{m}_error']:.0%}", ""]
                for m in (metric.removesuffix("_s") for metric in METRICS)
            ),
            [
                "AWC better than static in throughput, equal within the interval",
                counted("awc", "static"),
                "12",
            ],
            ["AWC better than dynamic, likewise", counted("awc", "dynamic"), "11"],
            ["dynamic better than static, likewise", counted("dynamic", "static"), ""],
            ["widest interval of throughput, AWC to static", f"± {figures['interval_max']:.1%}", ""],
            ["TPOT gain of AWC over static", f"{min(gains):.1%} … {max(gains):.1%}", "6 … 10.7 %"],
            ["static's TPOT over the best fixed window's", f"{min(possible):.1%} … {max(possible):.1%}", ""],
            *(
                [
                    f"{window} within {CLOSE:.0%} of the best fixed windows' TPOT and throughput, cells",
                    f"{figures[f'{prefix}within_best_fixed_cells']:g} of 12",
                    "",
                ]
                for window, prefix in (("awc", ""), ("dynamic", "dynamic_"))
            ),
        ],
    )


def _rtt(rtt_ms: float) -> str:
    if math.isinf(rtt_ms):
        return f"not up to {RTTS_MS[-1]} ms RTT"
    return f"at {rtt_ms:.0f} ms RTT or below" if rtt_ms == RTTS_MS[0] else f"{rtt_ms:.0f} ms RTT"


def _crossings(reading: Reading, found: Sequence[Prediction]) -> Crossings:
    own = [one for one in found if one.reading is reading]

    def run(one: Prediction, rtt_ms: float, size: int) -> Run:
        return Run(
            one.dataset,
            one.fitted,
            one.reading,
            rtt_ms=rtt_ms,
            fixed=size,
            colocated=True,
            targets=one.targets,
        )

    simulated = cells(
        (run(one, rtt_ms, size) for one in own for rtt_ms in RTTS_MS for size in (1, STATIC)),
        f"crossovers, {reading.name} reading",
    )
    crossings = {}
    for one in own:
        pairs = {rtt: (simulated[run(one, rtt, 1)], simulated[run(one, rtt, STATIC)]) for rtt in RTTS_MS}
        crossings[one.dataset] = (
            crossover_ms({rtt: fused.throughput - far.throughput for rtt, (fused, far) in pairs.items()}),
            crossover_ms({rtt: far.tpot_s - fused.tpot_s for rtt, (fused, far) in pairs.items()}),
        )
    return crossings


def _orderings(fitted: Fitted) -> list[list[str]]:
    """Rows about routing and batching, on GSM8K."""
    routed = {
        (drafters, name): Run("GSM8K", fitted, PHYSICAL, drafters, routing=name)
        for drafters in DRAFTERS
        for name in ("random", "round_robin", "jsq")
    }
    batched = {
        (drafters, name): Run("GSM8K", fitted, PHYSICAL, drafters, batching=name)
        for drafters in (600, 1000)
        for name in ("fifo", "lab")
    }
    found = cells([*routed.values(), *batched.values()], "orderings")
    rows = []
    for drafters in DRAFTERS:
        said = ", ".join(
            f"{name} {found[run].tpot_s * 1e3:.1f}" for (n, name), run in routed.items() if n == drafters
        )
        rows.append([f"TPOT ms by routing, {drafters} drafters", said, "jsq best to 1000"])
    for drafters in (600, 1000):
        fifo, lab = (found[batched[drafters, name]].tpot_s * 1e3 for name in ("fifo", "lab"))
        rows.append([f"TPOT ms FIFO → LAB, {drafters} drafters", f"{fifo:.2f} → {lab:.2f}", "−1 … −2 ms"])
    return rows
