"""The window over time, live: static, dynamic and AWC while the link's round-trip time changes.

    python -m benchmarks.window_live [--rounds 3] [--phase-s 6] [--without-drafter]

The embedded pair with the target grown, in processes of their own, driven by the executor over the wire. The
device's link is emulated; its RTT steps 5 → 30 → 80 → 5 ms while long answers are given one after the other.
Every policy runs through all phases, in alternation; tokens/s count over the whole run. The cloud has a
drafter of its own for fused rounds, as the application does, unless told otherwise. Every answer must be
the target's own, token for token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from itertools import cycle
from statistics import mean, median

from benchmarks import report
from benchmarks.processes import engine_process
from cluster.link import Link, LinkProfile
from cluster.remote import Connection, connect
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.engines import TorchSettings
from deployments.executor import Executor
from deployments.job import Job
from engine import family
from engine.base import Engine, Sampling
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer
from policies.window import WindowPolicy, WindowState, window

RTTS_S = (0.005, 0.030, 0.080, 0.005)
MAX_TOKENS = 160
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
    """One RTT of a run. windows: those that were chosen there; 1 is fused."""

    tokens_per_s: float
    windows: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy through all phases. chosen: when which window was chosen, in seconds since the beginning."""

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
        self._assignment: Assignment
        self._session = 0

    async def run(self, name: str, phase_s: float) -> Run:
        """Answer prompts until all phases are over; the answer under way then counts as far as it got."""
        chosen: list[tuple[float, int]] = []
        executor = Executor(
            self._assign, self._dial, lambda: Watched(window.create(name, **POLICIES[name]), chosen)
        )
        fused = EndpointInfo("drafter", "", "drafter") if "drafter" in self._connections else None
        device = EndpointInfo("device", "", "device", rtt_s=RTTS_S[0])
        target = EndpointInfo("target", "", "target")
        self._assignment = Assignment(
            "speculative", target, device, device="device", fused=fused, batch_limit=64
        )
        trace = tuple((i * phase_s, rtt_s) for i, rtt_s in enumerate(RTTS_S))
        self._link = Link(LinkProfile(rtt_trace=trace))
        began, lossless = time.monotonic(), True
        end = began + phase_s * len(RTTS_S)
        said: list[tuple[float, int]] = []
        for index in cycle(range(len(self._prompts))):
            ids = await self._answer(executor, self._prompts[index], end, said)
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

    async def _answer(
        self, executor: Executor, prompt: Sequence[int], end: float, said: list[tuple[float, int]]
    ) -> list[int]:
        """The answer, or what there was of it at `end`; said: gets when how many tokens came."""
        self._session += 1
        ids: list[int] = []
        job = Job(self._session, tuple(prompt), Sampling(max_tokens=MAX_TOKENS))
        async with aclosing(executor.run(job)) as stream:
            async for delta in stream:
                ids += delta.ids
                said.append((time.monotonic(), len(delta.ids)))
                if time.monotonic() >= end:
                    break
        return ids

    async def _assign(self, wishes: Wishes) -> Assignment:
        return self._assignment

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        link = self._link if endpoint.engine == "device" else None
        return self._connections[endpoint.engine].engine("engine", link)


async def _cloud_only(target: Connection, prompts: list[list[int]]) -> dict[int, Answer]:
    engine = target.engine("engine")
    answers = {}
    for index, prompt in enumerate(prompts):
        await engine.open(10**6 + index, prompt, Sampling(max_tokens=MAX_TOKENS))
        answers[index] = tuple([token async for part in engine.generate(10**6 + index) for token in part.ids])
        await engine.cancel(10**6 + index)
    return answers


async def compare(
    grow: int, rounds: int, phase_s: float, prompts: list[list[int]], with_drafter: bool
) -> dict[str, list[Run]]:
    """All runs by policy."""
    small = TorchSettings(model="small", threads=1, max_waiting=8)
    settings = {"target": TorchSettings(model="target", grow=grow, threads=1, max_waiting=8), "device": small}
    if with_drafter:
        settings["drafter"] = small
    runs: dict[str, list[Run]] = {name: [] for name in POLICIES}
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(engine_process(s)) for name, s in settings.items()}
        connections = {name: await connect(address) for name, address in addresses.items()}
        bench = Bench(connections, prompts, await _cloud_only(connections["target"], prompts))
        await bench.run("static", 0.5)  # warms up
        for _ in report.progress(range(rounds), "static, dynamic, AWC"):
            for name, found in runs.items():
                found.append(await bench.run(name, phase_s))
        for connection in connections.values():
            await connection.close()
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the policies (default 3)")
    parser.add_argument("--phase-s", type=float, default=6.0, help="seconds at each RTT (default 6)")
    parser.add_argument("--grow", type=int, default=8, help="how many times dearer the target is")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--without-drafter", action="store_true", help="fused rounds are the target alone")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(family.path("target"))
    prompts = [
        tokenizer.render_chat([{"role": "user", "content": question}])
        for question in heldout_questions(options.prompts, seed=4)
    ]
    runs = asyncio.run(
        compare(options.grow, options.rounds, options.phase_s, prompts, not options.without_drafter)
    )
    ratios = {
        name: [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs["awc"], runs[name], strict=True)]
        for name in runs
    }
    report.table(
        f"Target × {options.grow}, {options.phase_s:g} s at each RTT of an emulated link; "
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
    lossless = all(run.lossless for found in runs.values() for run in found)
    report.figures(
        "window_live",
        {
            "awc_over_static": round(median(ratios["static"]), 3),
            "awc_over_dynamic": round(median(ratios["dynamic"]), 3),
            "lossless": lossless,
        },
    )
    if not lossless:
        sys.exit(1)


def _shown(phases: list[Phase]) -> str:
    sizes = [size for phase in phases for size in phase.windows]
    drafted = [size for size in sizes if size > 1]
    fused = 1 - len(drafted) / max(1, len(sizes))
    speed = median(phase.tokens_per_s for phase in phases)
    return f"{speed:.0f}, γ {mean(drafted) if drafted else 0:.1f}, {fused:.0%}"


if __name__ == "__main__":
    main()
