"""TokenFlow beside its rivals at equal stall: time to first token, stall and throughput as frontiers, simulated.

    tandem benchmark tokenflow_frontier [--seeds 5] [--only NAME] [--plot FILE]

Setups and hardware as in `tokenflow_sim`. No policy knows how long an answer gets: clients allow 4096 tokens each. Only
SRPT is told, an upper estimate that is 24 % too high on average. With host memory, every policy has it; without, none.
Each has the batching that is best for it, setup by setup: prompts whole or in chunks, by the highest QoS (the paper's
equation 2) on requests that are not judged. VTC is not among the rivals: with one request a client, it serves in order
of arrival. Each engine has answered WARM other requests of the setup before, so that its speed and typical lengths are
measured, not guessed.

*_worse_in_two: pairs of a setup and a first-come-first-served rival that is better in two of mean TTFT, mean stall and
tokens/s, each by more than 5 % (a stall by 0.05 s, too).
*_p99_over_best_equal_stall: P99 of TTFT over the least that rivals have at the same mean stall, between two rivals
interpolated; the worst burst, and the median.
*_raw_over_best: tokens/s over the most of all rivals, the worst setup.
*_p99_over_least: P99 of TTFT over `least_p99_s`, the worst burst: the least of any policy that lets no reader stall and
never gives more tokens/s than the best here on average. An engine may, for as long as many sessions run; what its
prompts alone take is a bound for all. *_rivals_p99_over_least: that of the rivals at our mean stall, the least.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA
from tandem.benchmarks.tokenflow.simulated import (
    BUFFER_AWARE,
    CHOOSING,
    HOST,
    SETUPS,
    Setup,
    requests_of,
    streams,
)
from tandem.policies.reader.quality import Quality, assess
from tandem.simulator.results.plot import canvas
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import Request

ALLOWED = 4096  # tokens of every client's `max_tokens`
WARM, WARM_S = 4, 600.0  # requests that an engine answers first, and when the others begin to come, seconds
ESTIMATE_SIGMA = 0.3  # of the logarithm of what SRPT is told over the true length, which it is never below
SAME = 0.05  # relative difference that counts as none
SAME_S = 0.05  # of stalls, seconds
OURS, TOLD = "TokenFlow", "SRPT, told"
FIRST_COME: dict[str, dict[str, Any]] = {
    "FCFS, 0.7 reserved": {"name": "fcfs", "parameters": {"reserve": 0.7}},
    "FCFS, 0.2 reserved": {"name": "fcfs", "parameters": {"reserve": 0.2}},
    "FCFS": {"name": "fcfs"},
    "FCFS at every step, as vLLM": {"name": "fcfs", "parameters": {"interval_s": 0.0}},
    "FCFS, decaying reserve, as SGLang": {"name": "decaying"},
}
POLICIES = {**FIRST_COME, "Andes-like": {"name": "andes"}, TOLD: {"name": "srpt"}, OURS: BUFFER_AWARE}
WHOLE = ("continuous", 0)
BATCHINGS = (WHOLE, ("chunked", 256), ("chunked", 1024))
BUFFERED = (("buffered", 256), ("buffered", 1024))


class Run(NamedTuple):
    """One simulation. host: whether there is host memory; policy: its name in POLICIES; batching: name and chunk."""

    setup: Setup
    host: bool
    policy: str
    seed: int
    batching: tuple[str, int]

    def quality(self) -> Quality:
        """Simulate it."""
        batching, chunk = self.batching
        kind = (POLICIES[self.policy], batching, HOST if self.host else None)
        return assess(streams(self.setup, kind, self.seed, chunk, _asked(self))[WARM:])


def _asked(run: Run) -> list[Request]:
    """Return WARM requests that are not judged, and then the setup's; each allows ALLOWED tokens, or what SRPT is
    told."""
    others = requests_of(run.setup, 0 if run.seed == CHOOSING else CHOOSING)[:WARM]
    requests = [
        *(replace(r, arrival_s=0.0) for r in others),
        *(replace(r, arrival_s=r.arrival_s + WARM_S) for r in requests_of(run.setup, run.seed)),
    ]
    if run.policy != TOLD:
        return [replace(r, max_tokens=max(ALLOWED, r.output_tokens)) for r in requests]
    normal = random.Random(run.seed)
    return [
        replace(r, max_tokens=int(r.output_tokens * (1 + abs(normal.gauss(0.0, ESTIMATE_SIGMA)))))
        for r in requests
    ]


def _simulated(run: Run) -> tuple[Run, Quality]:
    return run, run.quality()


def simulate_all(runs: Sequence[Run], what: str) -> dict[Run, Quality]:
    """Simulate on all cores."""
    found = ray_map(_simulated, runs, chunk=1)
    return dict(next(found) for _ in report.progress(runs, what))


Case = tuple[Setup, bool, str]
"""A setup, whether there is host memory, and a policy."""


def choose(cases: Iterable[Case]) -> dict[Case, tuple[str, int]]:
    """Return the batching of the highest QoS by case, on requests that are not judged."""
    runs = [
        Run(*case, CHOOSING, batching)
        for case in cases
        for batching in (BUFFERED if case[-1] == OURS else BATCHINGS)
    ]
    found = simulate_all(runs, "choosing the batching")
    best: dict[Case, Run] = {}
    for run in runs:
        case = run[:3]
        if case not in best or found[run].qos > found[best[case]].qos:
            best[case] = run
    return {case: run.batching for case, run in best.items()}


class Point(NamedTuple):
    """A policy in a setup, mean over the seeds: times in seconds, tokens/s."""

    ttft_s: float
    p99_s: float
    stall_s: float
    raw: float
    effective: float

    @classmethod
    def of(cls, qualities: Sequence[Quality]) -> Point:
        return cls(
            *(
                mean(getattr(q, name) for q in qualities)
                for name in (
                    "ttft_mean_s",
                    "ttft_p99_s",
                    "stall_mean_s",
                    "throughput",
                    "effective_throughput",
                )
            )
        )


def worse_in(ours: Point, theirs: Point) -> int:
    """Return in how many of mean TTFT, mean stall and tokens/s ours is worse by more than what counts as none."""
    return (
        (ours.ttft_s > (1 + SAME) * theirs.ttft_s)
        + (ours.stall_s > (1 + SAME) * theirs.stall_s + SAME_S)
        + (ours.raw < (1 - SAME) * theirs.raw)
    )


def p99_at(stall_s: float, rivals: Sequence[Point]) -> float:
    """Return the least P99 of TTFT that rivals have at a mean stall: that of one which stalls no more, or between two
    by linear interpolation; of the one with the least stall, if all stall more."""
    least = min(rivals, key=lambda p: (p.stall_s, p.p99_s))
    found = [p.p99_s for p in rivals if p.stall_s <= stall_s] or [least.p99_s]
    for a, b in combinations(sorted(rivals, key=lambda p: p.stall_s), 2):
        if a.stall_s <= stall_s < b.stall_s:
            share = (stall_s - a.stall_s) / (b.stall_s - a.stall_s)
            found.append(a.p99_s + share * (b.p99_s - a.p99_s))
    return min(found)


def least_p99_s(requests: Sequence[Request], tokens_per_s: float, prefill_s: float = 0.0) -> float:
    """Return a P99 of TTFT that no policy is below on a burst without stalls, with so many tokens/s at any time.

    u seconds after the P99 each reader, but for the hundredth part that begins later, has read what it can in u, and
    all that was read was decoded. prefill_s: what all prompts take.
    """
    begun = int(0.99 * (len(requests) - 1)) + 1  # of numpy's percentile

    def read(u: float) -> float:
        return sum(sorted(min(r.output_tokens, r.reader_rate * u) for r in requests)[:begun])

    longest_s = max(r.output_tokens / r.reader_rate for r in requests)
    return max(prefill_s, *(read(u) / tokens_per_s - u for u in np.linspace(0.0, longest_s, 100).tolist()))


def prompts_alone_s(setup: Setup, seed: int) -> float:
    """Return the P99 of TTFT of an engine that has nothing to do but the setup's prompts, the shortest first."""
    requests = requests_of(setup, seed)
    prompts = sorted(r.prompt_tokens for r in requests)
    alone = [
        replace(r, prompt_tokens=prompt, output_tokens=1, max_tokens=1)
        for r, prompt in zip(requests, prompts, strict=True)
    ]
    return min(
        assess(streams(setup, (FIRST_COME["FCFS"], batching, None), seed, chunk, alone)).ttft_p99_s
        for batching, chunk in BATCHINGS
    )


def figures_of(
    world: str, found: dict[Setup, dict[str, Point]], least: dict[Setup, float]
) -> dict[str, float]:
    """Return the figures of all setups with, or without, host memory. least: the bound of every burst's P99, s."""
    worse, bursts, raw, over = 0, [], [], []
    for setup, points in found.items():
        ours = points[OURS]
        rivals = {name: point for name, point in points.items() if name != OURS}
        worse += sum(worse_in(ours, rivals[name]) >= 2 for name in FIRST_COME)
        raw.append(ours.raw / max(p.raw for p in rivals.values()))
        if setup.is_burst:
            theirs = p99_at(ours.stall_s, list(rivals.values()))
            bursts.append(ours.p99_s / theirs)
            over.append((ours.p99_s / least[setup], theirs / least[setup]))
    values: dict[str, float] = {f"{world}_worse_in_two": worse, f"{world}_raw_over_best": min(raw)}
    if bursts:
        values[f"{world}_p99_over_best_equal_stall"] = max(bursts)
        values[f"{world}_p99_over_best_equal_stall_median"] = median(bursts)
        values[f"{world}_p99_over_least"] = max(ours for ours, _ in over)
        values[f"{world}_rivals_p99_over_least"] = min(theirs for _, theirs in over)
    return values


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("tokenflow_frontier", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each setup (default 5)")
    parser.add_argument("--only", default="", help="setups whose name has this in it")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file of the frontiers")
    options = parser.parse_args(arguments)
    setups = [
        s
        for s in SETUPS
        if options.only in s.name and (not s.trace or (DATA / "azure_llm_2023" / s.trace).exists())
    ]
    batchings = choose(product(setups, (True, False), POLICIES))
    runs = [
        Run(*case, seed, batching)
        for case, batching in batchings.items()
        for seed in range(1 if case[0].trace else options.seeds)
    ]
    qualities: dict[Case, list[Quality]] = {}
    for run, quality in simulate_all(runs, "simulations").items():
        qualities.setdefault(run[:3], []).append(quality)
    figures: dict[str, float] = {}
    for host, world in ((True, "host"), (False, "no_host")):
        found = {s: {name: Point.of(qualities[s, host, name]) for name in POLICIES} for s in setups}
        least = {s: _least(s, found[s], options.seeds) for s in setups if s.is_burst}
        for setup in setups:
            bound = [["no stall: least", "", "", f"{least[setup]:.4g}", "0"]] if setup in least else []
            report.table(
                f"{setup.name}, {'with' if host else 'without'} host memory (simulated)",
                ["", "batching", "TTFT s", "P99 s", "stall s", "tokens/s", "effective"],
                [
                    [name, _spelt(batchings[setup, host, name]), *_row(qualities[setup, host, name])]
                    for name in POLICIES
                ]
                + bound,
            )
        figures |= figures_of(world, found, least)
        if options.plot:
            _draw(found, options.plot.with_stem(f"{options.plot.stem}-{world}"))
    report.figures("tokenflow_frontier", {name: round(value, 4) for name, value in figures.items()})


def _least(setup: Setup, points: dict[str, Point], seeds: int) -> float:
    """Return the bound of the P99 of TTFT at the tokens/s of the best, mean over the seeds."""
    most = max(point.raw for point in points.values())
    return mean(
        least_p99_s(requests_of(setup, seed), most, prompts_alone_s(setup, seed)) for seed in range(seeds)
    )


def _spelt(batching: tuple[str, int]) -> str:
    return "whole" if batching == WHOLE else f"chunks of {batching[1]}"


def _row(qualities: Sequence[Quality]) -> list[str]:
    """Means with the range over the seeds."""
    names = ("ttft_mean_s", "ttft_p99_s", "stall_mean_s", "throughput", "effective_throughput")
    cells = []
    for name in names:
        values = [getattr(q, name) for q in qualities]
        cells.append(f"{mean(values):.4g} [{min(values):.4g} … {max(values):.4g}]")
    return cells


def _draw(found: dict[Setup, dict[str, Point]], file: Path) -> None:
    """Draw mean stall over mean TTFT, a panel a setup and a mark a policy, whose size is its tokens/s."""
    columns = min(3, len(found))
    figure, panels = canvas(-(-len(found) // columns), columns)
    for axes, (setup, points) in zip(panels, found.items(), strict=False):
        most = max(p.raw for p in points.values())
        for name, point in points.items():
            marker = "*" if name == OURS else "o"
            axes.scatter(point.ttft_s, point.stall_s, s=120 * point.raw / most, marker=marker, label=name)
        axes.set(title=setup.name, xlabel="mean TTFT, s", ylabel="mean stall, s", yscale="symlog")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, title="area: tokens/s")
    figure.savefig(file)
