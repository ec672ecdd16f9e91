"""Acceptances of real models on the tables of real GPUs: speculation over 20 ms beside the cloud alone, by load.

    tandem benchmark real_gpu [--recorded FILE] [--answers 120]

In virtual time. Recorded (`real_record`): which tokens of Qwen2.5-Coder 1.5B its 0.5B would have drafted
on HumanEval (code) and on SpecBench and Vicuna's questions (chat), and the lengths of prompts and answers. Emulated:
that larger targets, whose step times the tables have, and a drafter with the 0.5B's times on a desktop GPU accept and
write the same. Every device is 20 ms away; requests arrive independently. The window policy is chosen on other prompts
and other arrivals than it is judged by. Tandem's own recordings are of fifteen prompts a set.

code_gpu_x: speed over the cloud's (mean seconds of an answer) on code at low load, worst of the targets; chat_gpu_x: on
chat; worst_gpu_x: on either at any load. *_TARGET: of one target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.paths import NO_DATA
from tandem.benchmarks.real.recording import Recorded, read
from tandem.simulator.config.config import parse
from tandem.simulator.hardware import data_folder
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tandem.simulator.workload.request import unpack

TARGETS = {
    "4xA100": "Qwen-72B",
    "4xH100": "Qwen-72B",
    "A100": "CodeLlama-34B",
    "H100": "Llama-3.1-8B",
}
"""Model by GPUs; all have tables of their own."""
DEVICE = {"hardware": "RTX4090", "model": "Qwen2.5-0.5B", "link": {"rtt_ms": 20}}
DEVICES = 16
SETS = {"HumanEval": "code", "SpecBench": "chat", "Vicuna": "chat"}
LOW = 0.02
LOADS = (LOW, 0.3, 0.8)
"""Requests that arrive in the time of an idle target's answer, as a share of PLACES."""
PLACES = 12
WARM_UP = 2 * DEVICES
"""Answers before those that count: a device's first ones teach its window policy."""
FAR_S = 1000.0  # apart, so that a request finds the target idle
WINDOWS: dict[str, dict[str, Any]] = {
    "gain": {"name": "gain"},
    "gain, curious": {"name": "gain", "parameters": {"explore": 0.03}},
    "gain, shy": {"name": "gain", "parameters": {"explore": 0.002}},
    "awc": {"name": "awc"},
    "static": {"name": "static", "parameters": {"size": 4}},
}
SAMPLE = Path(__file__).with_name("acceptance.jsonl")


class Case(NamedTuple):
    """One setting.

    hardware: of the target, of TARGETS.
    text: "code" or "chat".
    load: of LOADS.
    """

    hardware: str
    text: str
    load: float


CASES = [Case(hardware, text, load) for hardware in TARGETS for text in ("code", "chat") for load in LOADS]


def halves(recorded: Sequence[Recorded]) -> tuple[list[Recorded], list[Recorded]]:
    """Return recordings to choose by and others to judge by, of each kind of text. Raises ValueError where a kind has
    fewer than two."""
    sides: tuple[list[Recorded], list[Recorded]] = ([], [])
    for text in sorted(set(SETS.values())):
        found = [one for one in recorded if SETS.get(one.set) == text]
        if len(found) < 2:
            raise ValueError(f"fewer than two recordings of {text}")
        for side in (0, 1):
            sides[side].extend(found[side::2])
    return sides


def seconds(
    case: Case, recorded: Sequence[Recorded], seed: int, count: int, window: dict[str, Any] | None
) -> float:
    """Return the mean seconds of `count` answers, after each device's first ones, in mode speculative with this window
    policy, or in mode cloud without one. seed: of the arrivals, and of which recordings are asked for."""
    mine = [one for one in recorded if SETS.get(one.set) == case.text]
    random = np.random.default_rng(seed)
    idle_s = _mean_s(case, mine, [FAR_S * number for number in range(len(mine))], None)
    chosen = [mine[i] for i in random.integers(len(mine), size=WARM_UP + count)]
    gaps_s = random.exponential(idle_s / (case.load * PLACES), len(chosen))
    return _mean_s(case, chosen, np.cumsum(gaps_s).tolist(), window, WARM_UP)


def _mean_s(
    case: Case,
    recorded: Sequence[Recorded],
    arrivals_s: Sequence[float],
    window: dict[str, Any] | None,
    first: int = 0,
) -> float:
    """Return the mean seconds of the answers from the `first` one on. Raises RuntimeError if one fails."""
    requests = [
        Request(at_s, one.prompt_tokens, len(one.acceptance), unpack(one.acceptance), device=i % DEVICES)
        for i, (at_s, one) in enumerate(zip(arrivals_s, recorded, strict=True))
    ]
    config = parse(
        {
            "name": f"{case}",
            "mode": "cloud" if window is None else "speculative",
            "workload": {"count": len(requests)},  # the recorded ones take its place
            "window": window or {"name": "static"},
            "targets": [{"hardware": case.hardware, "model": TARGETS[case.hardware]}],
            "devices": [{"count": DEVICES, "sessions": 4, **DEVICE}],
        }
    )
    answers = simulate(config, requests=requests).answers
    if failures := {answer.failure for answer in answers if not answer.finished}:
        raise RuntimeError(f"{case}: requests failed: {failures}")
    return mean(answer.e2e_s for answer in answers[first:])


def ratios(
    recorded: Sequence[Recorded],
    seed: int,
    count: int,
    windows: Mapping[str, dict[str, Any]],
    cases: Sequence[Case] = CASES,
) -> dict[str, dict[Case, float]]:
    """Return the speed over the cloud's by window policy and case: its mean seconds of an answer over speculation's."""
    cloud_s = {case: seconds(case, recorded, seed, count, None) for case in cases}
    return {
        name: {case: cloud_s[case] / seconds(case, recorded, seed, count, window) for case in cases}
        for name, window in report.progress(windows.items(), "window policies")
    }


def best_window(found: Mapping[str, Mapping[Case, float]]) -> str:
    """Return the name of the window policy that is fastest, geometric mean of all cases, among those that are in no
    case slower than the cloud by more than 3 %; if there are none, of the one whose worst case is best.

    found: speed over the cloud's by policy and case.
    """
    speeds = {name: tuple(by_case.values()) for name, by_case in found.items()}
    return max(speeds, key=lambda name: (min(0.97, *speeds[name]), geometric_mean(speeds[name])))


def figures(found: Mapping[Case, float]) -> dict[str, float]:
    """Return the benchmark's figures."""

    def least(text: str, hardware: str) -> float:
        return round(found[Case(hardware, text, LOW)], 3)

    by_target = {f"{text}_gpu_x_{gpu}": least(text, gpu) for text in ("code", "chat") for gpu in TARGETS}
    return {
        "code_gpu_x": min(least("code", gpu) for gpu in TARGETS),
        "chat_gpu_x": min(least("chat", gpu) for gpu in TARGETS),
        "worst_gpu_x": round(min(found.values()), 3),
        **by_target,
    }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real_gpu", __doc__)
    parser.add_argument("--recorded", type=Path, default=SAMPLE, help="acceptances; default: Tandem's own")
    parser.add_argument("--answers", type=int, default=120, help="of each case (default 120)")
    options = parser.parse_args(arguments)
    if data_folder() is None:
        raise SystemExit(NO_DATA)
    to_choose, to_judge = halves(read(options.recorded))
    window = best_window(ratios(to_choose, 1, options.answers, WINDOWS))
    found = ratios(to_judge, 2, options.answers, {window: WINDOWS[window]})[window]
    report.table(
        f"Speed over the cloud's, devices 20 ms away, window policy {window!r}; acceptances and lengths recorded from "
        "Qwen2.5-Coder 1.5B and 0.5B, models' sizes and times emulated",
        ["target", "text", *(f"load {load:g}" for load in LOADS)],
        [
            [f"{TARGETS[gpu]}, {gpu}", text, *(f"{found[Case(gpu, text, load)]:.2f} ×" for load in LOADS)]
            for gpu in TARGETS
            for text in ("code", "chat")
        ],
    )
    report.figures("real_gpu", figures(found))
