"""DSD's Table 2, predicted by the simulator: static, dynamic and adaptive windows in twelve settings.

    python -m benchmarks.dsd_table2 [--seeds 3]

The paper prints neither its acceptance rates nor how many requests are under way. Both are fitted, per data set, on
one cell (static, 600 drafters, 10 ms: α from its TPOT, the users from its throughput); every other figure is a
prediction. Times are simulated, from public profiles where those are at hand (see `benchmarks.dsd`). Beside each
setting stands the fixed window that would have been best in it, known only afterwards. Then what the paper says of
orderings: the RTT at which fused rounds (the target alone) overtake distributed ones,
routing over the number of drafters, and length-aware against FIFO batching.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean

from benchmarks import report
from benchmarks.dsd import COUNTS, DATASETS, PAPER, POOLS, WINDOWS, Cell, measure, setting
from cluster.simulator.config import Config
from cluster.simulator.run import simulate
from policies.speculation import MAX_WINDOW
from policies.window import StaticWindow

FIT = (600, 10, "static")
METRICS = ("throughput", "ttft_s", "tpot_s")
FIXED = range(1, MAX_WINDOW + 1)  # 1 is fused
RTTS_MS = tuple(range(5, 125, 10))
DRAFTERS = (400, 700, 1000, 1500, 2000)


def fit(dataset: str) -> tuple[float, float]:
    """(alpha, users) with which the fitted cell comes out as printed, as far as it can."""
    wanted = PAPER[dataset][FIT]
    alpha, users = 0.85, 50.0
    for _ in range(3):
        users = bisect(
            lambda n, a=alpha: measure(setting(dataset, alpha=a, users=n)).throughput,  # type: ignore[misc]
            wanted.throughput,
            4.0,
            COUNTS[dataset],
        )
        alpha = 1 - bisect(
            lambda miss, n=users: measure(setting(dataset, alpha=1 - miss, users=n)).tpot_s,  # type: ignore[misc]
            wanted.tpot_s,
            0.01,
            0.9,
        )
    return alpha, users


def bisect(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function comes nearest to a value, between two ends (their geometric mean in between)."""
    for _ in range(7):
        middle = (low * high) ** 0.5
        if rising(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def predict(dataset: str, alpha: float, users: float, seeds: int) -> dict[tuple[int, int, str], Cell]:
    """All cells, means over the seeds."""
    cells = {}
    for drafters, rtt_ms in POOLS:
        for window in WINDOWS:
            runs = [
                measure(
                    setting(dataset, drafters, rtt_ms, alpha=alpha, users=users, window=window, seed=seed)
                )
                for seed in range(seeds)
            ]
            cells[drafters, rtt_ms, window] = Cell(*(mean(run[i] for run in runs) for i in range(3)))
    return cells


def hindsight(
    dataset: str, alpha: float, users: float, seeds: int
) -> dict[tuple[int, int], tuple[int, float]]:
    """Of every pool: the fixed window of least TPOT, and that TPOT in seconds; a mean over the seeds."""
    best = {}
    for drafters, rtt_ms in POOLS:
        tpots = {
            size: mean(
                fixed_tpot_s(setting(dataset, drafters, rtt_ms, alpha=alpha, users=users, seed=seed), size)
                for seed in range(seeds)
            )
            for size in FIXED
        }
        size = min(tpots, key=tpots.__getitem__)
        best[drafters, rtt_ms] = size, tpots[size]
    return best


def fixed_tpot_s(config: Config, size: int) -> float:
    """Mean TPOT where every window is `size`, seconds."""
    found: float = simulate(config, window=lambda: StaticWindow(size)).summary()["tpot_s"]["mean"]
    return found


def crossover_ms(dataset: str, alpha: float, users: float) -> float:
    """RTT from which on fused rounds have the lower TPOT; infinite if that is beyond the RTTs tried."""
    before: tuple[float, float] | None = None
    for rtt_ms in RTTS_MS:
        config = setting(dataset, rtt_ms=rtt_ms, alpha=alpha, users=users)
        gap = fixed_tpot_s(config, 4) - fixed_tpot_s(config, 1)
        if gap > 0:
            if before is None:
                return float(rtt_ms)
            return before[0] + (rtt_ms - before[0]) * -before[1] / (gap - before[1])
        before = (rtt_ms, gap)
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs a cell, as in the paper (default 3)")
    options = parser.parse_args()
    fitted = {dataset: fit(dataset) for dataset in report.progress(DATASETS, "fitting")}
    found = {
        dataset: predict(dataset, *fitted[dataset], options.seeds)
        for dataset in report.progress(DATASETS, "predicting")
    }
    best = {
        dataset: hindsight(dataset, *fitted[dataset], options.seeds)
        for dataset in report.progress(DATASETS, "best fixed windows")
    }
    errors: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for dataset, cells in found.items():
        _table(dataset, fitted[dataset], cells, best[dataset])
        for key, cell in cells.items():
            if key != FIT:
                for metric in METRICS:
                    printed = getattr(PAPER[dataset][key], metric)
                    errors[metric].append(abs(getattr(cell, metric) / printed - 1))
    crossings = {
        dataset: crossover_ms(dataset, *fitted[dataset]) for dataset in report.progress(DATASETS, "crossover")
    }
    orderings = _orderings(*fitted["GSM8K"])
    wins = {
        other: sum(
            cells[*pool, "awc"].throughput >= cells[*pool, other].throughput
            for cells in found.values()
            for pool in POOLS
        )
        for other in ("static", "dynamic")
    }
    gains = [
        1 - cells[*pool, "awc"].tpot_s / cells[*pool, "static"].tpot_s
        for cells in found.values()
        for pool in POOLS
    ]
    possible = [
        1 - best[dataset][pool][1] / cells[*pool, "static"].tpot_s
        for dataset, cells in found.items()
        for pool in POOLS
    ]
    report.table(
        "Against the paper",
        ["", "here", "paper"],
        [
            *([f"mean error of {m}, cells not fitted", f"{mean(errors[m]):.0%}", ""] for m in METRICS),
            ["AWC ≥ static in throughput, cells", f"{wins['static']} of 12", "12"],
            ["AWC ≥ dynamic in throughput, cells", f"{wins['dynamic']} of 12", "11"],
            ["TPOT gain of AWC over static", f"{min(gains):.1%} … {max(gains):.1%}", "6 … 10.7 %"],
            ["of the best fixed window over static", f"{min(possible):.1%} … {max(possible):.1%}", ""],
            *(
                [f"fused overtakes distributed, {d}", f"{ms:.0f} ms RTT", "50 … 60 ms"]
                for d, ms in crossings.items()
            ),
            *orderings,
        ],
    )
    report.figures(
        "dsd_table2",
        {
            "awc_over_static_cells": wins["static"],
            "awc_over_dynamic_cells": wins["dynamic"],
            "tpot_gain_min": round(min(gains), 4),
            "best_fixed_gain_min": round(min(possible), 4),
            "crossover_ms": round(crossings["GSM8K"], 1),
            "unfitted_error": round(mean(e for found in errors.values() for e in found), 4),
            **{f"unfitted_{m.removesuffix('_s')}_error": round(mean(errors[m]), 4) for m in METRICS},
        },
    )


def _table(
    dataset: str,
    fitted: tuple[float, float],
    cells: dict[tuple[int, int, str], Cell],
    best: dict[tuple[int, int], tuple[int, float]],
) -> None:
    rows = []
    for metric, scale, digits in (("throughput", 1, 1), ("ttft_s", 1e3, 0), ("tpot_s", 1e3, 1)):
        row = [{"throughput": "requests/s", "ttft_s": "TTFT ms", "tpot_s": "TPOT ms"}[metric]]
        for pool in POOLS:
            ours, theirs = (
                "/".join(f"{getattr(source[*pool, w], metric) * scale:.{digits}f}" for w in WINDOWS)
                for source in (cells, PAPER[dataset])
            )
            row.append(f"{ours}\n{theirs}")
        rows.append(row)
    rows.append(
        ["best fixed window", *(f"γ = {size}: {tpot_s * 1e3:.1f} ms" for size, tpot_s in best.values())]
    )
    alpha, users = fitted
    report.table(
        f"{dataset}: static/dynamic/AWC, simulated above, the paper's below "
        f"(fitted α {alpha:.3f}, {users:.0f} users with 600 drafters, {COUNTS[dataset]} requests)",
        ["", *(f"{drafters} drafters, {rtt} ms" for drafters, rtt in POOLS)],
        rows,
    )


def _orderings(alpha: float, users: float) -> list[list[str]]:
    """Rows about routing and batching, on GSM8K."""
    rows = []
    for drafters in report.progress(DRAFTERS, "routing"):
        cells = {
            name: measure(setting("GSM8K", drafters, alpha=alpha, users=users, routing=name))
            for name in ("random", "round_robin", "jsq")
        }
        said = ", ".join(f"{name} {cell.tpot_s * 1e3:.1f}" for name, cell in cells.items())
        rows.append([f"TPOT ms by routing, {drafters} drafters", said, "jsq best to 1000"])
    for dataset_drafters in (600, 1000):
        tpots = [
            measure(setting("GSM8K", dataset_drafters, alpha=alpha, users=users, batching=name)).tpot_s * 1e3
            for name in ("fifo", "lab")
        ]
        rows.append(
            [
                f"TPOT ms FIFO → LAB, {dataset_drafters} drafters",
                f"{tpots[0]:.2f} → {tpots[1]:.2f}",
                "−1 … −2 ms",
            ]
        )
    return rows


if __name__ == "__main__":
    main()
