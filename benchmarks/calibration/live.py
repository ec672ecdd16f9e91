"""The live side of the calibration: a target and emulated devices on this machine, and what their work costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from benchmarks.executor import device_record, local_executor, new_job
from cluster.client import Connection
from cluster.link import Link, LinkProfile
from cluster.profile import DeviceProfile
from deployments.engines import TorchSettings, VllmSettings
from deployments.modes.base import VERIFIER
from deployments.request.executor import Executor
from deployments.request.tokenlog import Origin
from deployments.settings import PolicyChoice, RacingSettings
from engine.base import Engine, EngineStats, Sampling
from policies.window import window
from simulator.hardware import MeasuredTimer
from simulator.workload import Request

DEVICES = 24
NAMES = tuple(f"device-{i}" for i in range(DEVICES))
MAX_TOKENS = 96
READER_RATE = 20.0  # tokens/s, in races
GAMMA = 4
WINDOW = PolicyChoice(name="static", parameters={"size": GAMMA})
RACING = RacingSettings()
TARGET = TorchSettings(model="target", threads=1)
VLLM = VllmSettings(kind="vllm", model="target", kv_blocks=1024, token_budget=512, window=GAMMA)
DRAFTER = TorchSettings(model="small", threads=1)
RAMP_S = np.geomspace(0.6, 0.12, 48)  # between the requests of a profile: ever more of them at once
SAMPLE_S = 0.01  # less than a step takes
SELDOM_S = 0.1  # where a sample makes a step longer
PROFILE = DeviceProfile(
    name="emulated",
    hardware="emulated",
    model="small",
    source="invented for this benchmark: a device of the speed of a small board",
    prefill_tokens_per_s=800.0,
    decode_tokens_per_s=80.0,
    sessions=4,
)


@dataclass(slots=True)
class Seen:
    """One live request.

    arrival_s: seconds since the run's start, as all times here.
    device: its number.
    prompt_tokens: the prompt's length.
    reader_rate: tokens/s, 0: nobody reads along.
    first_s: when the first token came.
    last_s: when the last one did.
    origins: where each token is from.
    """

    arrival_s: float
    device: int
    prompt_tokens: int
    reader_rate: float
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
            device=self.device,
            reader_rate=self.reader_rate,
            max_tokens=MAX_TOKENS,
        )


class Live:
    """The live deployment: one target, and devices that share one engine."""

    def __init__(self, target: Connection, drafter: Connection, prompts: list[list[int]]) -> None:
        self.target: Engine = target.engine("engine")
        self._drafter, self._prompts = drafter, prompts

    async def run(self, mode: str, rtt_s: float, arrivals_s: list[float]) -> list[Seen]:
        """Answer a request at each arrival; nothing is known of earlier runs."""
        engines: dict[str, Engine] = {VERIFIER: self.target} | {
            name: self._drafter.engine(name, Link(LinkProfile(rtt_s=rtt_s))) for name in NAMES
        }
        executor = local_executor(
            lambda endpoint: engines[endpoint.name],
            lambda: WINDOW.create(window),
            devices=[device_record(name, rtt_s, PROFILE.prefill_s(1)) for name in NAMES],
            racing=RACING,
        )
        reader_rate = READER_RATE if mode == "race" else 0.0
        seen = []
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for index, arrival_s in enumerate(arrivals_s):
                await asyncio.sleep(max(0.0, began + arrival_s - time.monotonic()))
                prompt = self._prompts[index % len(self._prompts)]
                one = Seen(time.monotonic() - began, index % DEVICES, len(prompt), reader_rate)
                seen.append(one)
                tasks.create_task(_answer(executor, mode, one, prompt, began))
        await executor.settled()
        return seen


async def _answer(executor: Executor, mode: str, seen: Seen, prompt: list[int], began: float) -> None:
    sampling = Sampling(max_tokens=MAX_TOKENS, ignore_eos=True, reader_rate=seen.reader_rate)
    job = new_job(prompt, sampling, mode, None if mode == "cloud" else NAMES[seen.device])
    async for delta in executor.run(job):
        now_s = time.monotonic() - began
        if delta.ids and not seen.origins:
            seen.first_s = now_s
        if delta.ids:
            seen.last_s = now_s
        seen.origins += delta.origins


@dataclass(frozen=True, slots=True)
class Costs:
    """What work costs in the live deployment; all that is fitted.

    timer: of the target's steps.
    call_s: of a call of the target that waits for no step.
    """

    timer: MeasuredTimer
    call_s: float


class Profile:
    """Samples of the live deployment at work.

    rows: steps, positions and sequences since the sample before.
    steps_s: what these steps took.
    calls_s: see `Costs`.
    """

    def __init__(self, waits: bool = False) -> None:
        """waits: the engine tells its counters between two steps, which takes it time."""
        self._waits = waits
        self.rows: list[tuple[int, int, int]] = []
        self.steps_s: list[float] = []
        self.calls_s: list[float] = []

    def __add__(self, other: Profile) -> Profile:
        both = Profile()
        for name in ("rows", "steps_s", "calls_s"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    async def watch(self, engine: Engine) -> None:
        """Sample the engine's counters until cancelled."""
        last = await engine.stats()
        while True:
            await asyncio.sleep(SELDOM_S if self._waits else SAMPLE_S)
            began_s = time.perf_counter()
            if self._waits:
                idle = Sampling(max_tokens=1, forced=True)  # nothing is computed before there are drafts
                session = await engine.open([1], idle)
                self.calls_s.append(time.perf_counter() - began_s)
                await session.cancel()
                now = await engine.stats()
            else:
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
        if not self.rows:  # a target that is never asked
            return Costs(MeasuredTimer(base_s=0.0), median(self.calls_s))
        base_s, token_s, sequence_s = fit(self.rows, self.steps_s)
        timer = MeasuredTimer(base_s=base_s, token_s=token_s, sequence_s=sequence_s)
        return Costs(timer, median(self.calls_s))


async def profile(live: Live, mode: str, rtt_s: float, waits: bool = False) -> Profile:
    """Answer requests that come ever faster, and watch the target's steps meanwhile: they take longer while devices
    draft beside them on the same machine than they would alone."""
    samples = Profile(waits)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(samples.watch(live.target))
        await live.run(mode, rtt_s, np.cumsum(RAMP_S).tolist())
        watching.cancel()
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
