"""How fast the simulator is: 400 conversations, and 100,000, each in a process of its own.

    python -m benchmarks.simulator [--rounds 5] [--requests 100000]

Conversations have GSM8K's shape (mean 138 output tokens), static window 4, acceptance 0.8 a token. Real
seconds on one core; case_400_total_s counts the process from its start, imports and configuration included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

from benchmarks import report


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
        "policies": {"routing": {"name": "jsq"}, "batching": {"name": "fifo"}, "window": {"name": "static"}},
        "auto_topology": {
            "targets": targets,
            "drafters": drafters,
            "target_mix": [
                {"hardware": "4xA100", "model": "Llama-2-70B"},
                {"hardware": "4xH100", "model": "Qwen-72B"},
            ],
            "drafter_mix": [
                {"hardware": "A40", "model": "Llama-2-7B"},
                {"hardware": "A40", "model": "Qwen-7B"},
            ],
            "link": {"rtt_ms": 10, "jitter_ms": 1},
        },
    }


def child(requests: int, targets: int, drafters: int, rate_per_s: float) -> None:
    """What a process of its own does: simulate, and print what it took."""
    from cluster.simulator.config import parse
    from cluster.simulator.run import simulate

    result = simulate(parse(config(requests, targets, drafters, rate_per_s)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    summary = result.summary()
    if summary["finished"] != requests:
        raise SystemExit(f"{summary['finished']} of {requests} requests finished")
    said = {
        "run_s": result.run_s,
        "setup_s": result.setup_s,
        "events": summary["events"],
        "tokens": sum(log.tokens for log in result.logs),
        "peak_bytes": peak,
    }
    print(json.dumps(said))


def _timed(*arguments: float) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    call = f"from benchmarks.simulator import child; child{tuple(arguments)!r}"
    done = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
    return json.loads(done.stdout), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of the small case (default 5)")
    parser.add_argument("--requests", type=int, default=100_000, help="of the large case (default 100000)")
    options = parser.parse_args()
    small = [_timed(400, 20, 400, 40.0) for _ in report.progress(range(options.rounds), "400 conversations")]
    runs = [said["run_s"] for said, _ in small]
    totals = [total_s for _, total_s in small]
    # 200 targets serve ten times what 20 do; each drafter sees one request
    large, large_s = next(
        iter(
            [
                _timed(options.requests, 200, options.requests, 400.0)
                for _ in report.progress(range(1), f"{options.requests} conversations")
            ]
        )
    )
    rows = [
        ["400 conversations, simulation (s)", report.spread(runs)],
        ["… with start-up and configuration (s)", report.spread(totals)],
        ["… conversations/s", f"{400 / median(runs):,.0f}"],
        [f"{options.requests:,} conversations, whole process (s)", f"{large_s:.1f}"],
        ["… simulation (s)", f"{large['run_s']:.1f}"],
        ["… peak memory (GB)", f"{large['peak_bytes'] / 1e9:.2f}"],
        ["… events/s", f"{large['events'] / large['run_s']:,.0f}"],
        ["… simulated tokens/s of real time", f"{large['tokens'] / large['run_s']:,.0f}"],
    ]
    report.table("Simulator, real time on one core (median [min … max])", ["", "value"], rows)
    report.figures(
        "simulator",
        {
            "case_400_s": round(median(runs), 3),
            "case_400_total_s": round(median(totals), 3),
            "large_case_s": round(large_s, 1),
            "large_case_gb": round(large["peak_bytes"] / 1e9, 3),
            "events_per_s": round(large["events"] / large["run_s"]),
        },
    )


if __name__ == "__main__":
    main()
