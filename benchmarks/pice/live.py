"""PICE, live: the cloud's places bind, four devices expand its sketches, and questions come faster than it can answer.

    tandem benchmark pice_live [--requests 80] [--rounds 3] [--profile jetson-orin-qwen15b] [--model small]

The embedded models in this process, over the wire; their tokens are their own. Times are emulated, all of them so many
times as quick as the hardware's (--quicker). The target: at most 20 answers at once at 6.8 tokens/s each, as PICE's
table III has Llama3-70B on four A100s: 16.33 answers a minute, of about 500 tokens; a step takes as long with however
many positions. Devices: a profile of `cluster/configs`, by default with that table's speed, over links of 20 ms.
Questions have long answers, of about 140 tokens, and arrive by chance: 1.84 in the time in which the cloud can answer
one, as the paper's 30 a minute beside those 16.33. Every answer may be sketched, whatever the question's wording.

Rivals beside cloud-only: what the devices cost spent on places in the cloud (four developer kits of 1,999 dollars,
NVIDIA's list price of 2022; a place is a twentieth of four A100s at 8,000, the least that a new one cost in 2026), as
if they made no step longer; and speculation with the same devices, of which each drafts for so many answers at once,
and so many tokens, as gave the most requests/min on questions of another seed.

All in alternation, another one first in every round; figures are medians of the rounds' ratios to cloud-only.
throughput_x: requests/min, from the first arrival to the last answer's end. latency_cut: of the mean from arrival to
end. facts_kept: facts stated. late_steps: share of the target's steps for which this machine took longer than emulated,
in the worst run; where it is not near 0, the machine was too busy.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean, median

import msgspec
import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.executor import local_executor
from tandem.benchmarks.pice.embedded import TARGET, TEXT, Answer, ask, sketching, spoken
from tandem.benchmarks.pice.paced import paced
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import DeviceProfile, load_profile
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Delta
from tandem.deployments.request.pools import VERIFIER
from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.config import EngineConfig, SchedulingChoice
from tandem.engine.torch.engine import load
from tandem.policies.speculation.window import StaticWindow
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item
from tandem.training.family.prompts import heldout
from tandem.training.family.scoring import fact_accuracy

PLACES, DEVICES = 20, 4
SESSIONS = 256  # that may be open: those between two rounds have work for no place
ANSWER_TOKENS = 500  # the paper's, about
CLOUD_PER_MINUTE, ASKED_PER_MINUTE = 16.33, 30.0
TOKENS_PER_S = CLOUD_PER_MINUTE * ANSWER_TOKENS / 60 / PLACES  # of an answer
LOAD = ASKED_PER_MINUTE / CLOUD_PER_MINUTE
RTT_S = 0.02
DEVICE_USD, GPU_USD, GPUS = 1999, 8000, 4
MORE_PLACES = ceil(DEVICES * DEVICE_USD / (GPUS * GPU_USD / PLACES))
DRAFTING = ((2, 4), (3, 4), (4, 3), (5, 2))
"""Answers that a device drafts for at once, and tokens a round, to choose from."""
CHOOSING = 1000  # the seed that is chosen on
SHORT = heldout(1, ["fact"])[0]


@dataclass(frozen=True, slots=True)
class System:
    """A way to serve.

    mode: of its requests.
    places: in the cloud.
    drafting: answers that a device drafts for at once; the others are the cloud's alone.
    window: γ.
    """

    mode: str
    places: int = PLACES
    drafting: int = 0
    window: int = 1


SYSTEMS = {
    "cloud-only": System("cloud"),
    "PICE": System("sketch"),
    "more places": System("cloud", places=PLACES + MORE_PLACES),
    "speculation": System("speculative"),
}


@dataclass(frozen=True, slots=True)
class Edge:
    """The devices, and how quick everything is.

    profile: their speed's name.
    model: of the family, that they have.
    count: how many there are.
    settings: of sketches.
    quicker: times as quick as the hardware that is emulated, they, the target, and the links.
    """

    profile: str = "jetson-orin-qwen15b"
    model: str = "small"
    count: int = DEVICES
    settings: SketchSettings = field(default_factory=SketchSettings)
    quicker: float = 2.0

    @property
    def names(self) -> list[str]:
        return [f"device-{n}" for n in range(self.count)]

    @property
    def speed(self) -> DeviceProfile:
        """Return the speed of a device."""
        profile = load_profile(self.profile)
        if profile.decode_tokens_per_s is None or profile.prefill_tokens_per_s is None:
            return profile
        return msgspec.structs.replace(
            profile,
            prefill_tokens_per_s=profile.prefill_tokens_per_s * self.quicker,
            decode_tokens_per_s=profile.decode_tokens_per_s * self.quicker,
        )

    @property
    def step_s(self) -> float:
        """Seconds of a target's step."""
        return 1 / (TOKENS_PER_S * self.quicker)

    @property
    def rtt_s(self) -> float:
        return RTT_S / self.quicker


EDGE = Edge()


@dataclass(frozen=True, slots=True)
class Load:
    """Questions and their arrival times, seconds from the start."""

    items: list[Item]
    at_s: list[float]

    @classmethod
    def draw(cls, requests: int, load: float, step_s: float, seed: int) -> Load:
        """Draw the questions. load: those that arrive in the time in which the cloud alone can answer one."""
        items = heldout(requests, LONG_KINDS, seed)
        answer_s = fmean(len(TEXT.encode(f" {item.answer}")) for item in items) * step_s / PLACES
        gaps_s = np.random.default_rng(seed).exponential(answer_s / load, requests)
        return cls(items, gaps_s.cumsum().tolist())


@dataclass(frozen=True, slots=True)
class Served:
    """One run.

    latency_s, first_s: of each answer from its arrival, until its end and until its first token.
    per_minute: answers, from the first arrival to the last end.
    facts: share of those asked for that were stated.
    llm_tokens: that the target wrote for an answer, on average.
    sketched: share of the answers.
    late: share of the target's steps.
    """

    latency_s: list[float]
    first_s: list[float]
    per_minute: float
    facts: float
    llm_tokens: float
    sketched: float
    late: float

    @property
    def mean_s(self) -> float:
        return fmean(self.latency_s)


@asynccontextmanager
async def running(system: System, edge: Edge) -> AsyncIterator[tuple[Executor, Counter[str]]]:
    """Run everything that the system needs; yields the executor, and counters of the target's steps, all and late
    ones."""
    config = EngineConfig(
        max_sessions=SESSIONS,
        max_running=system.places,
        max_waiting=4096,
        scheduling=SchedulingChoice(name="fcfs", parameters={"interval_s": 0.0}),
    )
    target, pace = paced(TARGET, config, edge.step_s)
    small = load(family.path(edge.model), EngineConfig(), device="cpu", threads=1)
    devices = {name: Device(small, edge.speed) for name in edge.names}
    links = {name: Link(LinkProfile(rtt_s=edge.rtt_s)) for name in devices}
    steps = Counter[str]()
    try:
        async with serve_engines({VERIFIER: target, **devices}) as endpoint:
            connection = await connect(endpoint.address)
            engines: dict[str, Engine] = {VERIFIER: connection.engine(VERIFIER)}
            engines |= {
                name: spoken(connection.engine(name, link), edge.model) for name, link in links.items()
            }

            def dial(endpoint: EndpointInfo) -> Engine:
                return engines[endpoint.name]

            executor = local_executor(
                dial,
                lambda: StaticWindow(system.window),
                devices=[device.record(name, rtt_s=edge.rtt_s) for name, device in devices.items()],
                sketching=sketching(edge.settings),
            )
            yield executor, steps
            await executor.settled()
            await connection.close()
    finally:
        await target.close()
        await small.close()
        steps.update(all=pace.steps, late=pace.late)


async def serve(system: System, edge: Edge, load: Load) -> Served:
    """All of the load."""
    async with running(system, edge) as (executor, steps):
        front = Front(executor, system, edge)
        await front.answer(SHORT, time.monotonic())  # warms up, and tells the target's pace
        began_s = time.monotonic()
        answered = await asyncio.gather(
            *(front.answer(item, began_s + at_s) for item, at_s in zip(load.items, load.at_s, strict=True))
        )
        ended_s = time.monotonic()
    answers = [answer for answer, _, _ in answered]
    return Served(
        latency_s=[latency_s for _, _, latency_s in answered],
        first_s=[first_s for _, first_s, _ in answered],
        per_minute=60 * len(answers) / (ended_s - began_s - load.at_s[0]),
        facts=fact_accuracy(load.items, [answer.text for answer in answers]),
        llm_tokens=fmean(answer.llm_tokens for answer in answers),
        sketched=fmean(answer.sketched for answer in answers),
        late=steps["late"] / steps["all"],
    )


class Front:
    """Entry of requests. Those of speculation wait here for a place in the cloud, so that no device waits with
    them."""

    def __init__(self, executor: Executor, system: System, edge: Edge) -> None:
        self._executor, self._system = executor, system
        self._places = asyncio.Semaphore(system.places)
        self._drafting = Counter(dict.fromkeys(edge.names, 0))  # answers by device

    async def answer(self, item: Item, at_s: float) -> tuple[Answer, float, float]:
        """Return the outcome of a question that arrives at `at_s`, and the seconds to its first token and its end."""
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        if self._system.drafting:
            async with self._places:
                deltas, times_s = await self._drafted(item)
        else:
            deltas, times_s = await self._run(item, self._system.mode, None)
        return Answer.of(deltas), times_s[0] - at_s, times_s[-1] - at_s

    async def _drafted(self, item: Item) -> tuple[list[Delta], list[float]]:
        """Answer with the least busy device, if it has room."""
        device, count = min(self._drafting.items(), key=lambda one: one[1])
        if count >= self._system.drafting:
            return await self._run(item, "cloud", None)
        self._drafting[device] += 1
        try:
            return await self._run(item, self._system.mode, device)
        finally:
            self._drafting[device] -= 1

    async def _run(self, item: Item, mode: str, device: str | None) -> tuple[list[Delta], list[float]]:
        deltas, times_s = list[Delta](), list[float]()
        async for delta in self._executor.run(ask(item, mode, device)):
            deltas.append(delta)
            times_s.append(time.monotonic())
        return deltas, times_s


async def choose_drafting(edge: Edge, load: Load, choices: Sequence[tuple[int, int]]) -> System:
    """Speculation with what gives the most requests/min."""
    tried = [replace(SYSTEMS["speculation"], drafting=most, window=window) for most, window in choices]
    found = {
        system: (await serve(system, edge, load)).per_minute
        for system in report.progress(tried, "choosing drafting")
    }
    return max(found, key=lambda system: found[system])


async def compare(
    systems: Mapping[str, System], edge: Edge, requests: int, load: float, rounds: int
) -> dict[str, list[Served]]:
    """Each system's runs, one a round; in each the same questions, other ones than in the others."""
    served: dict[str, list[Served]] = {name: [] for name in systems}
    names = list(systems)
    turns = [
        (turn, name)
        for turn in range(rounds)
        for name in names[turn % len(names) :] + names[: turn % len(names)]
    ]
    for turn, name in report.progress(turns, "systems"):
        served[name].append(
            await serve(systems[name], edge, Load.draw(requests, load, edge.step_s, seed=turn))
        )
    return served


def figures(served: Mapping[str, Sequence[Served]]) -> dict[str, float]:
    """Return the figures of the bars, and the rivals' own."""
    cloud = served["cloud-only"]

    def ratio(name: str, figure: str) -> float:
        return median(
            getattr(ours, figure) / getattr(theirs, figure)
            for ours, theirs in zip(served[name], cloud, strict=True)
        )

    found = {"throughput_x": ratio("PICE", "per_minute"), "latency_cut": 1 - ratio("PICE", "mean_s")}
    for name in ("more places", "speculation"):
        prefix = name.replace(" ", "_")
        found[f"{prefix}_throughput_x"] = ratio(name, "per_minute")
        found[f"{prefix}_latency_cut"] = 1 - ratio(name, "mean_s")
    found["facts_kept"] = ratio("PICE", "facts")
    found["llm_token_share"] = ratio("PICE", "llm_tokens")
    found["sketched_share"] = median(run.sketched for run in served["PICE"])
    found["late_steps"] = max(run.late for runs in served.values() for run in runs)
    return {name: round(value, 3) for name, value in found.items()}


def _row(name: str, runs: Sequence[Served]) -> list[str]:
    return [
        name,
        report.spread([run.per_minute for run in runs]),
        report.spread([run.mean_s for run in runs]),
        report.spread([float(np.quantile(run.latency_s, 0.95)) for run in runs]),
        report.spread([fmean(run.first_s) for run in runs]),
        f"{median(run.facts for run in runs):.3f}",
        f"{median(run.llm_tokens for run in runs):.0f}",
        f"{median(run.sketched for run in runs):.2f}",
        f"{max(run.late for run in runs):.3f}",
    ]


COLUMNS = (
    "",
    "requests/min",
    "mean latency s",
    "P95 s",
    "mean TTFT s",
    "facts",
    "target's tokens",
    "sketched",
    "late steps",
)


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("pice_live", __doc__)
    parser.add_argument("--requests", type=int, default=80, help="in each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system (%(default)s)")
    parser.add_argument(
        "--load", type=float, default=LOAD, help="in relation to the cloud alone (%(default).2f)"
    )
    parser.add_argument("--profile", default=EDGE.profile, help="of the devices (%(default)s)")
    parser.add_argument("--model", default=EDGE.model, help="that they have (%(default)s)")
    parser.add_argument("--candidates", type=int, default=1, help="expansions that compete (%(default)s)")
    parser.add_argument("--quicker", type=float, default=EDGE.quicker, help="than the hardware (%(default)s)")
    options = parser.parse_args(arguments)
    settings = SketchSettings(candidates=options.candidates)
    edge = Edge(options.profile, options.model, settings=settings, quicker=options.quicker)
    chosen = asyncio.run(
        choose_drafting(edge, Load.draw(options.requests, options.load, edge.step_s, CHOOSING), DRAFTING)
    )
    systems = {**SYSTEMS, "speculation": chosen}
    served = asyncio.run(compare(systems, edge, options.requests, options.load, options.rounds))
    told = {
        "more places": f"… with {PLACES + MORE_PLACES} places",
        "speculation": f"speculation: {chosen.drafting} answers a device, γ = {chosen.window}",
    }
    report.table(
        f"{options.requests} questions, {options.load:.2f} × what the cloud alone can answer; {PLACES} places, "
        f"{edge.count} devices ({edge.profile}); times emulated",
        COLUMNS,
        [_row(told.get(name, name), runs) for name, runs in served.items()],
    )
    report.figures("pice_live", figures(served))


if __name__ == "__main__":
    main()
