"""Buffer-aware streaming, live: FCFS, FCFS with chunked prefill, Andes-like and TokenFlow on one engine.

    tandem benchmark tokenflow [--grow 2] [--rounds 1] [--chunks 32 128] [--ablation]
                                   [--device cuda --shape 1b --longer 2]

The embedded target, grown so that the engine is the bottleneck, in this process; with --shape, random weights of that
shape (see `benchmarks.speed.engine`). The paper's table, scaled to this machine: lengths by 8 (inputs 64/128 and
outputs 128/256 tokens on average, short/long), bursts and Poisson rates in relation to what may run at once and what
the engine can do; readers take in so many tokens/s that a burst's readers together ask for `share` of the engine's
capacity, 40 % of them three quarters as fast as the others. Two KV budgets: one binds (a third of a burst fits), one
does not (then only 16 run at once). The link between the KV tiers is emulated, but on a GPU, whose bus it is. Policies
run in alternation on the same requests, another one first in every round. Baselines that cut prompts into chunks do so
by the chunk of the highest QoS (the paper's equation 2) on another seed, setup by setup.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median

import numpy as np
import torch

from tandem.benchmarks import report
from tandem.benchmarks.speed.engine import SHAPES, alone, models, random_info
from tandem.engine import family
from tandem.engine.base import EngineStats, Sampling
from tandem.engine.config import BatchingChoice, EngineConfig, HostMemory, SchedulingChoice
from tandem.engine.core.engine import CoreEngine
from tandem.engine.torch.engine import load, start
from tandem.engine.torch.model import Model
from tandem.policies.reader.quality import Quality, ReaderStream, assess
from tandem.simulator.workload import Request

RUNNING = 16  # requests in a step at most
BLOCK = 16
# As in the paper's machine (1,500 tokens of Llama3-8B over PCIe 4), a request's KV cache crosses in a third of a step.
HOST = HostMemory(blocks=4096, copy_mb_per_s=350)
SHORT, LONG = (64, 128), (128, 256)  # input and output tokens, on average
CHUNKS = (32, 128)  # tokens of prefill beside decoding
CHOOSING = 1000  # the seed that chunks are chosen on


@dataclass(frozen=True, slots=True)
class Setup:
    """A line of the paper's table.

    lengths: input and output tokens, on average.
    burst: requests at once; 0: Poisson arrivals.
    requests: of Poisson arrivals.
    load: what these ask for, in capacities (the paper's 2 requests/s of 1,024 tokens ask a 4090 for about twice what
        it can do).
    share: of the capacity that a burst's readers ask for together.
    binding: whether a third of a burst fits the KV cache; else all of it does.
    """

    name: str
    lengths: tuple[int, int]
    burst: int = 0
    requests: int = 0
    load: float = 0.0
    share: float = 0.8
    binding: bool = False

    def longer(self, factor: int) -> Setup:
        """Return the setup with longer prompts and answers."""
        inputs, outputs = self.lengths
        return replace(self, lengths=(factor * inputs, factor * outputs))


SETUPS = (
    Setup("burst 48, short", SHORT, burst=48),
    Setup("burst 48, short, memory binds", SHORT, burst=48, binding=True),
    Setup("burst 40, long, memory binds", LONG, burst=40, binding=True),
    Setup("Poisson 0.8, short", SHORT, requests=64, load=0.8),
    Setup("Poisson 2, short, memory binds", SHORT, requests=64, load=2.0, binding=True),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to serve.

    scheduling: the policy's name.
    batching: the policy's name.
    host_memory: beside the KV cache, if there is any.
    chunk: tokens of prefill beside decoding; None: the batching's own.
    """

    scheduling: str
    batching: str
    host_memory: HostMemory | None = None
    chunk: int | None = None


KINDS = {
    "FCFS": Kind("fcfs", "continuous"),
    "FCFS chunked": Kind("fcfs", "chunked"),
    "Andes-like": Kind("andes", "chunked"),
    "TokenFlow": Kind("buffer_aware", "buffered", HOST),
}
ABLATIONS = {
    "TokenFlow": KINDS["TokenFlow"],
    "without offload": Kind("buffer_aware", "buffered"),
    "without write-through": Kind(
        "buffer_aware", "buffered", HOST.model_copy(update={"write_through": False})
    ),
    "without overlap": Kind("buffer_aware", "buffered", HOST.model_copy(update={"overlap": False})),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run.

    quality: what readers made of it.
    stats: of the engine, at its end.
    """

    quality: Quality
    stats: EngineStats


def requests(setup: Setup, capacity: float, seed: int) -> list[Request]:
    """capacity: tokens/s of the engine with RUNNING requests."""
    random = np.random.default_rng([seed, setup.burst, setup.requests])
    count = setup.burst or setup.requests
    lengths = [np.clip(np.rint(random.normal(m, m / 4, count)), 16, 2 * m).astype(int) for m in setup.lengths]
    at_s = np.zeros(count)
    if setup.requests:
        at_s = random.exponential(setup.lengths[1] / (setup.load * capacity), count).cumsum()
    # 40 % of the readers at 3/4 of the others' rate, as the paper's 15 and 20 tokens/s
    together = setup.share * capacity / (setup.burst or 3 * RUNNING)
    fast = together / (0.6 + 0.4 * 0.75)
    rates = np.where(random.random(count) < 0.4, 0.75 * fast, fast)
    return [
        Request(float(t), int(p), int(o), reader_rate=float(r))
        for t, p, o, r in zip(at_s, *lengths, rates, strict=True)
    ]


Make = Callable[[EngineConfig], CoreEngine]
"""Makes an engine of some model."""


def embedded(grow: int, threads: int) -> Make:
    """Return what makes engines of the embedded target."""
    return lambda config: load(family.path("target"), config, grow=grow, threads=threads)


def of_shape(shape: str, device: str, threads: int) -> Make:
    """Return what makes engines of one model with random weights on that device."""
    _, loaded = alone(partial(models, SHAPES[shape], torch.device(device)))
    return lambda config: start(Model(loaded), random_info(shape), config, threads=threads)


def engine(kind: Kind, setup: Setup, make: Make) -> CoreEngine:
    """An engine of this kind with the setup's memory."""
    tokens = sum(setup.lengths) * (setup.burst or 3 * RUNNING)
    blocks = tokens // 3 // BLOCK if setup.binding else 2 * tokens // BLOCK
    config = EngineConfig(
        kv_blocks=blocks,
        block_size=BLOCK,
        batching=BatchingChoice(
            name=kind.batching, parameters={} if kind.chunk is None else {"chunk": kind.chunk}
        ),
        scheduling=SchedulingChoice(name=kind.scheduling),
        max_running=RUNNING,
        max_sessions=256,
        max_waiting=256,
        host_memory=kind.host_memory,
    )
    return make(config)


async def serve(make: Make, kind: Kind, setup: Setup, work: list[Request]) -> Outcome:
    """All requests, and what their readers made of it."""
    target = engine(kind, setup, make)
    await _one(target, 10**6, Request(0.0, 64, 32, reader_rate=100.0), time.monotonic())  # warms up
    begin = time.monotonic()
    streams = await asyncio.gather(*(_one(target, i, r, begin) for i, r in enumerate(work)))
    stats = await target.stats()
    await target.close()
    return Outcome(assess(streams), stats)


async def _one(target: CoreEngine, number: int, request: Request, begin: float) -> ReaderStream:
    await asyncio.sleep(max(0.0, begin + request.arrival_s - time.monotonic()))
    arrival = time.monotonic()
    prompt = [16 + (number * 31 + i * 7) % 1000 for i in range(request.prompt_tokens)]
    sampling = Sampling(max_tokens=request.output_tokens, ignore_eos=True, reader_rate=request.reader_rate)
    session = await target.open(prompt, sampling)
    times: list[float] = []
    async with aclosing(session.generate()) as stream:
        async for tokens in stream:
            times += [time.monotonic()] * len(tokens.ids)
    await session.cancel()
    return ReaderStream(arrival, times, request.reader_rate)


async def capacity(make: Make, setup: Setup) -> float:
    """Tokens/s of the engine with as many requests as can run at once, prefill included."""
    count = min(RUNNING, (setup.burst or 3 * RUNNING) // 3) if setup.binding else RUNNING
    work = [Request(0.0, *setup.lengths, reader_rate=100.0)] * count
    found = await serve(make, KINDS["FCFS"], setup, work)
    return found.quality.throughput


Serve = Callable[[Kind, Setup, list[Request]], Awaitable[Outcome]]
"""`serve` on engines of some model."""


async def choose_chunks(
    kinds: Mapping[str, Kind], setup: Setup, capacity: float, chunks: Sequence[int], serve: Serve
) -> dict[str, Kind]:
    """Return the kinds, each chunking baseline with the chunk of the highest QoS on requests that are not judged."""
    work, chosen = requests(setup, capacity, CHOOSING), dict(kinds)
    for name, kind in kinds.items():
        if kind.batching == "chunked":
            tried = [replace(kind, chunk=chunk) for chunk in chunks]
            qos = [(await serve(one, setup, work)).quality.qos for one in tried] if len(tried) > 1 else [0.0]
            chosen[name] = tried[qos.index(max(qos))]
    return chosen


def in_turn(kinds: Mapping[str, Kind], turn: int) -> list[str]:
    """Another one first in every round: a machine that gets slower is not always so for the same."""
    names = list(kinds)
    first = turn % len(names)
    return names[first:] + names[:first]


async def compare(
    make: Make,
    kinds: Mapping[str, Kind],
    setups: tuple[Setup, ...],
    rounds: int,
    chunks: Sequence[int] = CHUNKS,
) -> tuple[dict[tuple[str, str], list[Outcome]], dict[tuple[str, str], Kind]]:
    """(outcomes by setup and kind, one a round; what was chosen for each)."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    chosen: dict[tuple[str, str], Kind] = {}
    for turn, setup in report.progress([(r, s) for r in range(rounds) for s in setups], "setups"):
        tokens_per_s = await capacity(make, setup)
        if not turn:
            best = await choose_chunks(kinds, setup, tokens_per_s, chunks, partial(serve, make))
            chosen |= {(setup.name, name): kind for name, kind in best.items()}
        work = requests(setup, tokens_per_s, seed=turn)
        for name in in_turn(kinds, turn):
            outcome = await serve(make, chosen[setup.name, name], setup, work)
            found.setdefault((setup.name, name), []).append(outcome)
    return found, chosen


def _row(name: str, kind: Kind, outcomes: list[Outcome]) -> list[str]:
    q = [o.quality for o in outcomes]
    stats = outcomes[-1].stats
    return [
        name,
        "" if kind.chunk is None else str(kind.chunk),
        *(f"{median(getattr(x, k) for x in q):.2f}" for k in ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s")),
        *(f"{median(getattr(x, k) for x in q):.0f}" for k in ("throughput", "effective_throughput")),
        f"{median(x.stall_mean_s for x in q):.3f}",
        f"{median(x.qos for x in q):.0f}",
        f"{stats.preempted}, {stats.tokens_loaded}, {stats.tokens_recomputed}",
    ]


COLUMNS = [
    "",
    "chunk",
    "TTFT s",
    "P50",
    "P99",
    "tokens/s",
    "effective",
    "stall s",
    "QoS",
    "preempted, loaded, recomputed",
]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("tokenflow", __doc__)
    parser.add_argument("--grow", type=int, default=2, help="how many times dearer the target is (default 2)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="setups whose name has this in it")
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=CHUNKS, help="for baselines to choose from, tokens"
    )
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape")
    parser.add_argument("--device", default="cpu", help="of torch, with --shape: cpu, cuda … (default cpu)")
    parser.add_argument(
        "--longer", type=int, default=1, help="factor on the lengths of prompts and answers (default 1)"
    )
    parser.add_argument(
        "--ablation", action="store_true", help="only the second tier's parts, memory binding"
    )
    options = parser.parse_args(arguments)
    kinds = ABLATIONS if options.ablation else KINDS
    setups = tuple(s for s in SETUPS if s.binding and s.burst) if options.ablation else SETUPS
    setups = tuple(s.longer(options.longer) for s in setups if options.only in s.name)
    if options.shape is None:
        make, what = embedded(options.grow, options.threads), f"target × {options.grow}"
    else:
        make = of_shape(options.shape, options.device, options.threads)
        what = f"shape {options.shape} on {options.device}"
    if options.device == "cpu":
        what += "; KV link emulated"
    found, chosen = asyncio.run(compare(make, kinds, setups, options.rounds, options.chunks))
    for setup in setups:
        report.table(
            f"{setup.name} ({what})",
            COLUMNS,
            [_row(name, chosen[setup.name, name], found[setup.name, name]) for name in kinds],
        )
    if options.ablation:
        spans = {n: mean(o.quality.span_s for s in setups for o in found[s.name, n]) for n in kinds}
        report.figures(
            "tokenflow_ablation",
            {n: round(spans[n] / spans["TokenFlow"], 3) for n in kinds if n != "TokenFlow"},
        )
        return
    report.figures("tokenflow", _figures(found))


def _figures(found: dict[tuple[str, str], list[Outcome]]) -> dict[str, float]:
    def ratios(figure: str, burst: bool | None = None) -> list[float]:
        return [
            median(
                getattr(ours.quality, figure) / getattr(theirs.quality, figure)
                for ours, theirs in zip(found[s.name, "TokenFlow"], found[s.name, "FCFS"], strict=True)
            )
            for s in SETUPS
            if (s.name, "FCFS") in found and (burst is None or bool(s.burst) == burst)
        ]

    stalls = [
        median(
            ours.quality.stall_mean_s - theirs.quality.stall_mean_s
            for ours, theirs in zip(found[s.name, "TokenFlow"], found[s.name, "FCFS"], strict=True)
        )
        for s in SETUPS
        if (s.name, "FCFS") in found
    ]
    stats = [o.stats for (_, kind), outcomes in found.items() if kind == "TokenFlow" for o in outcomes]
    decisions = sum(s.decisions for s in stats)
    return {
        "burst_p99_ttft_ratio": round(max(ratios("ttft_p99_s", burst=True), default=0.0), 3),
        "burst_effective_ratio": round(max(ratios("effective_throughput", burst=True), default=0.0), 3),
        "poisson_effective_ratio": round(max(ratios("effective_throughput", burst=False), default=0.0), 3),
        "effective_ratio_min": round(min(ratios("effective_throughput")), 3),
        "raw_ratio_min": round(min(ratios("throughput")), 3),
        "stall_added_s": round(max(stalls), 3),
        "decision_ms": round(sum(s.decision_s for s in stats) / max(decisions, 1) * 1e3, 4),
    }
