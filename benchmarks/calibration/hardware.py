"""The hardware model against measurements: held-out rows and combinations of the public tables, and two real vLLM runs.

    tandem benchmark hardware

Needs the public data (see `simulator.hardware.data_folder`). The vLLM runs (Llama-3.1-8B, 300
requests, one RTX 4090 with a full KV cache and one RTX PRO 6000) are simulated with their own arrivals and
lengths; nothing is fitted to them.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.calibration.validate import HeldOut, as_without_a_table, combinations, rows
from tandem.benchmarks.paths import NO_DATA
from tandem.simulator.config.config import parse
from tandem.simulator.hardware import data_folder
from tandem.simulator.runs.run import simulate

RUNS = {"RTX4090": 256, "RTXPRO6000": 128}  # max_num_seqs


class Compared(NamedTuple):
    """Means and medians in seconds, measured and simulated."""

    ttft_p50_s: tuple[float, float]
    tpot_mean_s: tuple[float, float]


def vllm_run(gpu: str, data: Path) -> Compared:
    """One run, measured and simulated: FCFS with chunked prefill, 2,048 tokens a step."""
    path = data / "vllm_measured_runs" / f"{gpu}_Llama-3.1-8B_requests.csv"
    with path.open(newline="", encoding="utf-8") as file:
        measured = list(csv.DictReader(file))
    config = parse(
        {
            "name": path.stem,
            "mode": "cloud",
            "workload": {
                "kind": "trace",
                "path": str(path),
                "arrival": {"kind": "trace"},
                "acceptance": {"kind": "alpha", "alpha": 0.0},
            },
            "engine": {
                "batching": {"name": "chunked", "parameters": {"chunk": 2048, "context_doubles": 10**9}},
                "max_sessions": RUNS[gpu],
                "token_budget": 2048,
            },
            "targets": [{"hardware": gpu, "model": "Llama-3.1-8B"}],
            "data": str(data),
        }
    )
    summary = simulate(config).summary()
    return Compared(
        (median(float(row["ttft_s"]) for row in measured), summary["ttft_s"]["p50"]),
        (mean(float(row["tpot_s"]) for row in measured), summary["tpot_s"]["mean"]),
    )


def weighted(found: list[HeldOut]) -> float:
    """Mean error over rows."""
    return sum(one.error * one.rows for one in found) / sum(one.rows for one in found)


def main(arguments: Sequence[str] = ()) -> None:
    report.parser("hardware", __doc__).parse_args(arguments)
    data = data_folder()
    if data is None:
        raise SystemExit(NO_DATA)
    figures: dict[str, float] = {}
    shown: list[list[str]] = []

    def show(name: str, what: str, error: float) -> None:
        figures[name] = round(error, 4)
        shown.append([what, f"{error:.1%}"])

    held_out = list(report.progress(list(rows(data)), "held-out rows"))
    whole = list(report.progress(list(combinations(data)), "held-out combinations"))
    told = as_without_a_table(whole)
    for operation in ("prefill", "decode"):
        found = [one for one in held_out if one.operation == operation]
        show(f"{operation}_error", f"{operation}, held-out rows of {len(found)} tables", weighted(found))
    for operation in ("prefill", "decode"):
        errors = [one.error for one in told if one.operation == operation]
        what = f"{operation}, held-out combinations ({len(errors)} tables)"
        show(f"held_out_combination_{operation}_error", what, mean(errors))
    everything = [one.error for one in told if one.operation != "both"]
    show("held_out_combination_error", "held-out combinations", mean(everything))
    for operator, method in sorted({(one.operator, one.method) for one in whole}):
        errors = [one.error for one in whole if (one.operator, one.method) == (operator, method)]
        name = f"{operator} {method}".replace(" ", "_").replace("-", "_")
        what = f"… {operator} by {method}, {len(errors)} figures, worst {max(errors):.0%}"
        show(f"held_out_{name}_error", what, mean(errors))
    for gpu in RUNS:
        compared = vllm_run(gpu, data)
        for name, (measured, simulated) in zip(compared._fields, compared, strict=True):
            what = f"vLLM on {gpu}, {name.removesuffix('_s')}: {measured:.4g} s → {simulated:.4g} s"
            show(f"{gpu.lower()}_{name.removesuffix('_s')}_error", what, abs(simulated / measured - 1))
    report.table("Hardware model, error", ["", "error"], shown)
    report.figures("hardware", figures)
