"""DSD's Table 2, predicted by the simulator: static, dynamic and adaptive windows in twelve settings.

    python -m benchmarks dsd_table2 [--seeds 3]

The paper prints neither its acceptance rates nor how many requests are under way. The latter follow, per data set, from
Little's law in one cell (static, 600 drafters, 10 ms), in proportion to the drafters elsewhere; α is fitted to that
cell's TPOT. What the fit leaves of that cell's error is shown, every other figure is a prediction. Runs are in steady
state (see `benchmarks.dsd.setting.measure`), intervals are 95 % over the seeds. Times are simulated, from public
profiles where those are at hand.

The setting can be read in two ways, and both are predicted: physical (a round crosses the link once each way, γ drafts
take γ passes) and the authors' (their public simulator's: an RTT each way, γ drafts in one pass, TTFT until the first
accepted draft). Beside each cell stands the fixed window of the least TPOT there, known only afterwards. Then what the
paper says of orderings: the RTT at which fused rounds (with a drafter beside the target) overtake distributed ones in
throughput and in TPOT, routing over the number of drafters, and length-aware against FIFO batching.

Figures without a suffix are of the physical reading, *_authors of the other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.dsd.setting import (
    DATASETS,
    PAPER,
    PHYSICAL,
    POOLS,
    READINGS,
    WINDOWS,
    Cell,
    Reading,
    measure,
    setting,
    under_way,
)
from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.runs.tasks import ray_map

FIT = (600, 10, "static")
METRICS = ("throughput", "ttft_s", "tpot_s")
FIXED = (*range(1, 9), 10, MAX_WINDOW)  # 1 is fused
CLOSE = 0.02  # how near to the best fixed window an adaptive one should come
RTTS_MS = tuple(range(5, 125, 10))
DRAFTERS = (400, 700, 1000, 1500, 2000)
HALF_WIDTH = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t, 95 %, by how many seeds; more are taken as ten."""


class Fitted(NamedTuple):
    """alpha: probability that a draft is accepted.
    users: requests under way with 600 drafters.
    """

    alpha: float
    users: float


class Run(NamedTuple):
    """One simulation. fixed: a window of this size throughout, in place of the policy `window`."""

    dataset: str
    fitted: Fitted
    reading: Reading
    drafters: int = 600
    rtt_ms: float = 10.0
    window: str = "static"
    fixed: int | None = None
    seed: int = 0
    routing: str = "jsq"
    batching: str = "lab"
    colocated: bool = False

    def cell(self) -> Cell:
        """Simulate it."""
        config = setting(
            self.dataset,
            self.drafters,
            self.rtt_ms,
            alpha=self.fitted.alpha,
            users=self.fitted.users,
            window=self.window,
            routing=self.routing,
            batching=self.batching,
            seed=self.seed,
            reading=self.reading,
            colocated=self.colocated,
        )
        size = self.fixed
        return measure(config, self.reading, None if size is None else lambda: StaticWindow(size))


def cells(runs: Iterable[Run], what: str) -> dict[Run, Cell]:
    """Simulate them, on as many cores as there are."""
    runs = list(dict.fromkeys(runs))
    found = ray_map(_simulated, runs, chunk=2)
    return dict(next(found) for _ in report.progress(runs, what))


def _simulated(run: Run) -> tuple[Run, Cell]:
    return run, run.cell()


def fit(dataset: str, reading: Reading = PHYSICAL) -> Fitted:
    """Fit the fitted cell's TPOT to the printed one, as far as possible."""
    users = under_way(dataset, FIT)
    missed = bisect(
        lambda miss: Run(dataset, Fitted(1 - miss, users), reading).cell().tpot_s,
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


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval; that is infinite of one value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Over seeds."""
        if len(values) < 2:
            return cls(values[0], math.inf)
        return cls(mean(values), HALF_WIDTH[min(10, len(values))] * stdev(values) / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:+.1%}" + (f" ± {self.half:.1%}" if math.isfinite(self.half) else "")


class Prediction:
    """All cells of one data set in one reading, by seed.

    best: by pool, the fixed window of the least mean TPOT, known only afterwards.
    """

    def __init__(self, dataset: str, fitted: Fitted, reading: Reading, seeds: int) -> None:
        self.dataset, self.fitted, self.reading, self._seeds = dataset, fitted, reading, range(seeds)
        self._cells: Mapping[Run, Cell] = {}
        self.best: dict[tuple[int, int], int] = {}

    def runs(self) -> list[Run]:
        """Return the simulations to run."""
        return [
            run
            for pool in POOLS
            for seed in self._seeds
            for run in (
                *(self._run(pool, seed, window) for window in WINDOWS),
                *(self._run(pool, seed, fixed=size) for size in FIXED),
            )
        ]

    def take(self, found: Mapping[Run, Cell]) -> None:
        """The results of `runs`."""
        self._cells = found
        for pool in POOLS:
            tpots = {size: mean(self._of(pool, "tpot_s", fixed=size)) for size in FIXED}
            self.best[pool] = min(tpots, key=tpots.__getitem__)

    def cell(self, pool: tuple[int, int], window: str) -> Cell:
        """The mean over the seeds."""
        return Cell(*(mean(self._of(pool, metric, window)) for metric in METRICS))

    def best_tpot_s(self, pool: tuple[int, int]) -> float:
        """Return the mean TPOT of the best fixed window over the seeds."""
        return mean(self._of(pool, "tpot_s", fixed=self.best[pool]))

    def against(self, metric: str, pool: tuple[int, int], window: str) -> Interval:
        """AWC's figure over another window's, less 1, seed by seed."""
        return _relative(self._of(pool, metric, "awc"), self._of(pool, metric, window))

    def regret(self, pool: tuple[int, int]) -> Interval:
        """AWC's TPOT over that of the best fixed window, less 1."""
        return _relative(self._of(pool, "tpot_s", "awc"), self._of(pool, "tpot_s", fixed=self.best[pool]))

    def errors(self, metric: str) -> list[float]:
        """Relative ones of all cells but the fitted one."""
        return [abs(self.error(key, metric)) for key in PAPER[self.dataset] if key != FIT]

    def error(self, key: tuple[int, int, str], metric: str) -> float:
        """Return one cell's error against the printed figure."""
        drafters, rtt_ms, window = key
        ours: float = getattr(self.cell((drafters, rtt_ms), window), metric)
        return ours / getattr(PAPER[self.dataset][key], metric) - 1

    def _of(
        self, pool: tuple[int, int], metric: str, window: str = "static", fixed: int | None = None
    ) -> list[float]:
        return [getattr(self._cells[self._run(pool, seed, window, fixed)], metric) for seed in self._seeds]

    def _run(self, pool: tuple[int, int], seed: int, window: str = "static", fixed: int | None = None) -> Run:
        return Run(self.dataset, self.fitted, self.reading, *pool, window, fixed, seed)


def _relative(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    return Interval.of([a / b - 1 for a, b in zip(ours, theirs, strict=True)])


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("dsd_table2", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs a cell, as in the paper (default 3)")
    options = parser.parse_args(arguments)
    wanted = [(reading, dataset) for reading in READINGS for dataset in DATASETS]
    found = [
        Prediction(dataset, fit(dataset, reading), reading, options.seeds)
        for reading, dataset in report.progress(wanted, "fitting")
    ]
    simulated = cells((run for one in found for run in one.runs()), "predicting")
    for one in found:
        one.take(simulated)
        _table(one)
    figures: dict[str, float] = {}
    for reading in READINGS:
        own = [one for one in found if one.reading is reading]
        crossings = _crossings(own)
        _against_paper(reading, own, crossings)
        suffix = "" if reading is PHYSICAL else "_authors"
        figures |= {f"{name}{suffix}": value for name, value in _figures(own, crossings).items()}
    report.table("Orderings, GSM8K, physical reading", ["", "here", "paper"], _orderings(found[0].fitted))
    report.figures("dsd_table2", figures)


Crossings = dict[str, tuple[float, float]]
"""By data set: the RTTs, in milliseconds, from which on fused rounds have the higher throughput and the lower TPOT."""


def _figures(own: Sequence[Prediction], crossings: Crossings) -> dict[str, float]:
    errors = {metric: [e for one in own for e in one.errors(metric)] for metric in METRICS}
    settings = [(one, pool) for one in own for pool in POOLS]
    static = [one.cell(pool, "static").tpot_s for one, pool in settings]
    regrets = [one.regret(pool) for one, pool in settings]
    return {
        "awc_over_static_cells": sum(
            one.against("throughput", pool, "static").mean >= 0 for one, pool in settings
        ),
        "awc_over_dynamic_cells": sum(
            one.against("throughput", pool, "dynamic").mean >= 0 for one, pool in settings
        ),
        "tpot_gain_min": round(min(-one.against("tpot_s", pool, "static").mean for one, pool in settings), 4),
        "best_fixed_gain_min": round(
            min(
                1 - one.best_tpot_s(pool) / tpot_s
                for (one, pool), tpot_s in zip(settings, static, strict=True)
            ),
            4,
        ),
        "awc_near_best_cells": sum(regret.mean <= CLOSE for regret in regrets),
        "awc_regret_max": round(max(regret.mean for regret in regrets), 4),
        "crossover_ms": round(crossings["GSM8K"][1], 1),
        "crossover_throughput_ms": round(crossings["GSM8K"][0], 1),
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
        [f"throughput, AWC to {other}", *(str(one.against("throughput", pool, other)) for pool in POOLS)]
        for other in ("static", "dynamic")
    ]
    rows.append(["TPOT, AWC to static", *(str(one.against("tpot_s", pool, "static")) for pool in POOLS)])
    rows.append(
        [
            "best fixed window",
            *(f"γ = {one.best[pool]}: {one.best_tpot_s(pool) * 1e3:.1f} ms" for pool in POOLS),
        ]
    )
    rows.append(["TPOT, AWC to that", *(str(one.regret(pool)) for pool in POOLS)])
    residual = ", ".join(f"{metric.removesuffix('_s')} {one.error(FIT, metric):+.0%}" for metric in METRICS)
    report.table(
        f"{one.dataset}, {one.reading.name} reading: static/dynamic/AWC, simulated above, the paper's below "
        f"(α {one.fitted.alpha:.3f}, {one.fitted.users:.0f} requests under way with 600 drafters; left of the fitted "
        f"cell's error: {residual})",
        ["", *(f"{drafters} drafters, {rtt} ms" for drafters, rtt in POOLS)],
        rows,
    )


def _against_paper(reading: Reading, own: Sequence[Prediction], crossings: Crossings) -> None:
    figures = _figures(own, crossings)
    settings = [(one, pool) for one in own for pool in POOLS]
    gains = [-one.against("tpot_s", pool, "static").mean for one, pool in settings]
    possible = [1 - one.best_tpot_s(pool) / one.cell(pool, "static").tpot_s for one, pool in settings]
    regrets = [one.regret(pool) for one, pool in settings]
    report.table(
        f"Against the paper, {reading.name} reading",
        ["", "here", "paper"],
        [
            *(
                [f"mean error of {m}, cells not fitted", f"{figures[f'unfitted_{m}_error']:.0%}", ""]
                for m in (metric.removesuffix("_s") for metric in METRICS)
            ),
            ["AWC ≥ static in throughput, cells", f"{figures['awc_over_static_cells']:g} of 12", "12"],
            ["AWC ≥ dynamic in throughput, cells", f"{figures['awc_over_dynamic_cells']:g} of 12", "11"],
            ["TPOT gain of AWC over static", f"{min(gains):.1%} … {max(gains):.1%}", "6 … 10.7 %"],
            ["of the best fixed window over static", f"{min(possible):.1%} … {max(possible):.1%}", ""],
            [
                f"AWC within {CLOSE:.0%} of that one's TPOT, cells",
                f"{figures['awc_near_best_cells']:g} of 12",
                "",
            ],
            ["… and surely (95 %)", f"{sum(r.mean + r.half <= CLOSE for r in regrets)} of 12", ""],
            *(
                [f"fused overtakes distributed in {metric}, {dataset}", _rtt(pair[i]), "50 … 60 ms"]
                for dataset, pair in crossings.items()
                for i, metric in enumerate(("throughput", "TPOT"))
            ),
        ],
    )


def _rtt(rtt_ms: float) -> str:
    if math.isinf(rtt_ms):
        return f"not up to {RTTS_MS[-1]} ms RTT"
    return f"at {rtt_ms:.0f} ms RTT or below" if rtt_ms == RTTS_MS[0] else f"{rtt_ms:.0f} ms RTT"


def _crossings(own: Sequence[Prediction]) -> Crossings:
    def run(one: Prediction, rtt_ms: float, size: int) -> Run:
        return Run(one.dataset, one.fitted, one.reading, rtt_ms=rtt_ms, fixed=size, colocated=True)

    found = cells(
        (run(one, rtt_ms, size) for one in own for rtt_ms in RTTS_MS for size in (1, 4)), "crossovers"
    )
    crossings = {}
    for one in own:
        pairs = {rtt: (found[run(one, rtt, 1)], found[run(one, rtt, 4)]) for rtt in RTTS_MS}
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
