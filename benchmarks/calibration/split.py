"""The live side of the calibration of mode split: a device with a model's two ends, and the middle of it.

The middle is in a process of its own, behind an emulated link. The device is this process, as a device's own program is
one: executor and outer part, without the API in front. Whether its adapter is right about each token of an answer, and
how sure it is, it is asked afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tandem.benchmarks.calibration.live import RAMP_S, Live, Seen
from tandem.benchmarks.calibration.profile import Profile, Samples, outer, whole
from tandem.benchmarks.executor import local_executor
from tandem.benchmarks.processes import engine_process
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.deployments.config.settings import LinkSettings
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.split import SplitSettings
from tandem.deployments.pools.engines import MiddleSettings
from tandem.engine import family
from tandem.engine.base import Sampling, Tensor
from tandem.engine.config import EngineConfig
from tandem.engine.core.split.outer import CoreOuterEngine
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_outer
from tandem.policies.speculation.window import StaticWindow
from tandem.training.adapter.evaluate import Drafter

LAYERS = 2
MIDDLE = MiddleSettings(model="target", first=LAYERS, threads=1)
OUTER = EngineConfig()
SPLIT = SplitSettings()
UP_MBIT, DOWN_MBIT = 60.0, 100.0  # per s; in the range of HAT's links
JUDGED = 20  # tokens, to see what one takes


def link(rtt_s: float) -> LinkSettings:
    """The device's."""
    return LinkSettings(rtt_ms=rtt_s * 1e3, up_mbit_per_s=UP_MBIT, down_mbit_per_s=DOWN_MBIT)


class Adapter:
    """Drafts of the device's adapter along known answers; each is computed once."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._said: dict[tuple[int, ...], tuple[bytes, tuple[float, ...]]] = {}

    def says(self, prompt: Sequence[int], ids: Sequence[int]) -> tuple[bytes, tuple[float, ...]]:
        """Return for each token whether it would have been drafted after those before it, and the draft's
        probability."""
        known = (*prompt, *ids)
        if known not in self._said:
            drafts, sure = self._drafter.said(prompt, ids)
            right = bytes(a == b for a, b in zip(drafts, ids, strict=True))
            self._said[known] = right, tuple(sure)
        return self._said[known]


class Split(Live):
    """One device and one middle."""

    def __init__(
        self, middle: Connection, ends: CoreOuterEngine, adapter: Adapter, prompts: Sequence[Sequence[int]]
    ) -> None:
        super().__init__("split", middle.engine("engine"), prompts)
        self._middle, self._ends, self._adapter = middle, ends, adapter

    def executor(self, rtt_s: float) -> Executor:
        device = link(rtt_s).profile()
        # A link's engine is at the device's end, this one at the other.
        turned = LinkProfile(
            device.rtt_s, up_bytes_per_s=device.down_bytes_per_s, down_bytes_per_s=device.up_bytes_per_s
        )
        there = self._middle.engine("engine", Link(turned))
        return local_executor(lambda _: there, StaticWindow, outer=self._ends)

    async def run(self, rtt_s: float, arrivals_s: Sequence[float]) -> list[Seen]:
        seen = await super().run(rtt_s, arrivals_s)
        for one in seen:
            one.acceptance, one.confidence = self._adapter.says(one.prompt, one.ids)
        return seen

    async def profile(self, rtt_s: float) -> Profile:
        """Return the device's profile. The two engines are watched."""
        cloud, device = Samples(whole), Samples(outer)
        judged_s = [await self._judged_s() for _ in range(JUDGED)]
        async with asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(cloud.watch(self.target)),
                tasks.create_task(device.watch(self._ends)),
            ]
            await super().run(rtt_s, np.cumsum(RAMP_S).tolist())
            for each in watching:
                each.cancel()
        return Profile(cloud, device, judged_s)

    async def _judged_s(self) -> float:
        """Seconds for a token from hidden states, whatever these say."""
        session = await self._ends.open(self._prompts[0], Sampling(max_tokens=1))
        await session.propose(0)
        hidden = self._ends.split.hidden
        deep = Tensor((1, hidden), "float32", memoryview(bytes(4 * hidden)))
        began_s = time.perf_counter()
        await session.judge(deep)
        took_s = time.perf_counter() - began_s
        await session.cancel()
        return took_s


@asynccontextmanager
async def split_model(prompts: Sequence[Sequence[int]]) -> AsyncIterator[Callable[[], Live]]:
    """The two parts of the embedded target; makes a deployment of them."""
    with TemporaryDirectory() as folder, engine_process(MIDDLE) as middle_at:
        model, adapter = family.path("target"), family.adapter("target", LAYERS)
        bundle.write(model, LAYERS, Path(folder), adapter)
        ends = load_outer(folder, OUTER, kind=SPLIT.kind, threads=1)
        middle, asked = await connect(middle_at), Adapter(Drafter(model, LAYERS, adapter))
        yield lambda: Split(middle, ends, asked, prompts)
        await middle.close()
        await ends.close()
