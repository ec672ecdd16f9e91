"""DiSCo's evaluation: dispatch and migration between a server and a phone, beside the paper's tables 2, 3 and 6.

    python -m benchmarks disco [--seeds 10]

The policies are the live system's; times are drawn, not measured. The paper published neither its traces nor its
prompts (a sample of Alpaca). For the server's times stand log-normals: their means as the spec takes them from the
paper's appendix C, σ from the error of the moving average there (MAPE), which independent draws of such a log-normal
would have. Nothing is fitted to tables 2 and 3: all their cells are predicted. Heavier tails, real samples of named
endpoints and other prompts are set beside. A device takes l / (its prefill speed) to its first token. Stochastic
dispatch gives a random share b of the prompts to the constrained endpoint alone, the others to the other one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.disco.data import (
    DEVICES,
    ENDPOINTS,
    HEADLINE,
    SCALED,
    TABLE_2,
    TABLE_3,
    TABLE_6,
    measured,
    prompts,
)
from tandem.benchmarks.disco.migration import ANSWER, PRINTED, READER, SIDES
from tandem.benchmarks.disco.sweep import (
    BUDGETS,
    Setting,
    Summary,
    Sweep,
    mean,
    p99,
    summarise,
    sweep,
    sweeps,
)

TAILS = (1.5, 2.0)
CAUTIONS = (0.5, 0.25, 0.01)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("disco", __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs a cell, as in the paper (default 10)")
    options = parser.parse_args(arguments)
    few = min(3, options.seeds)  # where only the direction counts
    pools = prompts()
    found = sweeps(pools[HEADLINE], options.seeds, "services")
    _ttft_table(found)
    _migration_table(found)
    own = summarise(found)

    def variant(which: str, what: str, **parameters: Any) -> Summary:
        return summarise(sweeps(pools[which], few, what, **parameters))

    by_prompts = {name: own if name == HEADLINE else variant(name, name) for name in pools}
    _variants(
        f"By prompts ({few} seeds but for the first row, here and below)",
        {f"{n}, {pools[n].mean():.0f} tokens": s for n, s in by_prompts.items()},
    )
    _variants(
        "By the server's tail, prompts: " + HEADLINE,
        {"σ": own} | {f"{tail:g} σ": variant(HEADLINE, "tails", tail=tail) for tail in TAILS},
    )
    printed = {which: variant(which, "prices", rates=PRINTED) for which in (HEADLINE, SCALED)}
    _variants("With energy_to_money as printed, by prompts: the server is cheap in both settings", printed)
    _variants(
        "By caution of hand-overs, prompts: " + SCALED,
        {"B": by_prompts[SCALED]} | {f"{c:g} B": variant(SCALED, "caution", caution=c) for c in CAUTIONS},
    )
    _endpoint_table(pools[HEADLINE], options.seeds)
    _flops_table()
    scaled = by_prompts[SCALED]
    report.figures(
        "disco",
        {
            "cells_in_range": own.as_paper,
            "cells_above_11_percent": own.in_range,
            **_costs("", own),
            "delayed_tokens_max_ratio": round(own.delayed, 4),
            "cells_in_range_alpaca_mean": scaled.as_paper,
            **_costs("_alpaca_mean", scaled),
            **_costs("_as_printed", printed[HEADLINE]),
            **_costs("_as_printed_alpaca_mean", printed[SCALED]),
            "budget_error_max": round(
                max(float(np.abs(s.used.mean(0) - BUDGETS).max()) for s in found.values()), 4
            ),
        },
    )


def _ttft_table(found: dict[Setting, Sweep]) -> None:
    rows = []
    for (name, side), s in found.items():
        means = 100 * s.p99_cut.mean(1)  # by seed and device
        cells = [
            f"{m.mean():.1f} ± {m.std():.1f} ({paper:.2f})" + (" <" if m.mean() < paper else "")
            for m, paper in zip(means.T, TABLE_2[name, side], strict=True)
        ]
        mean_ttft = ", ".join(f"{100 * cut:.0f}" for cut in s.mean_cut.mean((0, 1)))
        rows.append([name, side, *cells, mean_ttft])
    report.table(
        "P99 TTFT cut against stochastic dispatch, %, mean over budgets ± deviation over seeds (paper's; <: not "
        f"reached). Not the paper's: times (log-normals by its appendix C), prompts ({HEADLINE})",
        ["service", "constrained", *DEVICES, "mean TTFT cut (paper: 6 … 78)"],
        rows,
    )


def _migration_table(found: dict[Setting, Sweep]) -> None:
    rows = []
    for (name, side), s in found.items():
        delayed, stalls_s, paper = s.pooled("delayed"), s.pooled("stalls_s"), TABLE_3[name, side]
        cuts = [f"{s.cost_cut(j):.1%} of {s.cost_cut(j, best=True):.1%}" for j in range(len(DEVICES))]
        rows.append(
            [
                name,
                side,
                *cuts,
                f"{mean(delayed):.2f} ({paper[0]})",
                f"{p99(delayed):.1f} ({paper[1]})",
                f"{p99_gap_s(stalls_s):.3f} ({paper[2]})",
                f"{1 / READER + p99(stalls_s):.2f}",
            ]
        )
    report.table(
        "Cost cut by migration at the best budget, of what it would be if hand-overs took no time (paper: up to 83.6 % "
        "server, 72.7 % device); delays of migrated answers (paper's)",
        [
            "service",
            "constrained",
            *DEVICES,
            "delayed tokens, mean",
            "P99",
            "P99 TBT s",
            "longest gap, P99 s",
        ],
        rows,
    )


def p99_gap_s(stalls_s: np.ndarray) -> float:
    """P99 of all gaps between tokens as the reader has them, seconds: one of an answer's is longer by its stall."""
    gaps = (ANSWER - 1) * len(stalls_s)
    longer = int(0.01 * gaps)  # gaps that may lie above it
    sorted_s = np.sort(stalls_s)[::-1]
    return 1 / READER + (float(sorted_s[longer]) if longer < len(sorted_s) else 0.0)


def _costs(suffix: str, s: Summary) -> dict[str, float]:
    return {f"cost_cut_{side}{suffix}": round(cut, 4) for side, cut in s.cost_cut.items()}


def _variants(title: str, summaries: Mapping[str, Summary]) -> None:
    report.table(
        title,
        [
            "",
            "cells ≥ paper's, of 24",
            "cells ≥ 11 %",
            "cost cut, server",
            "cost cut, device",
            "delayed, × paper's",
        ],
        [
            [
                name,
                str(s.as_paper),
                str(s.in_range),
                *(f"{s.cost_cut[side]:.1%} of {s.at_best[side]:.1%}" for side in SIDES),
                f"{s.delayed:.2f}",
            ]
            for name, s in summaries.items()
        ],
    )


def _endpoint_table(pool: np.ndarray, seeds: int) -> None:
    rows = []
    for endpoint in report.progress(ENDPOINTS, "endpoints"):
        samples = measured(endpoint)
        relative = ENDPOINTS[endpoint][2]
        for side in SIDES:
            s = sweep(pool, lambda rng, n, x=samples: rng.choice(x, n), side, seeds)  # type: ignore[misc]
            paper = TABLE_2[relative, side] if relative else (None,) * len(DEVICES)
            cells = [
                f"{100 * cut:.1f}" + (f" ({p:.2f})" if p is not None else "")
                for cut, p in zip(s.p99_cut.mean((0, 1)), paper, strict=True)
            ]
            mean_ttft = ", ".join(f"{100 * cut:.0f}" for cut in s.mean_cut.mean((0, 1)))
            rows.append([f"{endpoint}, {len(samples)}", side, *cells, mean_ttft])
    report.table(
        "The same with real samples (how many) of endpoints that are not the paper's (its nearest service's cell)",
        ["endpoint", "constrained", *DEVICES, "mean TTFT cut"],
        rows,
    )


def _flops_table() -> None:
    rows = []
    for name, (prefill, decode) in TABLE_6.items():
        model = DEVICES[name].model
        for kind, of, paper in (
            ("prefill", model.prefill_flops, prefill),
            ("prefill, with L²·d", replace(model, heads=1).prefill_flops, prefill),
            ("decode", model.decode_flops, decode),
        ):
            cells = [f"{of(n) / 1e9:.3f} ({p})" for n, p in zip((32, 64, 128), paper, strict=True)]
            rows.append([name, kind, *cells])
    report.table(
        "GFLOPs a token by the paper's formulas (its table 6). Its prefill is nearer to L²·d than to the L²·d/h of its "
        "equation 10; its BLOOM-560M follows from neither",
        ["device", "", "L = 32", "64", "128"],
        rows,
    )
