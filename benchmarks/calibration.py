"""The simulator against reality: the same requests live on this machine and simulated.

    python -m benchmarks.calibration [--requests 200] [--grow 4]

Live: a target (the embedded one, grown), and emulated devices that draft behind emulated links, in processes
of their own, driven by the executor over the wire. Before and after every case the live deployment is profiled while
it answers requests that come ever faster: the engine's own step times, regressed on what was in the steps, and what a
round takes beside steps and drafting (a shared machine is now faster, now slower; both profiles are taken together).
Then the same
arrivals and lengths, with the acceptance that the live token logs show, go through the simulator. Three
loads, two RTTs, modes cloud, speculative and race; errors are relative, the mean over the six cases of a mode. Races
are decided by policies that learn; each world learns for itself.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from statistics import mean

import msgspec
import numpy as np

from benchmarks import report
from benchmarks.calibration_live import (
    DEVICES,
    MAX_TOKENS,
    PROFILE,
    RACING,
    WINDOW,
    Costs,
    Live,
    Seen,
    profile,
)
from benchmarks.processes import engine_process
from cluster.remote import connect
from cluster.simulator.analysis import Result
from cluster.simulator.config import parse
from cluster.simulator.hardware import MeasuredTimer
from cluster.simulator.run import simulate
from deployments.engines import TorchSettings
from engine import family
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer

MODES = ("cloud", "speculative", "race")
RTTS_S = (0.010, 0.030)
LOADS = (0.25, 0.5, 0.8)  # share of what the pool can do at most, see `capacity`


def simulated(mode: str, rtt_s: float, seen: list[Seen], costs: Costs) -> Result:
    """The same requests in the simulator. The wire's own time is added to the link's."""
    config = parse(
        {
            "name": f"{mode} {rtt_s * 1e3:.0f} ms",
            "mode": mode,
            "reader": "cloud",
            "workload": {"count": len(seen)},  # the live run's own take its place
            "policies": {
                "batching": {"name": "chunked"},
                "window": {"name": "static", "parameters": {"size": WINDOW}},
                "dispatch": {"name": RACING.dispatch.name},
                "migration": {"name": RACING.migration.name},
            },
            "race": {
                "price_in": RACING.price_in,
                "price_out": RACING.price_out,
                "budget": RACING.budget,
                "exchange_rate": RACING.exchange_rate,
            },
            "targets": [
                {
                    "model": "target",
                    "measured": msgspec.to_builtins(costs.timer),
                    "max_sessions": 64,
                    "token_budget": 512,
                    "first_apart": True,
                    "call_s": costs.call_s,
                }
            ],
            "drafters": [
                {
                    "count": DEVICES,
                    "sessions": PROFILE.sessions,
                    "rates": {
                        "prefill_tokens_per_s": PROFILE.prefill_tokens_per_s,
                        "decode_tokens_per_s": PROFILE.decode_tokens_per_s,
                    },
                    "link": {"rtt_ms": (rtt_s + costs.call_s + costs.draft_s) * 1e3},
                }
            ],
        }
    )
    return simulate(config, requests=[one.request for one in seen])


Figures = dict[str, float]


def _live_figures(seen: list[Seen]) -> Figures:
    ttft = [one.first_s - one.arrival_s for one in seen]
    tpot = [(one.last_s - one.first_s) / (len(one.origins) - 1) for one in seen if len(one.origins) > 1]
    span_s = max(one.last_s for one in seen) - seen[0].arrival_s
    return _figures(ttft, tpot, sum(len(one.origins) for one in seen) / span_s)


def _simulated_figures(result: Result) -> Figures:
    summary = result.summary()
    frame = [
        (log.first_s - log.arrival_s, (log.last_s - log.first_s) / (log.tokens - 1)) for log in result.logs
    ]
    return _figures([a for a, _ in frame], [b for _, b in frame], summary["tokens_per_s"])


def _figures(ttft: list[float], tpot: list[float], throughput: float) -> Figures:
    return {
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "tpot_p50": float(np.percentile(tpot, 50)),
        "tpot_p99": float(np.percentile(tpot, 99)),
        "throughput": throughput,
    }


async def calibrate(
    requests: int, grow: int, seed: int, modes: list[str]
) -> dict[str, list[tuple[str, Figures, Figures]]]:
    """By mode: (case, live figures, simulated figures)."""
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(requests, seed=3)
    ]
    target = TorchSettings(model="target", grow=grow, threads=1)
    drafter = TorchSettings(model="small", threads=1)
    outcome: dict[str, list[tuple[str, Figures, Figures]]] = {mode: [] for mode in modes}
    with engine_process(target) as target_at, engine_process(drafter, DEVICES, PROFILE) as drafter_at:
        target_wire, drafter_wire = await connect(target_at), await connect(drafter_at)

        def fresh() -> Live:
            return Live(target_wire, drafter_wire, prompts)

        await fresh().run("speculative", 0.01, [0.0] * 8)  # warms up
        for mode in outcome:
            before = await profile(fresh(), mode, RTTS_S[0])
            top = capacity(before.costs().timer, mode)
            profiles = [before]
            cases = [(rtt_s, load) for rtt_s in RTTS_S for load in LOADS]
            for rtt_s, load in report.progress(cases, f"{mode}: live, then simulated"):
                rate = load * top
                gaps = np.random.default_rng([seed, round(rtt_s * 1e3), round(load * 100)]).exponential(
                    1 / rate, requests
                )
                seen = await fresh().run(mode, rtt_s, np.cumsum(gaps).tolist())
                after = await profile(fresh(), mode, rtt_s)
                result = simulated(mode, rtt_s, seen, (before + after).costs())
                before = after
                profiles.append(after)
                name = f"{mode}, {rtt_s * 1e3:.0f} ms, {rate:.1f} requests/s"
                outcome[mode].append((name, _live_figures(seen), _simulated_figures(result)))
            report.table(
                f"Profiles of the live deployment, mode {mode}",
                ["", "ms"],
                [
                    [name, report.spread([1e3 * value(one.costs()) for one in profiles])]
                    for name, value in PROFILED.items()
                ],
            )
        await target_wire.close()
        await drafter_wire.close()
    return outcome


PROFILED: dict[str, Callable[[Costs], float]] = {
    "a step": lambda costs: costs.timer.base_s,
    "… and a position": lambda costs: costs.timer.token_s,
    "… and a sequence": lambda costs: costs.timer.sequence_s,
    "a call of the target beside steps": lambda costs: costs.call_s,
    "a draft beside device and link": lambda costs: costs.draft_s,
}


def capacity(timer: MeasuredTimer, mode: str) -> float:
    """Requests/s of one target that always works on eight sessions at a time."""
    positions = WINDOW + 1 if mode == "speculative" else 1
    tokens = 3.5 if mode == "speculative" else 1.0  # a round, roughly
    return 8 * tokens / timer.step_s(8 * positions, 8, 8 * 100) / MAX_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200, help="of each case (default 200)")
    parser.add_argument("--grow", type=int, default=4, help="how many times dearer the target is")
    parser.add_argument("--seed", type=int, default=11, help="of the arrivals")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = parser.parse_args()
    outcome = asyncio.run(calibrate(options.requests, options.grow, options.seed, options.modes))
    figures: dict[str, float] = {}
    rows: list[list[str]] = []
    for mode, cases in outcome.items():
        for name, live, simulation in cases:
            rows.append([name, *(_pair(key, live[key], simulation[key]) for key in live)])
        for key in cases[0][1]:
            error = mean(abs(simulation[key] / live[key] - 1) for _, live, simulation in cases)
            figures[f"{mode}_{key}_error"] = round(error, 4)
    report.table(
        f"Live → simulated, {options.requests} requests a case (devices and links emulated)",
        ["", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "tokens/s"],
        rows,
    )
    report.figures("calibration", figures)


def _pair(key: str, live: float, simulation: float) -> str:
    scale, digits = (1.0, 0) if key == "throughput" else (1e3, 1)
    return f"{live * scale:.{digits}f} → {simulation * scale:.{digits}f}"


if __name__ == "__main__":
    main()
