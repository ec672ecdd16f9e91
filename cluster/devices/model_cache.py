"""The models that the devices of a process hold: each is in memory once, while any device has it loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing

from tandem.cluster.devices.profile import DeviceSpeed
from tandem.engine.base import Engine, EngineInfo, Sampling

log = logging.getLogger(__name__)

MakeEngine = Callable[[], Engine]
PROBE_TOKENS = 32
"""Decoded to measure a model's speed."""


class SharedModel:
    """A model that is in memory from the first `take` to the last `give_back`.

    make: loads it; called in a thread.
    info: of its engine.
    load_s: seconds that loading it took the last time.
    token_s: seconds a token, decoded one by one, after the first.
    """

    def __init__(self, make: MakeEngine, info: EngineInfo, load_s: float, token_s: float) -> None:
        self.info, self.load_s, self.token_s = info, load_s, token_s
        self._make = make
        self._engine: Engine | None = None
        self._users = 0
        self._changing = asyncio.Lock()

    @classmethod
    async def loaded(cls, make: MakeEngine) -> SharedModel:
        """Load the only model, for good and without measuring it."""
        began_s = time.perf_counter()
        engine = make()
        model = cls(make, engine.info, time.perf_counter() - began_s, 0.0)
        model._engine, model._users = engine, 1
        return model

    @classmethod
    async def measured(cls, make: MakeEngine) -> SharedModel:
        """Load a model, measure its times, and drop it again."""
        began_s = time.perf_counter()
        engine = await asyncio.to_thread(make)
        load_s = time.perf_counter() - began_s
        try:
            token_s = await _token_s(engine)
        finally:
            await engine.close()
        log.info("model %s: %.2f s to load, %.2g s a token", engine.info.model, load_s, token_s)
        return cls(make, engine.info, load_s, token_s)

    @property
    def engine(self) -> Engine | None:
        """Engine in memory; None if the model is not loaded."""
        return self._engine

    async def take(self) -> Engine:
        """Return its engine, for one more device."""
        async with self._changing:
            if self._engine is None:
                began_s = time.perf_counter()
                self._engine = await asyncio.to_thread(self._make)
                self.load_s = time.perf_counter() - began_s
            self._users += 1
            return self._engine

    async def give_back(self) -> None:
        """Release the engine for one device; the last one closes it."""
        async with self._changing:
            self._users -= 1
            if not self._users and self._engine is not None:
                engine, self._engine = self._engine, None
                await engine.close()


class HeldModel:
    """Shared model on one device, a `cluster.devices.multi_model.Loadable`. speed: speed of the device with it."""

    def __init__(self, shared: SharedModel, speed: DeviceSpeed) -> None:
        self.speed = speed
        self._shared = shared

    @property
    def info(self) -> EngineInfo:
        return self._shared.info

    @property
    def load_s(self) -> float:
        return self._shared.load_s

    @property
    def token_s(self) -> float:
        return self._shared.token_s

    async def load(self) -> Engine:
        return await self._shared.take()

    async def unload(self) -> None:
        await self._shared.give_back()


async def _token_s(engine: Engine) -> float:
    """Seconds a token; the first, which takes the prompt in and warms up, does not count."""
    session = await engine.open([engine.info.eos], Sampling(max_tokens=PROBE_TOKENS + 1, ignore_eos=True))
    came_s: list[float] = []  # when each did
    async with aclosing(session.generate()) as stream:
        async for part in stream:
            came_s += [time.perf_counter()] * len(part.ids)
    await session.cancel()
    return (came_s[-1] - came_s[0]) / max(1, len(came_s) - 1)
