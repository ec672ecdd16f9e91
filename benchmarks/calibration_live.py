"""The live side of the calibration: a target and emulated devices on this machine, and what their work costs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

import numpy as np

from cluster.link import Link, LinkProfile
from cluster.profile import DeviceProfile
from cluster.remote import Connection, RemoteEngine
from cluster.simulator.hardware import MeasuredTimer
from cluster.simulator.workload import Request
from cluster.tokenlog import Origin
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.executor import Executor
from deployments.job import Job
from deployments.racing import Racing, RacingSettings
from deployments.settings import PolicyChoice
from engine.base import Draft, Engine, EngineStats, Sampling
from policies.window import StaticWindow

DEVICES = 24
MAX_TOKENS = 96
WINDOW = 4
READER_RATE = 20.0  # tokens/s, in races
RACING = RacingSettings(migration=PolicyChoice(name="buffered"))
RAMP_S = np.geomspace(0.6, 0.12, 48)  # between the requests of a profile: ever more of them at once
SAMPLE_S = 0.01  # less than a step takes
PROFILE = DeviceProfile(
    name="emulated",
    hardware="emulated",
    model="small",
    source="invented for this benchmark: a device of the speed of a small board",
    prefill_tokens_per_s=800.0,
    decode_tokens_per_s=80.0,
    sessions=4,
)
_SESSIONS = itertools.count(1)


@dataclass(slots=True)
class Seen:
    """One live request: times in seconds since the run's start, tokens with their origins."""

    arrival_s: float
    device: int
    prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    origins: list[Origin] = field(default_factory=list)

    @property
    def request(self) -> Request:
        """The same for the simulator: 1 where a draft was accepted, 0 where it was corrected. Where the target
        spoke for itself nothing was drafted, and the bit is not asked for."""
        bits = bytes(origin is not Origin.CORRECTED for origin in self.origins)
        return Request(
            arrival_s=self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=len(self.origins),
            acceptance=bits,
            drafter=self.device,
            rate=READER_RATE,
        )


class Live:
    """The live deployment: one target, and devices that share one engine."""

    def __init__(self, target: Connection, drafter: Connection, prompts: list[list[int]]) -> None:
        self.target = target.engine("engine")
        self.drafts_s: list[float] = []  # what each draft took beside link and device
        self._drafter, self._prompts = drafter, prompts
        self._links: dict[int, Link] = {}
        self._assignments: dict[int, Assignment] = {}
        self._executor = Executor(
            self._assign, self._dial, lambda: StaticWindow(WINDOW), racing=Racing(RACING, Random(1).random)
        )

    async def run(self, mode: str, rtt_s: float, arrivals_s: list[float]) -> list[Seen]:
        """Answer a request at each arrival."""
        self._links = {i: Link(LinkProfile(rtt_s=rtt_s, seed=i)) for i in range(DEVICES)}
        seen = []
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for index, arrival_s in enumerate(arrivals_s):
                await asyncio.sleep(max(0.0, began + arrival_s - time.monotonic()))
                prompt = self._prompts[index % len(self._prompts)]
                one = Seen(time.monotonic() - began, index % DEVICES, len(prompt))
                seen.append(one)
                tasks.create_task(self._answer(mode, rtt_s, one, prompt, began))
        await self._executor.settled()
        return seen

    async def _answer(self, mode: str, rtt_s: float, seen: Seen, prompt: list[int], began: float) -> None:
        session = next(_SESSIONS)
        target = EndpointInfo("target", "", "engine")
        device = f"device-{seen.device}"
        helper = EndpointInfo(
            device, "", device, rtt_s=rtt_s, device=True, prefill_token_s=PROFILE.prefill_s(1)
        )
        self._assignments[session] = Assignment(
            mode,
            target,
            drafter=helper if mode == "speculative" else None,
            rival=helper if mode == "race" else None,
        )
        rate = READER_RATE if mode == "race" else 0.0
        sampling = Sampling(max_tokens=MAX_TOKENS, ignore_eos=True, reader_rate=rate)
        job = Job(session, tuple(prompt), sampling, device=str(session))
        async for delta in self._executor.run(job):
            now_s = time.monotonic() - began
            if delta.ids and not seen.origins:
                seen.first_s = now_s
            if delta.ids:
                seen.last_s = now_s
            seen.origins += delta.origins

    async def _assign(self, wishes: Wishes) -> Assignment:
        assert isinstance(wishes.device, str)
        return self._assignments.pop(int(wishes.device))

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        if endpoint.name == "target":
            return self.target
        link = self._links[int(endpoint.name.removeprefix("device-"))]
        return TimedDrafts(self._drafter, endpoint.engine, link, self.drafts_s)


class TimedDrafts(RemoteEngine):
    """A device's engine; notes what a draft takes beside the device's own work and the link."""

    def __init__(self, connection: Connection, name: str, link: Link, taken_s: list[float]) -> None:
        super().__init__(connection, name, link)
        self._expected_s, self._taken_s = link.profile.rtt_s, taken_s

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        began_s = time.perf_counter()
        draft = await super().draft(session, position, tokens, window)
        took_s = time.perf_counter() - began_s
        self._taken_s.append(took_s - self._expected_s - PROFILE.decode_s(len(draft.ids)))
        return draft


@dataclass(frozen=True, slots=True)
class Costs:
    """What work costs in the live deployment. timer: of the target's steps; call_s: of a call of the target that waits
    for none; draft_s: what a draft takes beside device and link: wire, threads and event loops."""

    timer: MeasuredTimer
    call_s: float
    draft_s: float


class Profile:
    """Samples of the live deployment at work. rows: steps, positions and sequences since the sample before; steps_s:
    what these steps took; calls_s, drafts_s: see `Costs`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.steps_s: list[float] = []
        self.calls_s: list[float] = []
        self.drafts_s: list[float] = []

    def __add__(self, other: Profile) -> Profile:
        both = Profile()
        for name, samples in vars(self).items():
            setattr(both, name, samples + getattr(other, name))
        return both

    async def watch(self, engine: Engine) -> None:
        """Sample the engine's counters until cancelled."""
        last = await engine.stats()
        while True:
            await asyncio.sleep(SAMPLE_S)
            began_s = time.perf_counter()
            now = await engine.stats()
            self.calls_s.append(time.perf_counter() - began_s)
            if now.steps == last.steps:
                continue
            self.rows.append(
                (now.steps - last.steps, _positions(now) - _positions(last), _outcomes(now) - _outcomes(last))
            )
            self.steps_s.append(now.step_s - last.step_s)
            last = now

    def costs(self) -> Costs:
        """The engine's step time, regressed on what its steps hold, and medians of the rest."""
        base_s, token_s, sequence_s = fit(self.rows, self.steps_s)
        return Costs(
            MeasuredTimer(base_s=base_s, token_s=token_s, sequence_s=sequence_s),
            median(self.calls_s),
            max(0.0, median(self.drafts_s)) if self.drafts_s else 0.0,
        )


async def profile(live: Live, mode: str, rtt_s: float) -> Profile:
    """Answer requests that come ever faster, and watch the target's steps meanwhile: they take longer while devices
    draft beside them on the same machine than they would alone."""
    samples = Profile()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(samples.watch(live.target))
        await live.run(mode, rtt_s, np.cumsum(RAMP_S).tolist())
        watching.cancel()
    samples.drafts_s = live.drafts_s
    return samples


def _positions(stats: EngineStats) -> int:
    """Computed so far: of prompts, drafts, and the one before each of the target's own tokens."""
    return stats.tokens_prefilled + stats.tokens_verified + _outcomes(stats)


def _outcomes(stats: EngineStats) -> int:
    """Windows so far: each gives one token of the target's own."""
    return stats.tokens_generated - stats.tokens_accepted


def fit(rows: Sequence[Sequence[float]], times_s: Sequence[float]) -> list[float]:
    """Least squares with no coefficient below 0. The first column counts the steps in a row: the more there are, the
    less a row's mean is due to chance."""
    weights = 1 / np.sqrt([row[0] for row in rows])
    matrix, times = np.asarray(rows) * weights[:, None], np.asarray(times_s) * weights
    columns = list(range(matrix.shape[1]))
    while True:
        solution = np.linalg.lstsq(matrix[:, columns], times, rcond=None)[0]
        if solution.min() >= 0:
            break
        del columns[int(solution.argmin())]
    coefficients = [0.0] * matrix.shape[1]
    for column, value in zip(columns, solution, strict=True):
        coefficients[column] = float(value)
    return coefficients
