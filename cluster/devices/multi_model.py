"""A device that holds several models, one of which is loaded at a time.

Opening a session with another model makes it switch: sessions with the present one finish first, and new ones wait,
first come, first served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tandem.cluster.devices.device import Device, DeviceSession
from tandem.cluster.devices.profile import DeviceSpeed
from tandem.cluster.devices.record import DeviceRecord, ModelRecord, engine_name
from tandem.engine.base import Engine, EngineInfo, EngineStats, EngineStopped, Sampling


class Loadable(Protocol):
    """A model that a device holds.

    speed: speed of the device with it.
    load_s: seconds that loading takes, as last measured.
    token_s: seconds a token, decoded one by one; 0: not known.
    """

    @property
    def info(self) -> EngineInfo: ...
    @property
    def speed(self) -> DeviceSpeed: ...
    @property
    def load_s(self) -> float: ...
    @property
    def token_s(self) -> float: ...

    async def load(self) -> Engine:
        """Load the model for this device; return its engine."""
        ...

    async def unload(self) -> None:
        """Release the model on this device."""
        ...


class SwitchingDevice(Device):
    """A device with several models, of which the first, run by `engine`, is loaded at the start.

    A switch takes at least the profile's `load_s`. `open` uses the loaded model; `engines` has an engine for each.
    """

    def __init__(self, engine: Engine, models: Sequence[Loadable]) -> None:
        super().__init__(engine, models[0].speed)
        self._models = {model.info.model: model for model in models}
        if len(self._models) < len(models):
            raise ValueError(f"models of a device must differ: {', '.join(m.info.model for m in models)}")
        self._loaded: Loadable | None = models[0]
        self._took_s: dict[str, float] = {}  # to load, the last time
        self._turn = asyncio.Lock()
        self._asked = 0  # sessions that wait for their model
        self._switching: asyncio.Task[None] | None = None
        self._left = asyncio.Event()  # the last session has
        self._info = engine.info
        self._joules = self._joules_until_s = 0.0  # with earlier models, and how busy it had been by then

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def sessions(self) -> int:
        """Open sessions, and those that wait for their model."""
        return super().sessions + self._asked

    @property
    def energy_j(self) -> float:
        return self._joules + (self.processor.busy_s - self._joules_until_s) * self.speed.power_w

    def engines(self, name: str) -> Mapping[str, Engine]:
        """Return the engines to serve: itself if there is one model, else one engine per model. name: the device's."""
        if len(self._models) == 1:
            return {name: self}
        return {engine_name(name, model): _With(self, held) for model, held in self._models.items()}

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> DeviceSession:
        return await self.open_with(None, prompt, sampling, log)

    async def open_with(
        self, model: Loadable | None, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]
    ) -> DeviceSession:
        """Open a session with that model; None: with the one that is loaded."""
        self._asked += 1
        try:
            async with self._turn:
                await self._see_to(model or self._models[self._info.model])
                admitted = self.admit(prompt, log)
        finally:
            self._asked -= 1
        return await self.begin(admitted, prompt, sampling, log)

    def forget(self, session: DeviceSession) -> bool:
        had = super().forget(session)
        if not self._sessions:
            self._left.set()
        return had

    async def _see_to(self, model: Loadable) -> None:
        """Return when the model is loaded; called in the session's turn. Raises EngineStopped."""
        if self._switching is not None:  # the session that asked for that switch may have ended
            await asyncio.wait((self._switching,))
            self._switching.exception()  # it was theirs
            self._switching = None
        if model is self._loaded:
            return
        self.check()
        while self._sessions:
            self._left.clear()
            await self._left.wait()
        self.check()
        self._switching = asyncio.create_task(self._switch(model))
        await asyncio.wait((self._switching,))
        if (error := self._switching.exception()) is not None:
            raise EngineStopped(f"the device cannot load {model.info.model}: {error}") from error

    async def _switch(self, model: Loadable) -> None:
        timer = self.processor.timer
        began_s = timer.time()
        before, self._loaded = self._loaded, None
        if before is not None:
            del self._engine  # or its weights were in memory beside the next model's
            await before.unload()
        engine = await model.load()
        if (left_s := began_s + model.speed.load_s - timer.time()) > 0:
            await asyncio.sleep(left_s)
        self._took_s[model.info.model] = timer.time() - began_s
        self._joules, self._joules_until_s = self.energy_j, self.processor.busy_s
        self.speed, self._engine, self._info, self._loaded = model.speed, engine, model.info, model
        self.processor.follow(not self.speed.emulated, self.speed.batch)
        self._last_prompt = ()

    def record(self, name: str, address: str = "", rtt_s: float = 0.0) -> DeviceRecord:
        record = super().record(name, address, rtt_s)
        if len(self._models) == 1:
            return record
        return msgspec.structs.replace(record, models=tuple(map(self._record, self._models.values())))

    def _record(self, model: Loadable) -> ModelRecord:
        speed, info = model.speed, model.info
        return ModelRecord(
            name=info.model,
            vocabulary=info.vocabulary,
            load_s=self._took_s.get(info.model, max(model.load_s, speed.load_s)),
            prefill_token_s=speed.prefill_s(1),
            decode_token_s=speed.decode_s(1, 0) or model.token_s,
            prefill_j=speed.power_w * speed.prefill_s(1),
            decode_j=speed.power_w * speed.decode_s(1, 0),
        )

    async def close(self) -> None:
        await super().close()
        self._left.set()
        if self._switching is not None:
            await asyncio.wait((self._switching,))


@dataclass(frozen=True)
class _With:
    """Engine of the device with one of its models."""

    device: SwitchingDevice
    model: Loadable

    @property
    def info(self) -> EngineInfo:
        return self.model.info

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> DeviceSession:
        return await self.device.open_with(self.model, prompt, sampling, log)

    async def stats(self) -> EngineStats:
        return await self.device.stats()

    async def close(self) -> None:
        await self.device.close()
