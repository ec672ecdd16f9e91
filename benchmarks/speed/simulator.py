"""Speed of the simulator: 400 conversations, and 100,000, beside the commit before the rebuild.

    tandem benchmark simulator [--rounds 5] [--requests 100000] [--large-rounds 1] [--base COMMIT]

Conversations have GSM8K's shape (mean 138 output tokens), static window 4, acceptance 0.8 a token. Every run is a
process of its own, this tree's and the other commit's in turns; that one configures the same system by its own
`benchmarks/simulator.py`. Ratios are of CPU time, new over old, since the machine may be busy with other things:
case_400_ratio and large_case_ratio of whole processes, imports and configuration included, run_400_ratio of the
simulation alone. case_400_s is CPU time of the simulation alone, too; case_400_total_s and large_case_s are real
seconds of whole processes.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tandem.benchmarks import baseline, report
from tandem.benchmarks.baseline import Run, Side


def config(requests: int, targets: int, drafters: int, rate_per_s: float) -> dict[str, Any]:
    """20 targets with 400 drafters, and the same shape at any size. Lengths are drawn as GSM8K's are."""
    return {
        "name": f"{requests} conversations",
        "workload": {
            "kind": "synthetic",
            "count": requests,
            "arrival": {"kind": "poisson", "rate_per_s": rate_per_s},
            "prompt": {"mean": 73, "cv": 0.3},
            "output": {"mean": 138, "cv": 0.25},
            "acceptance": {"kind": "alpha", "alpha": 0.8},
        },
        "window": {"name": "static"},
        "router": {"routing": {"name": "jsq"}},
        "engine": {"batching": {"name": "fifo"}, "token_budget": 2048},
        "auto_topology": {
            "targets": targets,
            "devices": drafters,
            "target_mix": [
                {"hardware": "4xA100", "model": "Llama-2-70B"},
                {"hardware": "4xH100", "model": "Qwen-72B"},
            ],
            "device_mix": [
                {"hardware": "A40", "model": "Llama-2-7B"},
                {"hardware": "A40", "model": "Qwen-7B"},
            ],
            "link": {"rtt_ms": 10, "jitter_ms": 1},
        },
    }


def child(requests: int, targets: int, drafters: int, rate_per_s: float) -> None:
    """Simulate in a process of its own, and print its cost."""
    from tandem.simulator.config.config import parse
    from tandem.simulator.runs.run import simulate

    result = simulate(parse(config(requests, targets, drafters, rate_per_s)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    summary = result.summary()
    if summary["finished"] != requests:
        raise SystemExit(f"{summary['finished']} of {requests} requests finished")
    said = {
        "run_s": result.run_s,
        "setup_s": result.setup_s,
        "events": summary["events"],
        "tokens": sum(answer.tokens for answer in result.answers),
        "peak_bytes": peak,
    }
    print(json.dumps(said))


_CPU = "import time; time.perf_counter = time.process_time; "  # what simulators say of their own speed is CPU time


def new_side(*case: float) -> Side:
    """Start this tree's process for the arguments of `child`."""
    return Side(f"{_CPU}from tandem.benchmarks.speed.simulator import child; child{case!r}")


def old_side(tree: Path | None, *case: float) -> Side | None:
    """Return the process of another tree; None without one."""
    if tree is None:
        return None
    name = baseline.module(tree, "tandem.benchmarks.speed.simulator", "benchmarks.simulator")
    return Side(f"{_CPU}from {name} import child; child{case!r}", tree)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("simulator", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of the small case (default 5)")
    parser.add_argument("--requests", type=int, default=100_000, help="of the large case (default 100000)")
    parser.add_argument("--large-rounds", type=int, default=1, help="of the large case (default 1)")
    baseline.add_option(parser)
    options = parser.parse_args(arguments)
    small = 400, 20, 400, 40.0
    # 200 targets serve ten times what 20 do; each drafter sees one request
    large = options.requests, 200, options.requests, 400.0
    with baseline.worktree(options.base) as tree:
        few, few_old = baseline.alternate(
            new_side(*small), old_side(tree, *small), options.rounds, "400 conversations"
        )
        many, many_old = baseline.alternate(
            new_side(*large),
            old_side(tree, *large),
            options.large_rounds,
            f"{options.requests} conversations",
        )
    runs_s = [_run_s(run) for run in few]
    totals_s = [run.wall_s for run in few]
    large_s = [run.wall_s for run in many]
    gigabytes = [run.said["peak_bytes"] / 1e9 for run in many]
    events_per_s = [run.said["events"] / _run_s(run) for run in many]
    figures = {
        "case_400_s": round(median(runs_s), 3),
        "case_400_total_s": round(median(totals_s), 3),
        "large_case_s": round(median(large_s), 1),
        "large_case_gb": round(median(gigabytes), 3),
        "events_per_s": round(median(events_per_s)),
        "case_400_cpu_s": round(median(run.cpu_s for run in few), 3),
        "large_case_cpu_s": round(median(run.cpu_s for run in many), 1),
    }
    rows = [
        ["400 conversations, simulation (CPU s)", report.spread(runs_s)],
        ["… conversations a CPU second", f"{400 / median(runs_s):,.0f}"],
        ["… with start-up and configuration (real s)", report.spread(totals_s)],
        [f"{options.requests:,} conversations, simulation (CPU s)", report.spread([_run_s(r) for r in many])],
        ["… events a CPU second", report.spread(events_per_s)],
        ["… tokens a CPU second", report.spread([run.said["tokens"] / _run_s(run) for run in many])],
        ["… with start-up and configuration (real s)", report.spread(large_s)],
        ["… peak memory (GB)", report.spread(gigabytes)],
    ]
    report.table("Simulator, on one core (median [min … max])", ["", "value"], rows)
    if few_old:
        compared = {"case_400": (few, few_old), "large_case": (many, many_old)}
        report.table(
            f"Against {options.base}, in alternation, CPU seconds (median [min … max])",
            ["", "here", "there", "ratio", "simulation alone, ratio", "peak memory ratio"],
            [_compared(name, *pair) for name, pair in compared.items()],
        )
        figures |= {
            f"{name}_ratio": round(median(baseline.ratios(*pair, baseline.seconds)), 3)
            for name, pair in compared.items()
        }
        figures["run_400_ratio"] = round(median(baseline.ratios(few, few_old, _run_s)), 3)
    report.figures("simulator", figures)


def _compared(name: str, new: list[Run], old: list[Run]) -> list[str]:
    tokens = {run.said["tokens"] for run in (*new, *old)}
    return [
        name if len(tokens) == 1 else f"{name} (not the same work: {tokens} tokens)",
        report.spread([run.cpu_s for run in new]),
        report.spread([run.cpu_s for run in old]),
        report.spread(baseline.ratios(new, old, baseline.seconds)),
        report.spread(baseline.ratios(new, old, _run_s)),
        report.spread(baseline.ratios(new, old, lambda run: run.said["peak_bytes"])),
    ]


def _run_s(run: Run) -> float:
    """CPU seconds of the simulation alone."""
    return float(run.said["run_s"])
