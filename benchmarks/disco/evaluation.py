"""DiSCo's evaluation: dispatch and migration between a server and a phone, beside the paper's tables 2, 3 and 6.

    tandem benchmark disco [--seeds 10]

The policies are the live system's; times are drawn, not measured. The paper published neither its traces nor its
prompts (a sample of Alpaca). For the server's times stand log-normals: their means as the spec takes them from the
paper's appendix C, σ from the error of the moving average there (MAPE), which independent draws of such a log-normal
would have. Nothing is fitted to tables 2 and 3: all their cells are predicted. Heavier tails, real samples of named
endpoints and other prompts are set beside. A device takes l / (its prefill speed) to its first token. Stochastic
dispatch gives a random share b of the prompts to the constrained endpoint alone, the others to the other one alone.

A server that holds a prompt is taken to go on after a round trip and a step; half a time to first token and a whole one
are set beside. Migration policies get the same requests, draws and earlier times. A cost cut at best is, for each seed,
that of the service, device and budget which are best on the others; its interval is 95 % over the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.disco.course import ANSWER, READER, SIDES
from tandem.benchmarks.disco.data import (
    DEVICES,
    ENDPOINTS,
    HEADLINE,
    SCALED,
    SERVICES,
    TABLE_2,
    TABLE_3,
    TABLE_6,
    measured,
    prompts,
)
from tandem.benchmarks.disco.migration import PRINTED
from tandem.benchmarks.disco.sweep import (
    BUDGETS,
    Setting,
    Summary,
    Sweep,
    gaps,
    mean,
    p99,
    summarise,
    sweep,
    sweeps,
)
from tandem.benchmarks.intervals import Interval

TAILS = (1.5, 2.0)
HELD = {"half a TTFT": 0.5, "a whole TTFT": 1.0}
"""Shares of a time to first token after which a server that holds the prompt goes on."""
CAUTIONS = (1.0, 0.5, 0.25)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("disco", __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs a cell, as in the paper (default 10)")
    options = parser.parse_args(arguments)
    few = min(3, options.seeds)  # where only the direction counts
    several = min(5, options.seeds)
    pools = prompts()
    found = sweeps(pools[HEADLINE], options.seeds, "services")
    _ttft_table(found)
    _migration_table(found)
    own = summarise(found)
    scaled = summarise(sweeps(pools[SCALED], options.seeds, SCALED))

    def variant(which: str, what: str, **parameters: Any) -> Summary:
        return summarise(sweeps(pools[which], few, what, **parameters))

    by_prompts = {HEADLINE: own, SCALED: scaled} | {
        name: variant(name, name) for name in pools if name not in (HEADLINE, SCALED)
    }
    _variants(
        f"By prompts ({few} seeds but for the first two rows)",
        {f"{n}, {pools[n].mean():.0f} tokens": s for n, s in by_prompts.items()},
    )
    _variants(
        f"By the server's tail ({few} seeds but for the first row), prompts: " + HEADLINE,
        {"σ": own} | {f"{tail:g} σ": variant(HEADLINE, "tails", tail=tail) for tail in TAILS},
    )
    printed = {which: variant(which, "prices", rates=PRINTED) for which in (HEADLINE, SCALED)}
    _variants(
        f"With energy_to_money as printed, by prompts ({few} seeds): the server is cheap in both settings",
        printed,
    )
    held = {name: sweeps(pools[SCALED], several, name, held=share) for name, share in HELD.items()}
    _variants(
        f"By what a server takes to go on that holds the prompt ({several} seeds but for the first row), prompts: "
        + SCALED,
        {"a round trip and a step": scaled} | {name: summarise(each) for name, each in held.items()},
    )
    rivals = {
        f"buffered, {c:g} B": summarise(
            sweeps(pools[SCALED], several, "buffered", policy="buffered", parameters={"caution": c})
        )
        for c in CAUTIONS
    }
    _variants(
        f"By migration policy ({several} seeds but for the first row), prompts: " + SCALED,
        {"prepared": scaled} | rivals,
    )
    above = _gap_table(pools[SCALED], several)
    _endpoint_table(pools[HEADLINE], options.seeds)
    _flops_table()
    report.figures(
        "disco",
        {
            "cells_in_range": own.as_paper,
            "cells_above_11_percent": own.in_range,
            **_costs("", own),
            "delayed_tokens_max_ratio": round(own.delayed, 4),
            "cells_in_range_alpaca_mean": scaled.as_paper,
            "delayed_tokens_max_ratio_alpaca_mean": round(scaled.delayed, 4),
            **_costs("_alpaca_mean", scaled),
            **_costs("_alpaca_mean_whole_ttft", summarise(held["a whole TTFT"])),
            **_costs("_alpaca_mean_buffered", rivals["buffered, 1 B"]),
            **_costs("_as_printed", printed[HEADLINE]),
            **_costs("_as_printed_alpaca_mean", printed[SCALED]),
            "lp_gap_mean": round(float(above.mean()), 4),
            "lp_gap_max": round(float(above.max()), 4),
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
    found = {}
    for side, cuts in s.cost_cuts.items():
        cut = Interval.of(cuts.tolist())
        found[f"cost_cut_{side}{suffix}"] = round(cut.mean, 4)
        found[f"cost_cut_{side}{suffix}_error"] = round(cut.half, 4)
    return found


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
                *(
                    f"{Interval.of(s.cost_cuts[side].tolist())} of {s.at_best[side].mean():.1%}"
                    for side in SIDES
                ),
                f"{s.delayed:.3f}",
            ]
            for name, s in summaries.items()
        ],
    )


def _gap_table(pool: np.ndarray, seeds: int) -> np.ndarray:
    """Return the gaps of all settings, with a tail that is kept."""
    rows, found = [], []
    for name, side in report.progress([(name, side) for name in SERVICES for side in SIDES], "oracle"):
        kept, free = (gaps(pool, SERVICES[name].ttft(), side, seeds, keeps) for keeps in (True, False))
        found.append(kept)
        rows.append(
            [name, side]
            + [f"{Interval.of(each.mean((1, 2)).tolist())}, {each.max():.2%}" for each in (kept, free)]
        )
    report.table(
        f"Mean TTFT of plans above an oracle's ({seeds} seeds, prompts: {SCALED}): a linear programme over all "
        "requests that knows them, the server's distribution and the device's speed, and spends as much",
        ["service", "constrained", "mean, worst", "oracle without a guard of the tail: mean, worst"],
        rows,
    )
    return np.array(found)


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
