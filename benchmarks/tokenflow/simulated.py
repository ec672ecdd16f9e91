"""Buffer-aware streaming, simulated: the paper's bursts and Poisson settings on its hardware, and real arrivals.

    tandem benchmark tokenflow_sim [--seeds 3] [--chunks 256 512 1024 2048] [--only NAME]

Llama3-8B on an RTX 4090 and an A6000, Qwen2.5-32B on an H100; the same policy objects as live, times from public
profiles or a roofline (simulated). Lengths, bursts and rates are the paper's Table 1 (the H100 stands for its H200:
bursts and memory fraction as there); readers at 15 and 20 tokens/s, 40 : 60; clients allow as many tokens as they get,
as load generators do. The traces are Azure's, which stand in for BurstGPT: the first 2,500 requests of the busiest 20
minutes of conversation (7 minutes of them) and of code (11). The paper says by what share of the best baseline it
improves, and so do the figures here, setup by setup and metric by metric: FCFS (conservative, with and without chunked
prefill, and optimistic), and an Andes-like policy.

Whoever cuts prompts into chunks does so by the chunk that is best for it, setup by setup: the one of the highest QoS
(the paper's equation 2) on another seed, or on the requests of the trace after those that are judged.

burst_*, poisson_*: at best over the setups, as the paper has it; *_median: over them; *_least: in the worst one.
*_stall_s: TokenFlow's mean stall there, seconds; a baseline may be the best in one metric for letting readers stall.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, NamedTuple, Protocol, TypeVar

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA
from tandem.policies.reader.quality import Quality, ReaderStream, assess
from tandem.simulator.config.config import Config, parse
from tandem.simulator.runs.run import simulate
from tandem.simulator.runs.tasks import ray_map
from tandem.simulator.workload import Request, build

READERS = [[0.4, 15.0], [0.6, 20.0]]
BLOCK = 16  # tokens of KV cache
HOST: dict[str, Any] = {"blocks": 2_000_000 // BLOCK, "copy_mb_per_s": 20_000}
FCFS: dict[str, Any] = {"name": "fcfs", "parameters": {"reserve": 0.7}}  # conservative, as SGLang admits
CHUNKS = (256, 512, 1024, 2048)  # tokens of prefill beside decoding, on such hardware
CHOOSING = 1000  # the seed that chunks are chosen on
BUFFER_AWARE: dict[str, Any] = {"name": "buffer_aware"}
Kind = tuple[dict[str, Any], str, dict[str, Any] | None]  # scheduling, batching, host memory
KINDS: dict[str, Kind] = {
    "FCFS": (FCFS, "continuous", None),
    "FCFS chunked": (FCFS, "chunked", None),
    "FCFS optimistic": ({"name": "fcfs"}, "continuous", None),
    "Andes-like": ({"name": "andes"}, "chunked", None),
    "TokenFlow": (BUFFER_AWARE, "buffered", HOST),
}
ABLATIONS: dict[str, Kind] = {
    "TokenFlow": KINDS["TokenFlow"],
    "without offload": (BUFFER_AWARE, "buffered", None),
    "without write-through": (BUFFER_AWARE, "buffered", {**HOST, "write_through": False}),
    "without overlap": (BUFFER_AWARE, "buffered", {**HOST, "overlap": False}),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A line of the paper's table, or a trace.

    prompt, output: mean tokens.
    burst: requests at once; else Poisson.
    rate_per_s: of Poisson arrivals.
    count: of requests.
    trace: a file of arrivals and lengths instead.
    kv_tokens: None for what the hardware leaves.
    """

    name: str
    hardware: str
    model: str
    prompt: int = 512
    output: int = 1024
    burst: int = 0
    rate_per_s: float = 0.0
    count: int = 0
    trace: str = ""
    kv_tokens: int | None = None

    @property
    def is_burst(self) -> bool:
        return self.burst > 0


H100 = ("2xH100", "Qwen2.5-32B")
SETUPS = (
    Setup("4090 (a) burst 60, SL", "RTX4090", "Llama-3.1-8B", burst=60, count=60),
    Setup("4090 (b) burst 80, LL", "RTX4090", "Llama-3.1-8B", 1024, 2048, burst=80, count=80),
    Setup("4090 (c) Poisson 2, SL", "RTX4090", "Llama-3.1-8B", rate_per_s=2, count=240),
    Setup("4090 (d) Poisson 4, SL", "RTX4090", "Llama-3.1-8B", rate_per_s=4, count=240),
    Setup("A6000 burst 160, LL", "A6000", "Llama-3.1-8B", 1024, 2048, burst=160, count=160),
    Setup("2×H100 (a) burst 400, SL", *H100, 512, 2048, burst=400, count=400, kv_tokens=120_000),
    Setup("2×H100 (c) Poisson 5, SL", *H100, 512, 2048, rate_per_s=5, count=400, kv_tokens=120_000),
    Setup("2×H100, Azure conversation, 2,500 from its peak", *H100, trace="conv_peak20min.csv", count=2500),
    Setup("2×H100, Azure code, 2,500 from its peak", *H100, trace="code_peak20min.csv", count=2500),
)


def requests_of(setup: Setup, seed: int) -> list[Request]:
    """The setup's requests; clients allow as many tokens as they get."""
    requests = _trace(setup, seed) if setup.trace else build(config_of(setup, seed, {}).workload)
    return [replace(request, max_tokens=request.output_tokens) for request in requests]


def streams(
    setup: Setup,
    kind: Kind,
    seed: int,
    chunk: int = CHUNKS[0],
    requests: Sequence[Request] | None = None,
) -> list[ReaderStream]:
    """One simulation: what each reader got and when, in order of arrival. requests: in place of the setup's."""
    scheduling, batching, host = kind
    parameters = {"chunk": chunk, "context_doubles": 10**9} if _chunked(kind) else {}
    engine: dict[str, Any] = {
        "block_size": BLOCK,
        "max_sessions": 256,
        "token_budget": 2048,
        "batching": {"name": batching, "parameters": parameters},
        "scheduling": scheduling,
        "host_memory": host,
    }
    asked = requests_of(setup, seed) if requests is None else list(requests)
    result = simulate(config_of(setup, seed, engine), requests=asked)
    return [ReaderStream(answer.arrival_s, answer.times_s or (), answer.rate) for answer in result.answers]


def config_of(setup: Setup, seed: int, engine: dict[str, Any]) -> Config:
    """Return a simulation of the setup on one such engine."""
    arrival: dict[str, Any] = {"kind": "poisson", "rate_per_s": setup.rate_per_s or 1e6}
    if setup.kv_tokens is not None:
        engine = {**engine, "kv_blocks": setup.kv_tokens // BLOCK}
    return parse(
        {
            "name": setup.name,
            "mode": "cloud",
            "seed": seed,
            "workload": {
                "kind": "synthetic",
                "count": setup.count,
                "prompt": {"mean": setup.prompt, "cv": 0.25, "least": 16},
                "output": {"mean": setup.output, "cv": 0.25, "least": 16},
                "arrival": arrival,
                "acceptance": {"kind": "alpha", "alpha": 0.0},
                "readers": READERS,
                "seed": seed,
            },
            "engine": engine,
            "targets": [{"hardware": setup.hardware, "model": setup.model}],
        }
    )


def _chunked(kind: Kind) -> bool:
    return kind[1] != "continuous"


def _trace(setup: Setup, seed: int) -> list[Request]:
    """The trace's first requests, with seed CHOOSING those after them; readers in turn, 2 of 5 slow."""
    begin = setup.count if seed == CHOOSING else 0
    with (DATA / "azure_llm_2023" / setup.trace).open(newline="") as file:
        rows = list(csv.DictReader(file))[begin : begin + setup.count]
    return [
        Request(
            float(r["arrival_s"]) - float(rows[0]["arrival_s"]),
            int(r["prompt_tokens"]),
            max(1, int(r["output_tokens"])),
            reader_rate=15.0 if (i + seed) % 5 < 2 else 20.0,
        )
        for i, r in enumerate(rows)
    ]


class Job(NamedTuple):
    """One simulation. kind: its name in KINDS or ABLATIONS."""

    setup: Setup
    kind: str
    seed: int
    chunk: int

    def quality(self) -> Quality:
        """Simulate it."""
        return assess(streams(self.setup, (KINDS | ABLATIONS)[self.kind], self.seed, self.chunk))


class Simulation(Protocol):
    """A simulation whose readers are asked how it was."""

    def quality(self) -> Quality:
        """Simulate it."""
        ...


S = TypeVar("S", bound=Simulation)


def _simulated(job: S) -> tuple[S, Quality]:
    return job, job.quality()


def simulate_all(jobs: Sequence[S], what: str) -> dict[S, Quality]:
    """Simulate on all cores."""
    found = ray_map(_simulated, jobs, chunk=1)
    return dict(next(found) for _ in report.progress(jobs, what))


def choose_chunks(setups: Sequence[Setup], chunks: Sequence[int]) -> dict[tuple[Setup, str], int]:
    """Return, by setup and kind of KINDS, the chunk of the highest QoS on requests that are not judged."""
    chunked = [(s, name) for s in setups for name, kind in KINDS.items() if _chunked(kind)]
    jobs = [Job(s, name, CHOOSING, chunk) for s, name in chunked for chunk in chunks if len(chunks) > 1]
    found = simulate_all(jobs, "choosing chunks") if jobs else {}
    best = {
        (s, name): max(chunks, key=lambda chunk: found[Job(s, name, CHOOSING, chunk)].qos)
        if found
        else chunks[0]
        for s, name in chunked
    }
    return {(s, name): best.get((s, name), chunks[0]) for s in setups for name in KINDS}


Found = dict[tuple[Setup, str], list[Quality]]
"""Qualities by setup and kind, one a seed."""
BASELINES = [name for name in KINDS if name != "TokenFlow"]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("tokenflow_sim", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setup (default 3)")
    parser.add_argument("--only", default="", help="setups whose name has this in it")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS, help="to choose from, tokens")
    options = parser.parse_args(arguments)
    setups = [
        s
        for s in SETUPS
        if options.only in s.name and (not s.trace or (DATA / "azure_llm_2023" / s.trace).exists())
    ]
    ablated = [s for s in setups if s.name == SETUPS[1].name]
    chunks = choose_chunks(setups, options.chunks)
    jobs = [
        Job(s, kind, seed, chunks[s, kind])
        for s in setups
        for kind in KINDS
        for seed in range(1 if s.trace else options.seeds)
    ]
    jobs += [
        Job(s, kind, seed, chunks[s, "TokenFlow"])
        for s in ablated
        for kind in ABLATIONS
        if kind not in KINDS
        for seed in range(options.seeds)
    ]
    found: Found = {}
    for job, quality in simulate_all(jobs, "simulations").items():
        found.setdefault((job.setup, job.kind), []).append(quality)
    for setup in setups:
        names = ABLATIONS | KINDS if setup in ablated else KINDS
        report.table(
            f"{setup.name} (simulated)",
            ["", "chunk", *HEADER],
            [
                [
                    name,
                    str(chunks.get((setup, name), chunks[setup, "TokenFlow"])) if _chunked(kind) else "",
                    *row(found[setup, name]),
                ]
                for name, kind in names.items()
            ],
        )
    _compare(found, setups)
    bursts, poisson = [s for s in setups if s.is_burst], [s for s in setups if s.rate_per_s]
    figures = {
        **_spread("burst_p99_ttft_cut", found, bursts, "ttft_p99_s", sign=-1),
        **_spread("burst_effective_gain", found, bursts, "effective_throughput"),
        **_spread("poisson_effective_gain", found, poisson, "effective_throughput"),
    }
    for s in ablated:
        spans = {n: _mean(found, s, n, "span_s") for n in ABLATIONS}
        figures |= {
            n.replace(" ", "_") + "_x": spans[n] / spans["TokenFlow"] for n in ABLATIONS if n != "TokenFlow"
        }
    report.figures("tokenflow_sim", {name: round(value, 4) for name, value in figures.items()})


BETTER = {"ttft_p99_s": min, "effective_throughput": max, "throughput": max}
"""Function that picks the best of several values, by figure."""


def _best(found: Found, setup: Setup, figure: str) -> str:
    """The baseline that is the best in it."""
    name: str = BETTER[figure](BASELINES, key=lambda name: _mean(found, setup, name, figure))
    return name


def _gain(found: Found, setup: Setup, figure: str, other: str | None = None) -> float:
    """TokenFlow's figure over another kind's, less 1; None: over the best baseline's."""
    other = other or _best(found, setup, figure)
    return _mean(found, setup, "TokenFlow", figure) / _mean(found, setup, other, figure) - 1


def _compare(found: Found, setups: Sequence[Setup]) -> None:
    def cell(setup: Setup, other: str) -> str:
        gains = [f"{_gain(found, setup, figure, other):+.1%}" for figure in BETTER]
        return "\n".join([*gains, f"{_mean(found, setup, other, 'stall_mean_s'):.2f} s"])

    def best(setup: Setup, figure: str) -> str:
        return f"{_gain(found, setup, figure):+.1%} {_best(found, setup, figure)}"

    report.table(
        "TokenFlow against each baseline and against the best: P99 TTFT, effective throughput, raw throughput; and the "
        "mean stall of each. The paper's gains, at best against its best baseline: −80.2 %, +82.5 % (Poisson) and "
        "+52.9 % (burst), equal",
        ["", *BASELINES, "the best", "TokenFlow's stall"],
        [
            [
                s.name,
                *(cell(s, name) for name in BASELINES),
                "\n".join(best(s, figure) for figure in BETTER),
                f"{_mean(found, s, 'TokenFlow', 'stall_mean_s'):.2f} s",
            ]
            for s in setups
        ],
    )


def _spread(name: str, found: Found, setups: Sequence[Setup], figure: str, sign: int = 1) -> dict[str, float]:
    """The gain where it is the largest, and where it is the least, with TokenFlow's stall there; and the median."""
    gains = sorted(
        (sign * _gain(found, s, figure), _mean(found, s, "TokenFlow", "stall_mean_s")) for s in setups
    )
    (worst, worst_s), (best, best_s) = (gains[0], gains[-1]) if gains else [(math.nan, math.nan)] * 2
    return {
        name: best,
        f"{name}_stall_s": best_s,
        f"{name}_median": median(gain for gain, _ in gains) if gains else math.nan,
        f"{name}_least": worst,
        f"{name}_least_stall_s": worst_s,
    }


def _mean(found: Found, setup: Setup, kind: str, figure: str) -> float:
    return mean(getattr(q, figure) for q in found[setup, kind])


HEADER = ("TTFT s", "P50", "P99", "tokens/s", "effective", "stall s", "QoS", "span s")
"""Columns of `row`."""


def row(qualities: list[Quality]) -> list[str]:
    """Return the means of a table's row."""

    def figure(name: str) -> float:
        return mean(getattr(q, name) for q in qualities)

    return [
        *(f"{figure(k):.2f}" for k in ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s")),
        *(f"{figure(k):.0f}" for k in ("throughput", "effective_throughput")),
        f"{figure('stall_mean_s'):.2f}",
        f"{figure('qos'):.0f}",
        f"{figure('span_s'):.0f}",
    ]
