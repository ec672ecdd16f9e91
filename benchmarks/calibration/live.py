"""The live side of the calibration: requests to a target and emulated devices on this machine."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from tandem.benchmarks.calibration.profile import Profile, Samples, whole
from tandem.benchmarks.executor import device_record, local_executor, new_job
from tandem.benchmarks.processes import engine_process
from tandem.cluster.devices.profile import DeviceProfile
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.speculative.settings import WindowChoice
from tandem.deployments.pools.engines import TorchSettings, VllmSettings
from tandem.deployments.request.job import Job
from tandem.deployments.request.pools import VERIFIER
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import Engine, Sampling
from tandem.simulator.workload import Outline, Request

DEVICES = 24
NAMES = tuple(f"device-{i}" for i in range(DEVICES))
MAX_TOKENS = 96
LONGEST = 320  # of answers that end by themselves
READER_RATE = 20.0  # tokens/s, in races
GAMMA = 4
WINDOW = WindowChoice(name="static", parameters={"size": GAMMA})
TARGET = TorchSettings(model="target", threads=1)
VLLM = VllmSettings(kind="vllm", model="target", kv_blocks=1024, token_budget=512, window=GAMMA)
DRAFTER = TorchSettings(model="small", threads=1)
RAMP_S = np.geomspace(0.6, 0.12, 48)  # between the requests of a profile: ever more of them at once
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
    prompt: its tokens.
    reader_rate: tokens/s, 0 without a reader.
    first_s, last_s: when the first and the last token came.
    ids, origins: the answer's tokens, and the origin of each.
    acceptance, confidence, outline: as in `simulator.workload.Request`; None to take them from the origins.
    in_full: tokens of the target's own answer; None if it is this one.
    sketched: whether small models wrote it.
    """

    arrival_s: float
    device: int
    prompt: Sequence[int]
    reader_rate: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    acceptance: bytes | None = None
    confidence: tuple[float, ...] | None = None
    outline: Outline | None = None
    in_full: int | None = None
    sketched: bool = False

    @property
    def request(self) -> Request:
        """Return the request for the simulator: 1 for accepted drafts, 0 for corrected ones. Tokens of the target
        alone were not drafted, and their bit is not used in windows of a constant size."""
        bits = bytes(origin is not Origin.CORRECTED for origin in self.origins)
        return Request(
            arrival_s=self.arrival_s,
            prompt_tokens=len(self.prompt),
            output_tokens=len(self.origins) if self.in_full is None else self.in_full,
            acceptance=bits if self.acceptance is None else self.acceptance,
            device=self.device,
            reader_rate=self.reader_rate,
            max_tokens=MAX_TOKENS if self.in_full is None else LONGEST,
            confidence=self.confidence,
            outline=self.outline,
        )


class Live(ABC):
    """A live deployment, which knows nothing of earlier runs.

    mode: of all its requests.
    target: its engine in the cloud.
    waits: see `benchmarks.calibration.profile.Samples`.
    """

    devices = 1

    def __init__(
        self, mode: str, target: Engine, prompts: Sequence[Sequence[int]], waits: bool = False
    ) -> None:
        self.mode, self.target, self.waits = mode, target, waits
        self._prompts = prompts

    @abstractmethod
    def executor(self, rtt_s: float) -> Executor:
        """Return an executor whose devices are `rtt_s` away."""

    def job(self, seen: Seen) -> Job:
        """The request that it is."""
        sampling = Sampling(max_tokens=MAX_TOKENS, ignore_eos=True, reader_rate=seen.reader_rate)
        device = None if self.mode in ("cloud", "split") else NAMES[seen.device]
        return new_job(seen.prompt, sampling, self.mode, device)

    async def run(self, rtt_s: float, arrivals_s: Sequence[float]) -> list[Seen]:
        """Answer a request at each arrival."""
        executor = self.executor(rtt_s)
        reader_rate = READER_RATE if self.mode == "race" else 0.0
        seen = []
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for index, arrival_s in enumerate(arrivals_s):
                await asyncio.sleep(max(0.0, began + arrival_s - time.monotonic()))
                prompt = self._prompts[index % len(self._prompts)]
                one = Seen(time.monotonic() - began, index % self.devices, prompt, reader_rate)
                seen.append(one)
                tasks.create_task(_answer(executor, self.job(one), one, began))
        await executor.settled()
        return seen

    async def profile(self, rtt_s: float) -> Profile:
        """Answer requests that come ever faster, and watch the target's steps meanwhile: they take longer while devices
        compute beside them on the same machine than they would alone."""
        samples = Samples(whole, self.waits)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(samples.watch(self.target))
            await self.run(rtt_s, np.cumsum(RAMP_S).tolist())
            watching.cancel()
        return Profile(samples)


async def _answer(executor: Executor, job: Job, seen: Seen, began: float) -> None:
    async for delta in executor.run(job):
        now_s = time.monotonic() - began
        if delta.ids and not seen.origins:
            seen.first_s = now_s
        if delta.ids:
            seen.last_s = now_s
        seen.ids += delta.ids
        seen.origins += delta.origins
    seen.sketched = Origin.EXPANSION in seen.origins


class Whole(Live):
    """One target, and devices that share one engine."""

    devices = DEVICES

    def __init__(
        self,
        mode: str,
        target: Connection,
        drafter: Connection,
        prompts: Sequence[Sequence[int]],
        waits: bool,
    ) -> None:
        super().__init__(mode, target.engine("engine"), prompts, waits)
        self._drafter = drafter

    def executor(self, rtt_s: float) -> Executor:
        engines: dict[str, Engine] = {VERIFIER: self.target} | {
            name: self._drafter.engine(name, Link(LinkProfile(rtt_s=rtt_s))) for name in NAMES
        }
        return local_executor(
            lambda endpoint: engines[endpoint.name],
            lambda: WINDOW.create(),
            devices=[device_record(name, rtt_s, PROFILE.prefill_s(1)) for name in NAMES],
        )


@asynccontextmanager
async def whole_models(
    target: TorchSettings | VllmSettings, prompts: Sequence[Sequence[int]]
) -> AsyncIterator[Callable[[str], Live]]:
    """Target and devices in processes of their own; makes a deployment of them for a mode."""
    with engine_process(target) as target_at, engine_process(DRAFTER, DEVICES, PROFILE) as drafter_at:
        target_wire, drafter_wire = await connect(target_at), await connect(drafter_at)
        waits = isinstance(target, VllmSettings)
        yield lambda mode: Whole(mode, target_wire, drafter_wire, prompts, waits)
        await target_wire.close()
        await drafter_wire.close()
