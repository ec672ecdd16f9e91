"""Autoscaled pools, simulated: replica-seconds and times to first token against Ray Serve's policy and fixed pools.

    python -m benchmarks autoscaling [--only NAME]

Two loads of Azure's traces: conversation alone, which is steady, and conversation and code together as they came that
afternoon, which is bursty. The verifiers, Llama-3-70B on four A100s each (simulated), take 30 s to start; readers
take in 10 or 15 tokens/s. Each policy's settings are chosen on the first 18 minutes: the fewest replica-seconds of
those whose P99 TTFT is good enough (2 s and 30 s). What was chosen is judged on the busiest 20 minutes, which follow.
Serve's policy has its target, its look-back and its delays to choose; Tandem's, its load and its windows.

replica_seconds_cut: by which share the pool was smaller than with Serve's policy, in the load that is worse for it.
p99_ttft_ratio: of P99 TTFT, ours over Serve's policy's, likewise.
<load>_cut, <load>_p99_ratio: load by load; <load>_fixed_cut, <load>_fixed_p99_ratio: against the fixed pool.
<load>_equal_cut: against the smallest pool of Serve's policy whose P99 TTFT at the peak was no worse than ours, chosen
    with hindsight among all its settings; left out where none was as good.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA
from tandem.simulator.config.config import parse
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import Request

HARDWARE, MODEL = "4xA100", "Llama-3-70B"
PEAK_S, SPAN_S = 1107.562, 1200.0  # where the busiest 20 minutes of conversation begin in the trace
LOADS: dict[str, tuple[str, ...]] = {"steady": ("conv",), "bursty": ("conv", "code")}
FIRST = {"steady": 4, "bursty": 6}  # replicas at the beginning, and of the smallest fixed pool
MOST = 32
START_S = 30.0
CODE_LATER_S = 77.3  # so long after the first of conversation, the first request of code came
GOOD_S = {"steady": 2.0, "bursty": 30.0}  # a P99 TTFT that is good enough

KINDS = ("fixed", "serve", "tandem")
COLUMNS = (
    "pool",
    "settings",
    "time",
    "replica-s",
    "replicas",
    "P50 TTFT s",
    "P99 TTFT s",
    "stall s",
    "failed",
)

Autoscaling = dict[str, Any]
Trial = tuple[str, str, Autoscaling | None, int]  # load, kind, and how


class Outcome(NamedTuple):
    """Outcome of one simulation. stall_s: mean over readers."""

    replica_s: float
    replicas: float
    ttft_p50_s: float
    ttft_p99_s: float
    stall_s: float
    failed: int


def requests(load: str, begin_s: float, span_s: float) -> list[Request]:
    """Return requests from the traces, from `begin_s` on."""
    rows: list[tuple[float, int, int]] = []
    for name in LOADS[load]:
        with (DATA / "azure_llm_2023" / f"{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                at_s = float(row["arrival_s"]) + (CODE_LATER_S if name == "code" else 0.0) - begin_s
                if 0 <= at_s < span_s:
                    rows.append((at_s, int(row["prompt_tokens"]), max(1, int(row["output_tokens"]))))
    return [
        Request(at_s, prompt, output, reader_rate=10.0 if i % 5 < 2 else 15.0, max_tokens=1024)
        for i, (at_s, prompt, output) in enumerate(sorted(rows))
    ]


def run(load: str, peak: bool, autoscaling: Autoscaling | None, replicas: int) -> Outcome:
    """One simulation."""
    config = parse(
        {
            "mode": "cloud",
            "workload": {
                "kind": "synthetic",
                "count": 1,
                "acceptance": {"kind": "alpha", "alpha": 0.0},
            },
            "engine": {"batching": {"name": "buffered"}, "scheduling": {"name": "buffer_aware"}},
            "targets": [
                {
                    "hardware": HARDWARE,
                    "model": MODEL,
                    "count": replicas,
                    "autoscaling": autoscaling,
                    "start_s": START_S,
                }
            ],
        }
    )
    result = simulate(config, requests=requests(load, *((PEAK_S, SPAN_S) if peak else (0.0, PEAK_S))))
    summary = result.summary()
    ttft, reading = summary["ttft_s"], summary["reading"]
    return Outcome(
        result.replica_s,
        result.replica_s / summary["span_s"],
        ttft["p50"],
        ttft["p99"],
        reading["stall_mean_s"],
        summary["failed"],
    )


def candidates(load: str) -> Mapping[str, Sequence[tuple[Autoscaling | None, int]]]:
    """Settings by kind of pool: autoscaling, and replicas to begin with."""
    first, step = FIRST[load], 1 if load == "steady" else 2

    def scaled(name: str, up_s: float, down_s: float, **parameters: float) -> tuple[Autoscaling, int]:
        policy = {"name": name, "parameters": parameters}
        bounds = {"min_replicas": 1, "max_replicas": MOST}
        return {**bounds, "upscale_delay_s": up_s, "downscale_delay_s": down_s, "policy": policy}, first

    return {
        "fixed": [(None, n) for n in range(first - 1, first + 3 * step, step)],
        "serve": [
            scaled("ongoing_requests", up_s, down_s, target=target, look_back_s=look_back_s)
            for target, (look_back_s, up_s, down_s) in itertools.product(
                (8, 14, 20, 28, 40, 56), ((30, 30, 600), (30, 0, 20), (120, 0, 60))
            )
        ],
        "tandem": [
            scaled("work", 0.0, down_s, load=share, window_s=window_s, clear_s=20.0)
            for share, (window_s, down_s) in itertools.product(
                (0.3, 0.5, 0.75), ((30, 60), (60, 20), (120, 60))
            )
        ],
    }


def choose(load: str, tried: Sequence[tuple[Any, Outcome]]) -> tuple[Any, Outcome]:
    """The settings of the fewest replica-seconds, of those whose P99 TTFT is good enough; else those of the lowest.
    Settings with which a request failed are not looked at."""
    whole = [one for one in tried if not one[1].failed]
    good = [one for one in whole if one[1].ttft_p99_s <= GOOD_S[load]]
    if good:
        return min(good, key=lambda one: one[1].replica_s)
    return min(whole, key=lambda one: one[1].ttft_p99_s)


def said(autoscaling: Autoscaling | None, replicas: int) -> str:
    """In a few words."""
    if autoscaling is None:
        return f"{replicas} replicas"
    parameters = ", ".join(f"{key} {value:g}" for key, value in autoscaling["policy"]["parameters"].items())
    return f"{parameters}, delays {autoscaling['upscale_delay_s']:g} / {autoscaling['downscale_delay_s']:g} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.parser("autoscaling", __doc__)
    parser.add_argument("--only", choices=sorted(LOADS), help="one load")
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {}
    for load in [options.only] if options.only else LOADS:
        trials = [(load, kind, *how) for kind, tried in candidates(load).items() for how in tried]
        found = list(report.progress(ray_map(_try, trials, chunk=1), f"{load}: {len(trials)} settings"))
        chosen = {
            kind: choose(load, [(how, outcome) for (_, of, *how), outcome in found if of == kind])
            for kind in KINDS
        }
        looked_at_again = [t for t in trials if t[1] == "serve" or list(t[2:]) == chosen[t[1]][0]]
        judged = list(report.progress(ray_map(_judge, looked_at_again, chunk=1), f"{load}: the peak"))
        peaks = {
            kind: next(o for (_, of, *how), o in judged if of == kind and how == chosen[kind][0])
            for kind in KINDS
        }
        rows = []
        for kind, (how, before) in chosen.items():
            for when, outcome in (("before", before), ("peak", peaks[kind])):
                rows.append((kind, said(*how), when, *(f"{value:.4g}" for value in outcome)))
        report.table(f"{load}: chosen before the peak, judged on it", COLUMNS, rows)
        ours = peaks["tandem"]
        for name, other in (("", peaks["serve"]), ("_fixed", peaks["fixed"])):
            figures[f"{load}{name}_cut"] = 1 - ours.replica_s / other.replica_s
            figures[f"{load}{name}_p99_ratio"] = ours.ttft_p99_s / other.ttft_p99_s
        if equal := _no_worse([o for (_, of, *_), o in judged if of == "serve"], ours.ttft_p99_s):
            figures[f"{load}_equal_cut"] = 1 - ours.replica_s / equal.replica_s
    looked_at = [options.only] if options.only else list(LOADS)
    figures["replica_seconds_cut"] = min(figures[f"{load}_cut"] for load in looked_at)
    figures["p99_ttft_ratio"] = max(figures[f"{load}_p99_ratio"] for load in looked_at)
    report.figures("autoscaling", figures)


def _no_worse(tried: Sequence[Outcome], ttft_p99_s: float) -> Outcome | None:
    """The fewest replica-seconds of those with at most this P99."""
    good = [o for o in tried if not o.failed and o.ttft_p99_s <= ttft_p99_s]
    return min(good, key=lambda o: o.replica_s, default=None)


def _try(trial: Trial) -> tuple[Trial, Outcome]:
    load, _, autoscaling, replicas = trial
    return trial, run(load, False, autoscaling, replicas)


def _judge(trial: Trial) -> tuple[Trial, Outcome]:
    load, _, autoscaling, replicas = trial
    return trial, run(load, True, autoscaling, replicas)


if __name__ == "__main__":
    main()
