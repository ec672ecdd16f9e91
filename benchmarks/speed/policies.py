"""Cost of a decision: routing, batching, window, scheduling and dispatch policies.

    tandem benchmark policies [--rounds 7]

Microseconds per decision, one after the other in one process; of each family the slowest policy counts.
Routing: 20 replicas; batching: 16 sequences of all kinds; scheduling: 400 requests of which 64 may run.
assign_ms_10000: CPU milliseconds of the router's whole decision where 10,000 devices are registered, in the mode and
with the wish for a device (none, any, by name, one of several) that take longest. auto_ms_10000: of policy `auto`,
which compares the ways to answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.disco import planning
from tandem.benchmarks.speed.assign import router_costs
from tandem.policies.race.dispatch import Side
from tandem.policies.routing.replica import ReplicaView, routing
from tandem.policies.scheduling import EngineLoad, scheduling
from tandem.policies.scheduling.batching import Demand, batching
from tandem.policies.speculation.window import WindowState, window

CALLS = 2000
DEVICES = (100, 1_000, 10_000)
UPKEEP = {
    "report": "what an answer has taught",
    "snapshot": "a whole snapshot",
    "changes": "a second in which every tenth device changes",
    "register": "a second's signs of life, at the scheduler",
}


def _us(decide: Callable[[int], object], rounds: int, calls: int = CALLS) -> list[float]:
    """Microseconds a call, one figure a round."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for i in range(calls):
            decide(i)
        times.append((time.perf_counter() - began) / calls * 1e6)
    return times


def _load(seed: int, count: int = 400) -> EngineLoad:
    """Requests of which some run, most have begun and some wait."""
    draw = np.random.default_rng(seed)
    received = draw.integers(1, 300, count) * (draw.random(count) < 0.8)
    running = draw.random(count) < 0.16
    missing = np.where(running, 0, draw.integers(0, 500, count))
    return EngineLoad(
        arrival=draw.permutation(count),
        age_s=draw.uniform(0, 30, count),
        received=received,
        rate=draw.choice([5.0, 10.0, 20.0], count),
        buffer=draw.uniform(0, 60, count) * (received > 0),
        running=running,
        tokens=draw.integers(50, 900, count),
        longest=received + draw.integers(1, 300, count),
        missing=missing,
        stored=missing // 2,
        capacity=32_000,
        places=64,
        interval_s=0.2,
        base_s=0.004,
        token_s=1e-5,
        copy_s=1e-6,
    )


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("policies", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    draw = random.Random(5)
    pools = [[ReplicaView(draw.randrange(60)) for _ in range(20)] for _ in range(64)]
    demands = [
        [
            Demand(window + draw.choice((0, 0, 0, 200)), window, draw.randrange(1000), draw.randrange(900))
            for window in (draw.choice((1, 5, 9)) for _ in range(16))
        ]
        for _ in range(64)
    ]
    states = [
        WindowState(
            acceptance=draw.random(),
            rtt_s=draw.uniform(0.001, 0.1),
            tpot_s=draw.uniform(0.005, 0.1),
            queue=draw.uniform(0.0, 2.0),
            previous=draw.randrange(1, 13),
            verify_s=draw.uniform(0.01, 0.2),
            draft_s=draw.uniform(0.001, 0.03),
            fused_s=draw.uniform(0.01, 0.1),
            alpha=draw.random(),
            judged=draw.randrange(1, 90),
            prior=draw.random(),
            verify_least_s=draw.uniform(0.01, 0.2),
            fused_least_s=draw.uniform(0.01, 0.1),
            fused_share=draw.random(),
            mean_window=draw.uniform(2.0, 12.0),
        )
        for _ in range(64)
    ]
    loads = [_load(seed) for seed in range(16)]
    families: dict[str, dict[str, list[float]]] = {
        "routing": {},
        "batching": {},
        "window": {},
        "scheduling": {},
    }
    for name in report.progress([*routing, *batching, *window, *scheduling], "policies"):
        if name in list(routing):
            route = routing.create(name)
            families["routing"][name] = _us(lambda i, r=route: r.choose(pools[i % 64]), options.rounds)  # type: ignore[misc]
        elif name in list(batching):
            form = batching.create(name)
            families["batching"][name] = _us(lambda i, f=form: f.form(demands[i % 64], 512), options.rounds)  # type: ignore[misc]
        elif name in list(scheduling):
            who = scheduling.create(name)
            families["scheduling"][name] = _us(
                lambda i, w=who: w.choose(loads[i % 16]),  # type: ignore[misc]
                options.rounds,
                CALLS // 4,
            )
        else:
            size = window.create(name)
            families["window"][name] = _us(lambda i, s=size: s.choose(states[i % 64]), options.rounds)  # type: ignore[misc]
    report.table(
        "Microseconds a decision (median [min … max])",
        ["family", "policy", "µs"],
        [
            [family, name, report.spread(us)]
            for family, found in families.items()
            for name, us in found.items()
        ],
    )
    planned = {side: planning.planning_ms(side, 5 * options.rounds) for side in Side}
    update, decision = planning.update_us(options.rounds), planning.dispatch_us(options.rounds)
    report.table(
        "DiSCo: milliseconds from so many samples to a decision (median [min … max])",
        ["constrained", *(f"{size:,}" for size in planning.SIZES), "the paper (M1)"],
        [
            [str(side), *map(report.spread, planned[side]), " / ".join(map(str, planning.PAPER_MS[side]))]
            for side in Side
        ],
    )
    routers = {count: router_costs(count) for count in report.progress(DEVICES, "assignments")}
    report.table(
        "The router, CPU milliseconds by how many devices are registered",
        ["", *(f"{count:,}" for count in DEVICES)],
        [
            *(
                [f"assignment: {what}", *(f"{costs.assign[what]:.3f}" for costs in routers.values())]
                for what in routers[DEVICES[0]].assign
            ),
            ["assignment: policy auto", *(f"{costs.auto:.3f}" for costs in routers.values())],
            *(
                [what, *(f"{getattr(costs, name):.3f}" for costs in routers.values())]
                for name, what in UPKEEP.items()
            ),
        ],
    )
    worst = {f: max(median(us) for n, us in found.items() if n != "awc") for f, found in families.items()}
    report.figures(
        "policies",
        {
            "routing_us": round(worst["routing"], 2),
            "batching_us": round(worst["batching"], 2),
            "window_us": round(worst["window"], 2),
            "awc_us": round(median(families["window"]["awc"]), 2),
            "buffer_aware_ms_400": round(median(families["scheduling"]["buffer_aware"]) / 1e3, 4),
            "disco_s_ms": [round(median(ms), 3) for ms in planned[Side.SERVER]],
            "disco_d_ms": [round(median(ms), 3) for ms in planned[Side.DEVICE]],
            "disco_update_us": round(median(update), 2),
            "disco_dispatch_us": round(median(decision), 2),
            "assign_ms_10000": round(max(routers[10_000].assign.values()), 4),
            "auto_ms_10000": round(routers[10_000].auto, 4),
        },
    )
