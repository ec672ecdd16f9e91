"""HAT's evaluation setting as simulator configurations: one live mode, `split`, with the policies of four systems.

Where the numbers come from, in the order of section 4.1 (Xie et al. 2025):

Cloud: RTX A6000, of whose 8 the paper uses 4, as a pipeline; here, too. Step times come from public tables of the A6000
(Llama-3.1-8B, scaled to Vicuna's shape, which is Llama-2's) and a roofline, with 2 ms of the host's for each stage;
what passes between stages takes no time.
Devices: 10 Jetson AGX Orin and 20 AGX Xavier, from their data sheets by the same roofline. Against the paper's own
prompt of 2k tokens, to which nothing was fitted: 0.30 s in the cloud (paper: 0.28) and 0.12 s on an Orin (0.09).
Links: three groups, 10, 7.5 and 5 MB/s up and 15, 12.5 and 10 down, the ends and the middle of the paper's range; or
("Wi-Fi") stretches of iperf3 on a campus's Wi-Fi (Solis; uplink, mean 8.0 MB/s), 1.5 times as much down.
Power modes: the highest, or, as in the paper, one drawn by lot for each device after every 5 requests; by the GPU's
clock alone, which makes less of them than the paper's factor of 10 between an Orin's highest and a Xavier's lowest.
RTT: 3 ms; the paper has none.
Prompts: SpecBench's 480 first turns and CNN/DM's articles, each scaled to the paper's mean; without the data a
lognormal of the paper's mean and deviation. Answers: at most 128 tokens; the mean would be 150
(lognormal, deviation 90).
Requests: Poisson arrivals, each at a device drawn by lot.
Acceptance: every draft independently, so that with η = 0.6 a round gives the paper's 2.06 and 1.98 tokens, and a draft
of 8 by Medusa's heads 1.89 and 1.75. These are inputs. How sure the drafter is of each: `simulator.engines.guesses`.
Hidden states: 16 bits a number unless said otherwise, 4096 and 5120 numbers; weights 16 bits too.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from tandem.benchmarks.hat.published import Everything
from tandem.benchmarks.paths import DATA
from tandem.deployments.modes.split import Splitting
from tandem.engine.base import Engine
from tandem.simulator.config.config import Config, parse
from tandem.simulator.results.analysis import Result
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tandem.simulator.world.world import as_it_is

BYTES_PER_MBIT = 125_000
GPUS = 4
BLOCK = 16  # tokens of KV cache
WARM_UP, COUNT = 60, 120
"""Requests of the warm-up, in which devices measure link and cloud, and requests that count."""
MAX_TOKENS = 128
OUTPUT_MEAN, OUTPUT_CV = 150, 0.6
RTT_MS = 3.0
ORINS = (4, 3, 3)  # of each link group
XAVIERS = (6, 7, 7)
LINKS = ((10.0, 15.0), (7.5, 12.5), (5.0, 10.0))  # MB/s up and down
DOWN_TO_UP = 1.5
POWER_MODES = (1.0, 900 / 1377, 670 / 1377, 520 / 1377)
"""Shares of a device's speed in its power modes: of the clock, MHz, that an AGX Xavier's GPU has without a limit and
with 30, 15 and 10 W; taken for the Orin, too."""
MODE_REQUESTS = 5
"""Requests after which the paper changes all devices' modes."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set with its model.

    layers: m.
    mean, deviation: of prompts, tokens, as in the paper's Table III.
    alpha: probability that a token of HAT's adapter is accepted; medusa: of the heads'.
    """

    name: str
    model: str
    layers: int
    mean: float
    deviation: float
    alpha: float
    medusa: float


SPECBENCH = Dataset("SpecBench", "Llama-2-7B", 2, 351.2, 397.3, alpha=0.611, medusa=0.478)
CNNDM = Dataset("CNN/DM", "Llama-2-13B", 3, 1036.6, 511.8, alpha=0.590, medusa=0.435)
DATASETS = {one.name: one for one in (SPECBENCH, CNNDM)}

Choice = Mapping[str, Any]
"""A policy: name and parameters."""
NONE: Choice = {"name": "none"}
WHOLE: Choice = {"name": "whole"}


@dataclass(frozen=True, slots=True)
class System:
    """Policies of mode split.

    drafter: adapter, heads, or none.
    server_chunk: positions of prompts in a step of the middle; None for what the simulator derives: whole ones.
    step: tokens of a prompt that a device computes at once.
    wire: number format of hidden states on their way up.
    """

    chunking: Choice = field(default_factory=lambda: {"name": "hat"})
    drafting: Choice = field(default_factory=lambda: {"name": "threshold"})
    parallel: Choice = field(default_factory=lambda: {"name": "hat"})
    drafter: str = "adapter"
    server_chunk: int | None = None
    step: int = 128
    wire: str = "float16"

    def __str__(self) -> str:
        def said(choice: Choice) -> str:
            parameters = choice.get("parameters", {})
            return " ".join([choice["name"], *(f"{key} {value}" for key, value in parameters.items())])

        parts = [said(self.chunking), said(self.drafting), said(self.parallel)]
        if self.server_chunk is not None:
            parts.append(f"chunks of {self.server_chunk} at the server")
        if self.wire != "float16":
            parts.append(self.wire)
        return ", ".join(part for part in parts if part != "none")


class Cell(NamedTuple):
    """Means over the requests that count, in seconds.

    ttft_s, tbt_s, answer_s: to the first token, between tokens, to the last.
    accepted: tokens of a round, those that the model adds included.
    sla: share of requests with a TTFT of 350 ms or less per 128 tokens of prompt, or part of these.
    failed: requests that were not answered.
    busy: share of the time that the middles computed.
    """

    ttft_s: float
    tbt_s: float
    answer_s: float
    accepted: float
    sla: float
    failed: int
    busy: float


def setting(
    dataset: Dataset,
    system: System,
    rate_per_s: float,
    *,
    varying: str = "",
    seed: int = 0,
    devices: int = 30,
    stages: int = GPUS,
) -> Config:
    """One cell. varying: "Wi-Fi" for links as measured, "power modes" for devices whose modes change after every
    MODE_REQUESTS requests, "" for neither; devices: 30, or 1 (an Orin in the middle group), as where the paper measures
    acceptance; stages: GPUs of the cloud's pipeline."""
    engine: dict[str, Any] = {
        "block_size": BLOCK,
    }
    if system.server_chunk is not None:
        engine["batching"] = {
            "name": "chunked",
            "parameters": {"chunk": system.server_chunk, "context_doubles": 10**9},
        }
        engine["token_budget"] = system.server_chunk
    alpha = dataset.medusa if system.drafter == "heads" else dataset.alpha
    return parse(
        {
            "name": f"{dataset.name}, {rate_per_s:g} requests/s, {system}",
            "seed": seed,
            "mode": "split",
            "workload": {
                "count": 1,  # `requests` makes them
                "acceptance": {"kind": "alpha", "alpha": alpha},
                "seed": seed,
            },
            "split": {
                "chunking": dict(system.chunking),
                "drafting": dict(system.drafting),
                "parallel_drafting": dict(system.parallel),
                "drafter": system.drafter,
                "wire": system.wire,
                "engine": {"token_budget": system.step},
            },
            "targets": [
                {
                    "stages": stages,
                    "hardware": "A6000",
                    "model": dataset.model,
                    "first": dataset.layers,
                    "engine": engine,
                }
            ],
            "devices": _varying(_devices(dataset, devices), dataset, rate_per_s, varying, seed),
        }
    )


def _devices(dataset: Dataset, devices: int) -> list[dict[str, Any]]:
    """Return the groups of devices, with constant links."""
    groups = [
        {"count": count, "hardware": hardware, "model": dataset.model, "link": _constant(*link)}
        for hardware, counts in (("AGXOrin", ORINS), ("AGXXavier", XAVIERS))
        for count, link in zip(counts, LINKS, strict=True)
    ]
    return [groups[1] | {"count": 1}] if devices == 1 else groups


def _varying(
    groups: list[dict[str, Any]], dataset: Dataset, rate_per_s: float, varying: str, seed: int
) -> list[dict[str, Any]]:
    """Return the devices with their links, or speeds, as they vary."""
    if not varying:
        return groups
    random = np.random.Generator(np.random.PCG64([seed, 11]))
    if varying == "Wi-Fi":
        each = [group | {"count": 1} for group in groups for _ in range(group["count"])]
        stretches = random.permutation(wifi())[: len(each)].tolist()
        return [one | {"link": _measured(stretch)} for one, stretch in zip(each, stretches, strict=True)]
    shares = sorted((i / group["count"], g) for g, group in enumerate(groups) for i in range(group["count"]))
    each = [groups[g] | {"count": 1} for _, g in shares]  # as the simulator numbers those of groups
    asked = requests(dataset, dataset.alpha, rate_per_s, seed, len(each))
    times = [0.0, *(one.arrival_s for one in asked[MODE_REQUESTS::MODE_REQUESTS])]
    modes = random.choice(POWER_MODES, (len(each), len(times))).tolist()
    return [
        one | {"speed_trace": list(zip(times, drawn, strict=True))}
        for one, drawn in zip(each, modes, strict=True)
    ]


def _constant(up: float, down: float) -> dict[str, Any]:
    return {"rtt_ms": RTT_MS, "up_mbit_per_s": 8 * up, "down_mbit_per_s": 8 * down}


def _measured(mbit_per_s: list[float]) -> dict[str, Any]:
    trace = [[float(second), rate] for second, rate in enumerate(mbit_per_s)]
    return {
        "rtt_ms": RTT_MS,
        "up_trace": trace,
        "down_trace": [[second, DOWN_TO_UP * rate] for second, rate in trace],
    }


STRETCH_S = 100
"""Length of a device's part of a Wi-Fi trace; a run is shorter, or its last rate holds on."""


@lru_cache
def wifi() -> np.ndarray:
    """Bandwidths of the campus's Wi-Fi, megabits/s, [stretches, seconds]. A stretch ends with its mean, with which a
    run that takes longer goes on; none is below 0.1, where nothing would ever arrive."""
    traces: dict[str, list[float]] = {}
    with (DATA / "network" / "wifi_solis.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["location"] == "campus":
                traces.setdefault(row["trace"], []).append(max(0.1, float(row["mbps"])))
    stretches = [
        [*rates[begin : begin + STRETCH_S], fmean(rates[begin : begin + STRETCH_S])]
        for rates in traces.values()
        for begin in range(0, len(rates) - STRETCH_S + 1, STRETCH_S)
    ]
    return np.array(stretches)


@lru_cache
def prompt_lengths(dataset: Dataset) -> tuple[int, ...]:
    """Return the lengths of prompts, tokens, with the paper's mean."""
    words = _words(dataset)
    scale = dataset.mean / fmean(words)
    return tuple(max(1, round(scale * count)) for count in words)


def _words(dataset: Dataset) -> list[float]:
    """Return text lengths of the data set, or of a lognormal if its texts are not at hand."""
    file = DATA / (
        "prompts/spec_bench.jsonl" if dataset is SPECBENCH else "dsd_traces/cnndm_article_lengths.csv"
    )
    if not file.exists():
        sigma = float(np.sqrt(np.log(1 + (dataset.deviation / dataset.mean) ** 2)))
        drawn: list[float] = np.random.Generator(np.random.PCG64(0)).lognormal(0.0, sigma, 1000).tolist()
        return drawn
    if dataset is SPECBENCH:
        turns = [json.loads(line)["turns"][0] for line in file.read_text().splitlines()]
        return [float(len(turn.split())) for turn in turns]
    with file.open(newline="") as rows:
        return [float(row["est_tokens"]) for row in csv.DictReader(rows)]


def requests(
    dataset: Dataset, alpha: float, rate_per_s: float, seed: int, devices: int = 30
) -> list[Request]:
    """Poisson arrivals at devices drawn by lot. The same seed gives all systems the same requests."""
    random = np.random.Generator(np.random.PCG64([seed, 7]))
    count = WARM_UP + COUNT
    arrivals_s = np.cumsum(random.exponential(1 / rate_per_s, count))
    prompts = random.choice(prompt_lengths(dataset), count)
    sigma = float(np.sqrt(np.log(1 + OUTPUT_CV**2)))
    outputs = np.rint(random.lognormal(np.log(OUTPUT_MEAN) - sigma**2 / 2, sigma, count)).clip(2)
    owners = random.integers(devices, size=count)
    chances = random.random((count, MAX_TOKENS))
    return [
        Request(
            float(arrival_s),
            int(prompt),
            int(min(output, 2 * MAX_TOKENS)),
            acceptance=bytes((chance < alpha).tolist()) + bytes(MAX_TOKENS),
            device=int(owner),
            max_tokens=MAX_TOKENS,
        )
        for arrival_s, prompt, output, owner, chance in zip(
            arrivals_s, prompts, outputs, owners, chances, strict=True
        )
    ]


SLA_S, SLA_TOKENS = 0.35, 128


def simulated(
    dataset: Dataset,
    system: System,
    rate_per_s: float,
    *,
    varying: str = "",
    everything: bool = False,
    seed: int = 0,
    devices: int = 30,
    stages: int = GPUS,
) -> Result:
    """Simulate one cell. everything: the middle sends back all hidden states, as in the paper."""
    config = setting(dataset, system, rate_per_s, varying=varying, seed=seed, devices=devices, stages=stages)
    asked = requests(dataset, config.workload.acceptance.alpha, rate_per_s, seed, devices)
    service = _everything if everything else as_it_is
    return simulate(config, requests=asked, service=service)


def measure(dataset: Dataset, system: System, rate_per_s: float, **choices: Any) -> Cell:
    """Simulate one cell, with the choices of `simulated`, and return its figures."""
    result = simulated(dataset, system, rate_per_s, **choices)
    counted = result.answers[WARM_UP:]
    answered = [answer for answer in counted if answer.finished]
    rounds = [Splitting.of(answer.stats) for answer in answered if answer.stats is not None]
    span_s = max(answer.last_s for answer in answered) - result.answers[0].arrival_s
    return Cell(
        ttft_s=fmean(answer.ttft_s for answer in answered),
        tbt_s=fmean(answer.tpot_s for answer in answered if answer.tokens > 1),
        answer_s=fmean(answer.e2e_s for answer in answered),
        accepted=1 + sum(one.accepted for one in rounds) / sum(one.rounds for one in rounds),
        sla=fmean(_in_time(answer) for answer in answered),
        failed=len(counted) - len(answered),
        busy=fmean(server.busy_s for server in result.servers) / span_s,
    )


def prefill_s(answer: SimulatedAnswer) -> float:
    """Return the seconds to the first token for each 128 tokens of the prompt, or part of these."""
    return answer.ttft_s / -(-answer.prompt_tokens // SLA_TOKENS)


def _in_time(answer: SimulatedAnswer) -> bool:
    return prefill_s(answer) <= SLA_S


def _everything(engine: Engine) -> Engine:
    return Everything(engine)
