"""DSD's evaluation setting as simulator configurations, and its Table 2 as printed.

20 targets (Llama-2-70B, Llama-3-70B, Qwen-72B on 4×A100, 4×A6000, 4×H100), 600 or 1000 drafters (Llama-2-7B,
Qwen-7B, Llama-3.1-8B on A40 and V100), 400 GSM8K, 400 CNN/DailyMail and 100 HumanEval prompts. Choices that the
paper leaves open are noted in place; two readings of it stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks.paths import DATA
from tandem.policies.speculation.window import StaticWindow, WindowPolicy, WindowState
from tandem.simulator.config.config import Config, parse
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request, build
from tandem.simulator.world.devices import TimedSpeed

DATASETS = ("GSM8K", "HumanEval", "CNN/DM")
POOLS = ((600, 10), (1000, 10), (600, 30), (1000, 30))  # drafters, RTT in milliseconds
WINDOWS = ("static", "dynamic", "awc")


class Cell(NamedTuple):
    """requests/s, TTFT and TPOT in seconds: means over answers."""

    throughput: float
    ttft_s: float
    tpot_s: float


def _cells(throughput: str, ttft: str, tpot: str) -> dict[tuple[int, int, str], Cell]:
    columns = [
        [tuple(float(x) for x in cell.split("/")) for cell in line.split()]
        for line in (throughput, ttft, tpot)
    ]
    return {
        (*pool, window): Cell(columns[0][i][w], columns[1][i][w] / 1e3, columns[2][i][w] / 1e3)
        for i, pool in enumerate(POOLS)
        for w, window in enumerate(WINDOWS)
    }


PAPER = {  # Table 2: static/dynamic/AWC, in the order of POOLS
    "GSM8K": _cells(
        "25.8/26.1/28.3 30.6/30.7/31.5 17.8/18.9/18.5 21.4/21.8/22.3",
        "352/334/347 368/354/362 462/457/443 478/465/463",
        "40.1/38.9/36.2 72.2/69.7/67.4 62.3/62.9/58.3 99.4/98.1/91.5",
    ),
    "HumanEval": _cells(
        "16.2/16.7/17.2 17.4/17.6/18.2 11.2/11.0/11.3 12.8/13.1/13.2",
        "803/792/799 2102/2178/2038 1138/1125/1120 2578/2520/2497",
        "50.8/48.6/46.3 75.4/73.4/70.5 79.2/78.1/73.6 102.7/100.2/96.8",
    ),
    "CNN/DM": _cells(
        "8.0/8.25/8.4 12.1/12.2/12.6 6.0/6.2/6.2 9.3/9.5/9.7",
        "1602/1625/1569 2412/2408/2352 2024/1993/2006 2986/2934/2925",
        "67.4/66.9/62.8 82.1/82.6/76.8 92.4/88.6/86.7 108.3/108.5/98.2",
    ),
}

_TRACES = {
    "GSM8K": "gsm8k_master400_trace.csv",
    "HumanEval": "humaneval_trace.csv",
    "CNN/DM": "cnndm_trace.csv",
}
LENGTHS = {"GSM8K": (73, 138), "HumanEval": (156, 66), "CNN/DM": (889, 68)}  # mean tokens, in and out
TARGETS = 20
PROMPTS = 400
TURNOVERS = 10  # answers of each user that count; the data sets' prompts are taken again and again
WARM_UP = 2  # answers of each user before them
BATCH = 12  # sequences a target verifies together, from the authors' example deployment
CHUNK = 512  # of prefill, from the same


class Reading(NamedTuple):
    """An interpretation of the setting.

    rtts: round trips of a link, for each that the paper names as its RTT.
    one_pass: whether γ drafts cost the device one forward pass, not γ.
    first_draft: whether the TTFT ends when the first accepted draft is read (or the first fused round's token), not
        the first token.
    """

    name: str
    rtts: float = 1.0
    one_pass: bool = False
    first_draft: bool = False


PHYSICAL = Reading("physical")
AUTHORS = Reading("authors'", rtts=2.0, one_pass=True, first_draft=True)
"""The authors' public simulator (github.com/yfzzzyyls/dsdSim), which applies the RTT each way."""
READINGS = (PHYSICAL, AUTHORS)


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the evaluation.

    alpha: probability that a draft is accepted.
    users: requests under way at once with 600 drafters; more drafters serve more users, in proportion.
    turnovers: answers of each user that will count.
    count: of answers that will count, in place of these.
    history: whether the answers' tokens are kept, one by one.
    colocated: whether the targets have the drafters' models beside them, for fused rounds.

    Left open by the paper, and decided here: a user asks again when the answer is there. Acceptance is independent from
    token to token; the batch takes what is padded to its longest; targets are taken from the list in turn, drafters
    too; prompts have the lengths of the authors' own traces where those are at hand, else lengths of the same means.
    """

    dataset: str
    alpha: float
    users: float
    drafters: int = 600
    rtt_ms: float = 10.0
    window: str = "static"
    routing: str = "jsq"
    batching: str = "lab"
    mode: str = "speculative"
    seed: int = 0
    targets: int = TARGETS
    turnovers: int = TURNOVERS
    count: int | None = None
    history: bool = False
    reading: Reading = PHYSICAL
    colocated: bool = False

    def config(self) -> Config:
        """Return what `measure` simulates."""
        at_once = round(self.users * self.drafters / 600)
        counted = self.turnovers * at_once if self.count is None else self.count
        trace = DATA / "dsd_traces" / _TRACES[self.dataset]
        prompt, output = LENGTHS[self.dataset]
        link_ms = self.reading.rtts * self.rtt_ms
        size = {"size": BATCH} if self.batching in ("fifo", "lab") else {}
        raw: dict[str, Any] = {
            "name": f"{self.dataset}, {self.targets}T/{self.drafters}D, {self.rtt_ms:g} ms, {self.window}",
            "seed": self.seed,
            "mode": self.mode,
            "history": self.history or self.reading.first_draft,
            "fused_window": 4,
            "workload": {
                "kind": "trace" if trace.exists() else "synthetic",
                "path": str(trace) if trace.exists() else None,
                "count": counted + (WARM_UP + 1) * at_once,
                "prompt": {"mean": prompt, "cv": 0.3},
                "output": {"mean": output, "cv": 0.25},
                "arrival": {"kind": "closed", "users": at_once},
                "acceptance": {"kind": "alpha", "alpha": self.alpha},
                "seed": self.seed,
            },
            "window": {"name": self.window},
            "router": {"routing": {"name": self.routing}},
            "engine": {
                "batching": {"name": self.batching, "parameters": size},
                "max_sessions": 128,
                "token_budget": CHUNK,
            },
            "auto_topology": {
                "targets": self.targets,
                "devices": self.drafters,
                "target_mix": [
                    {
                        "hardware": hardware,
                        "model": model,
                        "draft_model": small if self.colocated else None,
                        "padded": True,
                    }
                    for hardware, model, small in _TARGETS
                ],
                "device_mix": [
                    {"hardware": "A40", "model": "Llama-2-7B"},
                    {"hardware": "A40", "model": "Qwen-7B"},
                    {"hardware": "V100", "model": "Llama-3.1-8B"},
                ],
                "link": {"rtt_ms": link_ms, "jitter_ms": 0.06 * link_ms},
            },
        }
        return parse(raw)


_TARGETS = (
    ("4xA100", "Llama-2-70B", "Llama-2-7B"),
    ("4xH100", "Qwen-72B", "Qwen-7B"),
    ("4xA6000", "Llama-3-70B", "Llama-3.1-8B"),
)


def under_way(dataset: str, cell: tuple[int, int, str]) -> float:
    """Requests under way in a cell of the paper's table, by Little's law: throughput × (TTFT + (tokens − 1) · TPOT)."""
    throughput, ttft_s, tpot_s = PAPER[dataset][cell]
    return throughput * (ttft_s + (LENGTHS[dataset][1] - 1) * tpot_s)


class Alone:
    """Window policy under which the target decodes alone."""

    def choose(self, state: WindowState) -> int:
        return 0


class OnePass(TimedSpeed):
    """Several tokens take as long as one. No device drafts so, hence no setting of the simulator's."""

    def decode_s(self, tokens: int, context: int = 0, sequences: int = 1) -> float:
        return super().decode_s(min(tokens, 1), context, sequences)


def fixed_window(size: int) -> WindowPolicy:
    """Return the policy of one γ throughout; 0: the target alone."""
    return StaticWindow(size) if size else Alone()


def measure(
    config: Config, reading: Reading = PHYSICAL, window: Callable[[], WindowPolicy] | None = None
) -> Cell:
    """Simulate one cell in steady state: while all users are at it, and not with their first answers.

    Throughput is Little's: users over the mean time of an answer. Counted over a span, it would depend on how many
    answers end just before its end; few turnovers make that a matter of percents.

    reading: the one that `config` was made for.
    window: in place of the configured policy.
    """
    at_once = config.workload.arrival.users
    assert at_once is not None  # `setting` has seen to that
    speed = OnePass if reading.one_pass else TimedSpeed
    answers = simulate(config, requests=requests(config), window=window, speed=speed).answers
    counted = answers[WARM_UP * at_once : -at_once]  # with their last ones, the users begin to stop
    return Cell(
        at_once / mean(answer.ended_s - answer.arrival_s for answer in counted),
        mean(_first_s(answer, reading) - answer.arrival_s for answer in counted),
        mean(a.tpot_s for a in counted if a.tokens > 1),
    )


def requests(config: Config) -> list[Request]:
    """Return the workload's requests, the prompts from a place on that the seed draws, so that seeds differ in them."""
    count = config.workload.count
    assert count is not None  # as `setting` makes it
    start = int(np.random.Generator(np.random.PCG64(config.seed)).integers(PROMPTS))
    return build(config.workload.model_copy(update={"count": start + count}))[start:]


def _first_s(answer: SimulatedAnswer, reading: Reading) -> float:
    if not reading.first_draft:
        return answer.first_s
    assert answer.history is not None
    # The first delivery is the prompt's own token. A round that the cloud keeps to itself is not held up by drafts,
    # with a drafter of its own or without.
    rounds = (one.time_s for one in answer.history[1:] if one.tokens > 1 or not one.distributed)
    return next(rounds, answer.last_s)
