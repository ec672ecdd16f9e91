"""The window over time, live: static, dynamic and AWC while the link's round-trip time changes.

    tandem benchmark window_live [--rounds 3] [--phase-s 6] [--without-drafter]

The embedded pair with the target grown, in processes of their own, driven by the executor over the wire. The
device's link is emulated; its RTT steps 5 → 30 → 80 → 5 ms while long answers are given one after the other.
Every policy runs through all phases, in alternation; tokens/s count over the whole run. Every answer must be
the target's own, token for token.

Twice: with a drafter of the cloud's own for fused rounds, as the application has it (equal to the device but for the
link, so that fused rounds are the best at every RTT, which a static window never chooses), and without, where fused
rounds are the target alone. The figures *_without_drafter are what a policy should be judged by.
--without-drafter leaves out the first.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from itertools import cycle
from statistics import mean, median

from tandem.benchmarks import report
from tandem.benchmarks.executor import device_record, local_executor, new_job
from tandem.benchmarks.processes import engine_process
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.deployments.pools.engines import TorchSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Delta
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.text.tokenizer import Tokenizer
from tandem.policies.speculation.window import WindowPolicy, WindowState, window
from tandem.training.family.prompts import heldout_questions

RTTS_S = (0.005, 0.030, 0.080, 0.005)
SAMPLING = Sampling(max_tokens=160)
POLICIES = {"static": {"size": 4}, "dynamic": {"start": 4}, "awc": {}}
Answer = tuple[int, ...]


class Watched:
    """A window policy, and when it chose what."""

    def __init__(self, policy: WindowPolicy, chosen: list[tuple[float, int]]) -> None:
        self._policy, self._chosen = policy, chosen

    def choose(self, state: WindowState) -> int:
        size = self._policy.choose(state)
        self._chosen.append((time.monotonic(), size))
        return size


@dataclass(frozen=True, slots=True)
class Phase:
    """One RTT of a run.

    windows: windows chosen there; 1 is fused.
    """

    tokens_per_s: float
    windows: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy through all phases.

    tokens_per_s: over the whole run.
    phases: RTT by RTT.
    chosen: when which window was chosen, in seconds since the beginning.
    lossless: whether every answer was the target's own.
    """

    tokens_per_s: float
    phases: list[Phase]
    chosen: list[tuple[float, int]]
    lossless: bool


class Bench:
    """The deployment, and what the target alone answers."""

    def __init__(
        self, connections: dict[str, Connection], prompts: list[list[int]], expected: dict[int, Answer]
    ) -> None:
        self._connections, self._prompts, self._expected = connections, prompts, expected
        self._link = Link(LinkProfile())

    async def run(self, name: str, phase_s: float) -> Run:
        """Answer prompts until all phases are over; the answer under way then counts as far as it got."""
        chosen: list[tuple[float, int]] = []
        executor = local_executor(
            self._dial,
            lambda: Watched(window.create(name, **POLICIES[name]), chosen),
            drafter="drafter" in self._connections,
            devices=[device_record("device", RTTS_S[0])],
        )
        trace = tuple((i * phase_s, rtt_s) for i, rtt_s in enumerate(RTTS_S))
        self._link = Link(LinkProfile(rtt_trace=trace))
        began, lossless = time.monotonic(), True
        end = began + phase_s * len(RTTS_S)
        said: list[tuple[float, int]] = []
        for index in cycle(range(len(self._prompts))):
            job = new_job(self._prompts[index], SAMPLING, "speculative", "device")
            ids = await _answer(executor.run(job), end, said)
            lossless = lossless and tuple(ids) == self._expected[index][: len(ids)]
            if time.monotonic() >= end:
                break
        elapsed_s = time.monotonic() - began
        await executor.settled()

        def by_phase(noted: list[tuple[float, int]]) -> list[list[int]]:
            phases: list[list[int]] = [[] for _ in RTTS_S]
            for when, what in noted:
                phases[min(int((when - began) / phase_s), len(RTTS_S) - 1)].append(what)
            return phases

        phases = [
            Phase(sum(tokens) / phase_s, windows)
            for tokens, windows in zip(by_phase(said), by_phase(chosen), strict=True)
        ]
        since = [(when - began, size) for when, size in chosen]
        return Run(sum(n for _, n in said) / elapsed_s, phases, since, lossless)

    def _dial(self, endpoint: EndpointInfo) -> Engine:
        link = self._link if endpoint.name == "device" else None
        return self._connections[endpoint.name].engine("engine", link)


async def _answer(
    answer: AsyncGenerator[Delta, None], end: float, said: list[tuple[float, int]]
) -> list[int]:
    """Return the answer's tokens up to the time `end`; appends times and token counts to `said`."""
    ids: list[int] = []
    async with aclosing(answer) as stream:
        async for delta in stream:
            ids += delta.ids
            said.append((time.monotonic(), len(delta.ids)))
            if time.monotonic() >= end:
                break
    return ids


async def _cloud_only(target: Connection, prompts: list[list[int]]) -> dict[int, Answer]:
    engine = target.engine("engine")
    answers = {}
    for index, prompt in enumerate(prompts):
        session = await engine.open(prompt, SAMPLING)
        answers[index] = tuple([token async for part in session.generate() for token in part.ids])
        await session.cancel()
    return answers


async def compare(
    grow: int, rounds: int, phase_s: float, prompts: list[list[int]], with_drafter: bool
) -> dict[str, list[Run]]:
    """All runs by policy."""
    small = TorchSettings(model="small", threads=1, max_waiting=8)
    settings = {
        "verifier": TorchSettings(model="target", grow=grow, threads=1, max_waiting=8),
        "device": small,
    }
    if with_drafter:
        settings["drafter"] = small
    runs: dict[str, list[Run]] = {name: [] for name in POLICIES}
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(engine_process(s)) for name, s in settings.items()}
        connections = {name: await connect(address) for name, address in addresses.items()}
        bench = Bench(connections, prompts, await _cloud_only(connections["verifier"], prompts))
        await bench.run("static", 0.5)  # warms up
        for _ in report.progress(range(rounds), "static, dynamic, AWC"):
            for name, found in runs.items():
                found.append(await bench.run(name, phase_s))
        for connection in connections.values():
            await connection.close()
    return runs


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("window_live", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the policies (default 3)")
    parser.add_argument("--phase-s", type=float, default=6.0, help="seconds at each RTT (default 6)")
    parser.add_argument("--grow", type=int, default=8, help="how many times dearer the target is")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument(
        "--without-drafter", action="store_true", help="only that fused rounds are the target alone"
    )
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(options.prompts, seed=4)
    ]
    figures: dict[str, float] = {}
    lossless = True
    for with_drafter in (False,) if options.without_drafter else (True, False):
        runs = asyncio.run(compare(options.grow, options.rounds, options.phase_s, prompts, with_drafter))
        ratios = {
            name: [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs["awc"], runs[name], strict=True)]
            for name in runs
        }
        report.table(
            f"Target × {options.grow}, {'a' if with_drafter else 'no'} drafter in the cloud, "
            f"{options.phase_s:g} s at each RTT of an emulated link; "
            "by phase: tokens/s, mean γ with the device, share of rounds fused",
            ["", "tokens/s", "AWC ÷ this", *(f"{rtt_s * 1e3:.0f} ms" for rtt_s in RTTS_S)],
            [
                [
                    name,
                    report.spread([run.tokens_per_s for run in found]),
                    report.spread(ratios[name]),
                    *(_shown([run.phases[i] for run in found]) for i in range(len(RTTS_S))),
                ]
                for name, found in runs.items()
            ],
        )
        lossless = lossless and all(run.lossless for found in runs.values() for run in found)
        suffix = "" if with_drafter else "_without_drafter"
        figures |= {
            f"awc_over_{other}{suffix}": round(median(ratios[other]), 3) for other in ("static", "dynamic")
        }
    report.figures("window_live", {**figures, "lossless": lossless})
    if not lossless:
        sys.exit(1)


def _shown(phases: list[Phase]) -> str:
    sizes = [size for phase in phases for size in phase.windows]
    drafted = [size for size in sizes if size > 1]
    fused = 1 - len(drafted) / max(1, len(sizes))
    speed = median(phase.tokens_per_s for phase in phases)
    return f"{speed:.0f}, γ {mean(drafted) if drafted else 0:.1f}, {fused:.0%}"
