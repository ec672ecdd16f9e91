"""What a decision costs: routing, batching and window policies.

    python -m benchmarks.policies [--rounds 7]

Microseconds per decision, one after the other in one process; of each family the slowest policy counts.
Routing: 20 replicas; batching: 16 sequences of all kinds.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from statistics import median

from benchmarks import report
from policies.batching import Demand, batching
from policies.routing import routing
from policies.window import WindowState, window

CALLS = 2000


def _us(decide: Callable[[int], object], rounds: int) -> list[float]:
    """Microseconds a call, one figure a round."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for i in range(CALLS):
            decide(i)
        times.append((time.perf_counter() - began) / CALLS * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    draw = random.Random(5)
    depths = [[draw.randrange(60) for _ in range(20)] for _ in range(64)]
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
            queue=draw.random(),
            previous=draw.randrange(1, 13),
            verify_s=draw.uniform(0.01, 0.2),
            draft_s=draw.uniform(0.001, 0.03),
            fused_s=draw.uniform(0.01, 0.1),
            alpha=draw.random(),
            judged=draw.randrange(1, 90),
        )
        for _ in range(64)
    ]
    families: dict[str, dict[str, list[float]]] = {"routing": {}, "batching": {}, "window": {}}
    for name in report.progress([*routing, *batching, *window], "policies"):
        if name in list(routing):
            route = routing.create(name)
            families["routing"][name] = _us(lambda i, r=route: r.choose(depths[i % 64]), options.rounds)  # type: ignore[misc]
        elif name in list(batching):
            form = batching.create(name)
            families["batching"][name] = _us(lambda i, f=form: f.form(demands[i % 64], 512), options.rounds)  # type: ignore[misc]
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
    worst = {f: max(median(us) for n, us in found.items() if n != "awc") for f, found in families.items()}
    report.figures(
        "policies",
        {
            "routing_us": round(worst["routing"], 2),
            "batching_us": round(worst["batching"], 2),
            "window_us": round(worst["window"], 2),
            "awc_us": round(median(families["window"]["awc"]), 2),
        },
    )


if __name__ == "__main__":
    main()
