"""The hardware model against measurements: held-out rows of the public tables, and two real vLLM runs.

    python -m benchmarks.hardware

Needs the public data (see `cluster.simulator.hardware.catalog.data_folder`). The vLLM runs (Llama-3.1-8B, 300
requests, one RTX 4090 with a full KV cache and one RTX PRO 6000) are simulated with their own arrivals and
lengths; nothing is fitted to them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks import report
from cluster.simulator.config import parse
from cluster.simulator.hardware.catalog import data_folder
from cluster.simulator.hardware.validate import held_out
from cluster.simulator.run import simulate

RUNS = {"RTX4090": 256, "RTXPRO6000": 128}  # max_num_seqs


class Compared(NamedTuple):
    """Means and medians in seconds, measured and simulated."""

    ttft_p50_s: tuple[float, float]
    tpot_mean_s: tuple[float, float]


def vllm_run(gpu: str, data: Path) -> Compared:
    """One run, measured and simulated: FCFS with chunked prefill, 2,048 tokens a step."""
    path = data / "vllm_measured_runs" / f"{gpu}_Llama-3.1-8B_requests.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    config = parse(
        {
            "name": path.stem,
            "mode": "cloud",
            "reader": "cloud",
            "workload": {
                "kind": "trace",
                "path": str(path),
                "arrival": {"kind": "trace"},
                "acceptance": {"kind": "alpha", "alpha": 0.0},
            },
            "policies": {
                "batching": {"name": "chunked", "parameters": {"chunk": 2048, "context_doubles": 10**9}}
            },
            "targets": [
                {
                    "hardware": gpu,
                    "model": "Llama-3.1-8B",
                    "max_sessions": RUNS[gpu],
                    "token_budget": 2048,
                }
            ],
            "drafters": [{"rates": {"prefill_tokens_per_s": 1, "decode_tokens_per_s": 1}}],  # idle
            "data": str(data),
        }
    )
    summary = simulate(config).summary()
    return Compared(
        (median(float(row["ttft_s"]) for row in rows), summary["ttft_s"]["p50"]),
        (mean(float(row["tpot_s"]) for row in rows), summary["tpot_s"]["mean"]),
    )


def main() -> None:
    data = data_folder()
    if data is None:
        raise SystemExit("the public data is not here; name its folder in TANDEM_DATA")
    errors: dict[str, list[tuple[float, int]]] = {"prefill": [], "decode": []}
    for found in report.progress(list(held_out(data)), "held-out rows"):
        errors[found.operation].append((found.error, found.rows))
    figures = {
        f"{operation}_error": round(sum(e * n for e, n in found) / sum(n for _, n in found), 4)
        for operation, found in errors.items()
    }
    rows = [
        [f"{operation}, held-out rows of {len(found)} tables", f"{figures[f'{operation}_error']:.1%}"]
        for operation, found in errors.items()
    ]
    for gpu in RUNS:
        compared = vllm_run(gpu, data)
        for name, (measured, simulated) in zip(compared._fields, compared, strict=True):
            error = abs(simulated / measured - 1)
            figures[f"{gpu.lower()}_{name.removesuffix('_s')}_error"] = round(error, 4)
            rows.append(
                [
                    f"vLLM on {gpu}, {name.removesuffix('_s')}: {measured:.4g} s → {simulated:.4g} s",
                    f"{error:.1%}",
                ]
            )
    report.table("Hardware model, error", ["", "error"], rows)
    report.figures("hardware", figures)


if __name__ == "__main__":
    main()
