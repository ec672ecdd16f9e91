"""Window policies on the shipped configuration, simulated: which one its default should be.

    tandem benchmark windows [--seeds 5] [--answers 40]

The devices and links of app/configs/local.yaml, each asked by itself and all at once, and the cloud's own drafter,
asked by one and by four. Every user asks again when an answer is there, from the first answer of a new system on, which
has nothing learnt yet. Two pairs of models: Tandem's own, with assumed step times (about those of 2 cores) and recorded
acceptances, and Qwen2.5-Coder 1.5B and 0.5B on llama.cpp, with step times measured on 2 cores. The device `laptop` has
the machine's own speed, the others those of their profiles.

Figures are of a user's mean seconds an answer; ratios are seed by seed, intervals 95 % over the seeds, from 2000 on:
policies were made with others. POLICY_slower, POLICY_faster: cells in which a policy takes longer than `static`, which
has γ = 4, beyond its interval, or less; POLICY_most, POLICY_least: the largest and the smallest ratio to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import yaml

from tandem.app.cli.server.up import CONFIG
from tandem.benchmarks import report
from tandem.benchmarks.intervals import Interval
from tandem.benchmarks.real.gpu import SAMPLE, halves
from tandem.benchmarks.real.recording import read
from tandem.simulator.config.config import parse
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import Request
from tandem.simulator.workload.acceptance import recordings
from tandem.simulator.workload.request import unpack

FIRST_SEED = 2000
STATIC = "static"
WINDOWS: dict[str, dict[str, Any] | None] = {
    STATIC: {"name": "static", "parameters": {"size": 4}},
    "dynamic": {"name": "dynamic"},
    "gain": {"name": "gain"},
    "awc": {"name": "awc"},
    "mode cloud": None,
}
TARGET, SMALL = {"base_s": 0.0024, "token_s": 0.0003}, {"base_s": 0.0012, "token_s": 0.0001}
"""Step times assumed for Tandem's own models."""
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "embedded": ({"measured": TARGET, "measured_draft": SMALL}, {"measured": SMALL}),
    "real": (
        {"table": "qwen2.5-coder-1.5b", "draft_table": "qwen2.5-coder-0.5b"},
        {"table": "qwen2.5-coder-0.5b"},
    ),
}
"""The target with its drafter, and the drafter at the machine's own speed, by name."""
FUSED, ALL = "no device", "all devices"
PROMPT_TOKENS = 60  # of a question to Tandem's own models


class Cell(NamedTuple):
    """One setting.

    pair: of PAIRS.
    asked: name of a device, ALL or FUSED.
    users: at once.
    """

    pair: str
    asked: str
    users: int

    def __str__(self) -> str:
        return f"{self.pair}, {self.asked}, {self.users} at once"


class Run(NamedTuple):
    """One simulation.

    window: of WINDOWS.
    answers: of each user.
    """

    cell: Cell
    window: str
    seed: int
    answers: int


@cache
def devices() -> Mapping[str, Mapping[str, Any]]:
    """Return profile and link of the shipped devices, by name."""
    arguments = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]
    return {device["name"]: device for host in arguments["hosts"] for device in host["devices"]}


def cells() -> list[Cell]:
    """Return all cells."""
    names = devices()
    asked = [(FUSED, 1), (FUSED, len(names)), *((name, 1) for name in names), (ALL, len(names))]
    return [Cell(pair, *each) for pair in PAIRS for each in asked]


def seconds(run: Run) -> float:
    """Return a user's mean seconds an answer. Raises RuntimeError if one fails."""
    pair, asked, users = run.cell
    target, own = PAIRS[pair]
    window = WINDOWS[run.window]
    names = [] if asked == FUSED else list(devices()) if asked == ALL else [asked]
    requests = _requests(pair, users * run.answers, run.seed)
    config = parse(
        {
            "name": str(run),
            "seed": run.seed,
            "mode": "cloud" if window is None else "speculative",
            "workload": {  # the recorded ones take its place
                "count": len(requests),
                "arrival": {"kind": "closed", "users": users},
            },
            "window": window or {"name": "static"},
            "targets": [{"model": "target", **target}],
            "devices": [_device(devices()[name], own) for name in names],
        }
    )
    answers = simulate(config, requests=requests).answers
    if failures := {answer.failure for answer in answers if not answer.finished}:
        raise RuntimeError(f"{run}: requests failed: {failures}")
    return mean(answer.e2e_s for answer in answers)


def _device(device: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    speed = own if device["profile"] == "native" else {"profile": device["profile"]}
    return {**speed, "link": device["link"]}


def _requests(pair: str, count: int, seed: int) -> list[Request]:
    """Return requests drawn from those recorded of the pair."""
    if pair == "real":
        found = [(one.prompt_tokens, unpack(one.acceptance)) for one in halves(read(SAMPLE))[1]]
    else:
        found = [(PROMPT_TOKENS, unpack(one.acceptance)) for one in recordings()]
    drawn = np.random.default_rng(seed).integers(len(found), size=count)
    return [Request(0.0, prompt, len(bits), bits) for prompt, bits in (found[i] for i in drawn)]


class Ratios(NamedTuple):
    """A policy's seconds an answer over those of `static`, in every cell."""

    by_cell: Mapping[Cell, Interval]

    @classmethod
    def of(cls, found: Mapping[Run, float], window: str) -> Ratios:
        """Return them of these runs."""
        values: dict[Cell, list[float]] = {}
        for run, took_s in found.items():
            if run.window == window:
                values.setdefault(run.cell, []).append(took_s / found[run._replace(window=STATIC)] - 1)
        return cls({cell: Interval.of(ratios) for cell, ratios in values.items()})

    def figures(self, window: str) -> dict[str, float]:
        """Return the benchmark's figures, see there."""
        every = list(self.by_cell.values())
        return {
            f"{window}_slower": sum(each.mean > each.half for each in every),
            f"{window}_faster": sum(-each.mean > each.half for each in every),
            f"{window}_most": round(1 + max(each.mean for each in every), 3),
            f"{window}_least": round(1 + min(each.mean for each in every), 3),
        }


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("windows", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs a cell (default 5)")
    parser.add_argument("--answers", type=int, default=40, help="of each user in a run (default 40)")
    options = parser.parse_args(arguments)
    runs = [
        Run(cell, window, FIRST_SEED + seed, options.answers)
        for cell in cells()
        for seed in range(options.seeds)
        for window in WINDOWS
    ]
    results = ray_map(_timed, runs)
    found = dict(next(results) for _ in report.progress(runs, "simulations"))
    ratios = {window: Ratios.of(found, window) for window in WINDOWS}
    report.table(
        f"Seconds an answer beside γ = 4, {options.seeds} seeds of {options.answers} answers a user (simulated)",
        ["", "γ = 4", *(window for window in WINDOWS if window != STATIC)],
        [
            [
                str(cell),
                f"{mean(took for run, took in found.items() if run.cell == cell and run.window == STATIC):.2f} s",
                *(str(each.by_cell[cell]) for window, each in ratios.items() if window != STATIC),
            ]
            for cell in cells()
        ],
    )
    figures: dict[str, float] = {}
    for window in ("awc", "gain", "dynamic"):
        figures |= ratios[window].figures(window)
    report.figures("windows", figures)


def _timed(run: Run) -> tuple[Run, float]:
    return run, seconds(run)
