"""Autoscaled pools over days with a trough: replica-seconds at equal times to first token and equal stalls, simulated.

    tandem benchmark autoscaling [--seeds 5] [--choosing 2] [--only NAME] [--plot FILE]

Four compressed days (see `days`) at verifiers with Llama-3-70B on four A100s each, which take 30 s to start. They are
simulated as queues (see `queueing`), with the simulator's step times and its pool; the policies are the live ones.

Rivals: Ray Serve's own policy, KEDA's queue scaling, fixed pools, and an oracle that knows every request ahead. Each
has a grid of settings, and so has ours (`forecast`). Trace by trace, those that no other of the same policy beats in
replica-seconds, P99 of TTFT and mean stall on some days are its frontier, which is judged on others; rivals' settings
that take far more than our dearest are left out. All have the same bounds, but Serve's and KEDA's least number of
replicas is among their settings. Ours is told how long a day is and what arrived on three
earlier ones, as the counters of its replicas would have shown, and sees itself how long starts take. The others look
back a few minutes at most; the oracle is told everything.

<trace>_replica_seconds_over_RIVAL_at_equal_p99, …_stall: our replica-seconds over the rival's frontier at the same P99
    of TTFT, or mean stall; the geometric mean over our settings whose quality lies between the
    rival's best and worst; then the mean over the seeds. …_error: half its 95 % interval. serve_best is Serve's policy.
traces_with_20_percent_fewer: in so many of them ours has at least 20 % fewer than Serve's at equal P99.
most_over_serve_best, most_over_oracle: the worst trace, at equal P99.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.autoscaling import days
from tandem.benchmarks.autoscaling.queueing import simulate
from tandem.benchmarks.autoscaling.rivals import Oracle, QueueScaling
from tandem.benchmarks.intervals import Interval
from tandem.policies.autoscaling import (
    Autoscaler,
    AutoscalingPolicy,
    Bounds,
    PoolState,
    ReplicaState,
    autoscaling,
)
from tandem.simulator.config.servers import TargetGroup
from tandem.simulator.results.plot import canvas
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import Request

GROUP: dict[str, Any] = {
    "hardware": "4xA100",
    "model": "Llama-3-70B",
    "engine": {"batching": {"name": "buffered"}},
    "start_s": 30.0,
    "drain_s": 60.0,
}
MOST = 32
FIRST = {"week": 3, "burstgpt": 3, "code": 8, "office": 3}  # replicas when a simulation begins
FLOORS = {"week": (1, 3), "burstgpt": (1, 3), "code": (1, 6), "office": (1, 4)}
SIZES = {"week": range(2, 8), "burstgpt": range(2, 8), "code": range(4, 17, 2), "office": range(4, 15, 2)}
CHOOSING = 101  # the first seed that settings are chosen on
JUDGED = 1000  # the first seed that is judged: policies were made, and grids set, with seeds below
BAD_S = 15.0  # a P99 of TTFT beyond which nobody cares how few replicas it took
MOST_POINTS = 8  # of a frontier
DEAR = 1.5  # times our dearest setting, rivals' are too far away to be compared

OURS = "forecast"
NAMES = {
    OURS: "Tandem",
    "serve_best": "Serve's policy",
    "keda": "KEDA-like queue scaling",
    "fixed": "fixed pool",
    "oracle": "oracle",
}
RIVALS = [name for name in NAMES if name != OURS]
COLUMNS = ("", "settings", "replica-s", "P99 TTFT s", "stall s")


class Setting(NamedTuple):
    """A policy's settings.

    least: number of replicas; of a fixed pool, all of them.
    up_s, down_s: delays before there are more, or fewer.
    """

    kind: str
    least: int = 1
    up_s: float = 0.0
    down_s: float = 0.0
    parameters: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        if self.kind == "fixed":
            return f"{self.least} replicas"
        said = [f"{name} {value}" for name, value in self.parameters]
        said += [f"at least {self.least}"] if self.least > 1 else []
        return ", ".join([*said, f"delays {self.up_s:g} / {self.down_s:g} s"])


def grid(trace: str) -> list[Setting]:
    """Return all settings that are tried."""

    def some(kind: str, least: int = 1, up_s: float = 0.0, down_s: float = 0.0, **parameters: Any) -> Setting:
        return Setting(kind, least, up_s, down_s, tuple(parameters.items()))

    floors = FLOORS[trace]
    return [
        *(some("fixed", least=count) for count in SIZES[trace]),
        *(
            some("serve_best", least, up_s, down_s, target=target, look_back_s=look_back_s)
            for target, (look_back_s, up_s, down_s), least in itertools.product(
                (4, 8, 13, 20, 30, 45, 70), ((10.0, 0, 30), (30.0, 30, 600), (30.0, 0, 150)), floors
            )
        ),
        *(
            some("keda", least, target=target, metric=metric, stable_s=stable_s)
            for (metric, target), stable_s, least in itertools.product(
                [("waiting", 1000), ("waiting", 4000), ("running", 8), ("running", 16), ("running", 32)],
                (60.0, 300.0),
                floors,
            )
        ),
        *(
            some("oracle", load=load, window_s=window_s, hold_s=15.0)
            for load, window_s in itertools.product((0.5, 0.7, 0.9, 1.2), (5.0, 15.0, 40.0))
        ),
        *(
            some(OURS, down_s=5.0, load=load, cover=cover, sample_s=sample_s)
            for load, cover, sample_s in itertools.product((0.7, 1.0), (0.7, 0.9, 0.97), (10.0, 30.0))
        ),
    ]


class Run(NamedTuple):
    """One simulation."""

    trace: str
    seed: int
    setting: Setting


class Point(NamedTuple):
    """Costs and results of a simulation. Seconds: of replicas, P99 of TTFT, mean stall of readers."""

    replica_s: float
    p99_s: float
    stall_s: float


def run(one: Run) -> tuple[Run, Point]:
    """Simulate."""
    setting = one.setting
    before, requests = days.requests(one.trace, one.seed)
    if setting.kind == "fixed":
        group, autoscaler = TargetGroup(**GROUP, count=setting.least), None
    else:
        bounds = {"min_replicas": setting.least, "max_replicas": MOST}
        group = TargetGroup(**GROUP, count=FIRST[one.trace], autoscaling=bounds)
        policy = _policy(setting, group, before, requests)
        autoscaler = Autoscaler(policy, Bounds(setting.least, MOST, setting.up_s, setting.down_s))
    outcome = simulate(requests, group, days.SPAN_S, days.WARM_S, autoscaler)
    return one, Point(outcome.replica_s, outcome.p99_s, outcome.stall_mean_s)


def _policy(
    setting: Setting, group: TargetGroup, before: Sequence[Request], requests: Sequence[Request]
) -> AutoscalingPolicy:
    parameters = dict(setting.parameters)
    if setting.kind == "serve_best":
        return autoscaling.create("ongoing_requests", **parameters)
    if setting.kind == "keda":
        return QueueScaling(**parameters)
    timer = group.timer(None)
    token_s = timer.step_s(2048, 0, 0, [(2048, 0)]) / 2048
    if setting.kind == "oracle":
        decode_s = timer.step_s(64, 64, 64 * 1200) / 64
        return Oracle(requests, token_s, decode_s, group.start_s, **parameters)
    policy = autoscaling.create(OURS, season_s=days.DAY_S, start_s=group.start_s, **parameters)
    remember(policy, before, timer.step_s(1, 1, 1000), token_s)
    return policy


def remember(policy: AutoscalingPolicy, before: Sequence[Request], base_s: float, token_s: float) -> None:
    """Show a policy earlier days' arrivals, second by second, as a large replica's counters. base_s, token_s: its step
    times."""
    coming = iter(before)
    request = next(coming, None)
    prefilled = generated = 0.0
    for second in range(math.floor(before[0].arrival_s), 0):
        while request is not None and request.arrival_s < second + 1:
            prefilled, generated = prefilled + request.prompt_tokens, generated + request.output_tokens
            request = next(coming, None)
        state = ReplicaState(
            "before",
            sessions=1,
            kv_capacity=1e6,
            places=256,
            prefilled=prefilled,
            generated=generated,
            base_s=base_s,
            token_s=token_s,
        )
        policy.desired(PoolState(float(second), 1, (state,)))


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return those of (quality, cost) that no other beats in both, from the best quality on."""
    best: list[tuple[float, float]] = []
    for quality, cost in sorted(points):
        if not best or cost < best[-1][1]:
            best.append((quality, cost))
    return best


def cost_at(quality: float, points: Sequence[tuple[float, float]]) -> float:
    """Return the cost of the frontier at a quality, between two points by linear interpolation over the quality's
    logarithm. Beyond its ends, that of the end: a frontier that never gets as good counts with the best it has."""
    best = frontier(points)
    return float(np.interp(_log(quality), [_log(q) for q, _ in best], [cost for _, cost in best]))


def _log(quality: float) -> float:
    return math.log(max(quality, 1e-2))  # seconds; less is none


def over(ours: Sequence[Point], theirs: Sequence[Point], by: str) -> float:
    """Return our replica-seconds over theirs at equal quality: the geometric mean over our settings whose quality lies
    between their best and their worst; over all, if none does. by: the quality, `p99_s` or `stall_s`."""
    rival = frontier([(getattr(p, by), p.replica_s) for p in theirs])
    between = [p for p in ours if rival[0][0] <= getattr(p, by) <= rival[-1][0]]
    logs = [math.log(p.replica_s / cost_at(getattr(p, by), rival)) for p in between or ours]
    return math.exp(sum(logs) / len(logs))


def choose(tried: Mapping[Setting, Sequence[Point]], dear_s: float = math.inf) -> list[Setting]:
    """Return the settings of one policy's frontier, of P99s that are not bad, evenly from its one end to the other.
    dear_s: replica-seconds beyond which a setting is not looked at, if there is another."""
    means = {setting: Point(*np.mean(points, axis=0)) for setting, points in tried.items()}
    kept = [s for s, p in means.items() if p.p99_s <= BAD_S] or [min(means, key=lambda s: means[s].p99_s)]
    kept = [s for s in kept if not any(_beats(means[other], means[s]) for other in kept)]
    kept.sort(key=lambda s: means[s].replica_s)
    kept = [s for s in kept if means[s].replica_s <= dear_s] or kept[:1]
    # evenly in the logarithm of replica-seconds: nowhere is one frontier much coarser than another
    wished = np.geomspace(means[kept[0]].replica_s, means[kept[-1]].replica_s, MOST_POINTS)
    nearest = (min(kept, key=lambda s: abs(math.log(means[s].replica_s / cost))) for cost in wished)
    return list(dict.fromkeys(nearest))


def _beats(one: Point, other: Point) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def main(arguments: Sequence[str] = ()) -> None:
    """The command."""
    parser = report.parser("autoscaling", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="days that are judged (%(default)s)")
    parser.add_argument(
        "--choosing", type=int, default=2, help="days that settings are chosen on (%(default)s)"
    )
    parser.add_argument("--only", choices=days.NAMES, help="one trace")
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file of the frontiers")
    options = parser.parse_args(arguments)
    judged = range(JUDGED, JUDGED + options.seeds)
    traces = [options.only] if options.only else list(days.NAMES)
    choosing = range(CHOOSING, CHOOSING + options.choosing)
    tried = _all([Run(*key) for trace in traces for key in itertools.product([trace], choosing, grid(trace))])
    chosen: dict[tuple[str, str], list[Setting]] = {}
    for trace, kind in itertools.product(traces, NAMES):  # ours first
        points = {s: [tried[Run(trace, seed, s)] for seed in choosing] for s in grid(trace) if s.kind == kind}
        ours = chosen.get((trace, OURS), [])
        dearest_s = max(
            (np.mean([tried[Run(trace, q, s)].replica_s for q in choosing]) for s in ours), default=math.inf
        )
        chosen[trace, kind] = choose(points, DEAR * float(dearest_s))
    found = _all(
        [Run(key[0], seed, s) for key, settings in chosen.items() for s in settings for seed in judged]
    )
    figures: dict[str, float] = {}
    for trace in traces:
        kinds = {kind: chosen[trace, kind] for kind in NAMES}
        _tell(trace, kinds, found, judged)
        our_points = [[found[Run(trace, seed, s)] for s in kinds[OURS]] for seed in judged]
        for rival, by in itertools.product(RIVALS, ("p99", "stall")):
            theirs = [[found[Run(trace, seed, s)] for s in kinds[rival]] for seed in judged]
            ratios = [over(o, r, f"{by}_s") for o, r in zip(our_points, theirs, strict=True)]
            name = f"{trace}_replica_seconds_over_{rival}_at_equal_{by}"
            mean, half = Interval.of(ratios)
            figures[name] = round(mean, 4)
            if len(judged) > 1:
                figures[f"{name}_error"] = round(half, 4)
    if options.plot:
        _draw(chosen, found, traces, judged, options.plot)
    report.figures("autoscaling", figures | _bars(figures, traces))


def _bars(figures: Mapping[str, Any], traces: Sequence[str]) -> dict[str, float]:
    over_serve = [figures[f"{trace}_replica_seconds_over_serve_best_at_equal_p99"] for trace in traces]
    over_oracle = [figures[f"{trace}_replica_seconds_over_oracle_at_equal_p99"] for trace in traces]
    return {
        "traces_with_20_percent_fewer": float(sum(ratio <= 0.8 for ratio in over_serve)),
        "most_over_serve_best": max(over_serve),
        "most_over_oracle": max(over_oracle),
    }


def _all(runs: Sequence[Run]) -> dict[Run, Point]:
    """Simulate on all cores."""
    found = ray_map(run, runs, chunk=1)
    return dict(next(found) for _ in report.progress(runs, f"{len(runs)} simulations"))


def _tell(
    trace: str, kinds: Mapping[str, Sequence[Setting]], found: Mapping[Run, Point], judged: Sequence[int]
) -> None:
    rows = []
    for kind, settings in kinds.items():
        for setting in settings:
            points = [found[Run(trace, seed, setting)] for seed in judged]
            cells = [report.spread([p[i] for p in points]) for i in range(3)]
            rows.append((NAMES[kind], str(setting), *cells))
    report.table(f"{trace}: {len(judged)} days (simulated; {days.source(trace)})", COLUMNS, rows)


def _draw(
    chosen: Mapping[tuple[str, str], Sequence[Setting]],
    found: Mapping[Run, Point],
    traces: Sequence[str],
    judged: Sequence[int],
    file: Path,
) -> None:
    """Draw replica-seconds over P99 of TTFT, means over the seeds, a panel a trace and a line a policy."""
    figure, panels = canvas(-(-len(traces) // 2), min(2, len(traces)))
    for axes, trace in zip(panels, traces, strict=False):
        for kind, name in NAMES.items():
            points = [
                np.mean([found[Run(trace, seed, s)] for seed in judged], axis=0) for s in chosen[trace, kind]
            ]
            points.sort(key=lambda p: float(p[1]))
            marker = "*" if kind == OURS else "o"
            axes.plot([p[1] for p in points], [p[0] for p in points], marker=marker, label=name)
        axes.set(title=trace, xlabel="P99 TTFT, s (simulated)", ylabel="replica-seconds", xscale="log")
        axes.set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.savefig(file)


if __name__ == "__main__":
    main()
