"""Devices in virtual time: the live device around a scripted model, behind a simulated link."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from tandem.cluster.devices.device import DeviceSession
from tandem.cluster.devices.multi_model import Loadable, SwitchingDevice
from tandem.cluster.devices.record import DeviceRecord, ModelRecord
from tandem.cluster.link.link import Link
from tandem.deployments.modes.sections import section
from tandem.deployments.request.assignment import EndpointInfo
from tandem.engine.base import Engine, EngineInfo, EngineStopped, Sampling
from tandem.simulator.clock import VirtualLoop
from tandem.simulator.config.config import Config
from tandem.simulator.config.devices import DeviceGroup, DeviceModel
from tandem.simulator.config.modes import SplitConfig
from tandem.simulator.engines.device_model import ScriptedEngine
from tandem.simulator.engines.engine import Hardware
from tandem.simulator.engines.guesses import Guesses
from tandem.simulator.engines.script import EOS, VOCAB_SIZE, VOCABULARY, Script
from tandem.simulator.engines.split import TimedOuterEngine, TimedOuterRunner
from tandem.simulator.hardware import StepTimer
from tandem.simulator.world.network import Path

CONTEXT = 64
"""Tokens of context at which devices' speeds are reported."""


class TimedSpeed:
    """A device's speed from a step timer (`cluster.devices.profile.DeviceSpeed`)."""

    emulated = True
    battery_wh = None
    load_s = 0.0

    def __init__(self, name: str, timer: StepTimer, sessions: int, power_w: float, batch: int = 1) -> None:
        self.name, self.sessions, self.power_w, self.batch = name, sessions, power_w, batch
        self._timer = timer
        self._step_s: dict[tuple[int, int], float] = {}  # of decoding, by context and sequences

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds to prefill `tokens` tokens."""
        return self._timer.step_s(tokens, 1, 0, ((tokens, 0),)) if tokens else 0.0

    def decode_s(self, tokens: int, context: int = 0, sequences: int = 1) -> float:
        """Return the seconds to decode `tokens` tokens after `context`, in each of `sequences` equal sequences."""
        context += tokens // 2
        key = context, sequences
        step_s = self._step_s.get(key)
        if step_s is None:
            step_s = self._step_s[key] = self._timer.step_s(sequences, sequences, sequences * context)
        return tokens * step_s


MakeSpeed = Callable[[str, StepTimer, int, float, int], TimedSpeed]
"""Makes the speed of a group of devices from its name, timer, most sessions of each, watts, and sequences decoded at
once."""


class SimulatedDevice:
    """A device, its link, and its path from the cloud. outer: its part of a split model, or None."""

    __slots__ = ("device", "link", "outer", "path", "uplink")

    def __init__(
        self, loop: VirtualLoop, device: SwitchingDevice, link: Link, outer: TimedOuterEngine | None = None
    ) -> None:
        self.device, self.link, self.outer = device, link, outer
        self.path, self.uplink = Path.to_device(loop, link), Path.to_cloud(loop, link)

    @property
    def open_sessions(self) -> int:
        return self.device.sessions


class Devices(Sequence[SimulatedDevice]):
    """Devices, made when first needed: most of a hundred thousand may never see a request.

    Groups are interleaved evenly, so that the first N requests meet each in proportion.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        script: Script,
        config: Config,
        groups: Sequence[DeviceGroup],
        speed: MakeSpeed = TimedSpeed,
    ) -> None:
        self._loop, self._seed, self._groups = loop, config.seed, groups
        self._script, self._config = script, config
        self._guesses = Guesses(script, config.sureness, config.workload.seed)
        data = config.data_folder
        self._models = [
            [
                self._model(
                    speed(name, model.timer(data), group.capacity, group.watts, group.batch_limit), model
                )
                for name, model in zip(_names(g, group), group.models, strict=True)
            ]
            for g, group in enumerate(groups)
        ]
        shares = sorted((i / group.count, g) for g, group in enumerate(groups) for i in range(group.count))
        self._group_of = [g for _, g in shares]
        self._made: dict[int, SimulatedDevice] = {}
        self._watched: dict[int, None] = {}  # those that may have sessions or changes to report
        # As last reported by each: sessions now and in total, and the loaded model.
        self._told: list[tuple[int, int, str] | None] = []
        self._lives: dict[int, int] = {}  # how often a device was restarted
        self._records = [
            {model.info.model: _record(model, models, group.link.rtt_ms / 1e3) for model in models}
            for models, group in zip(self._models, groups, strict=True)
        ]

    def _model(self, speed: TimedSpeed, model: DeviceModel) -> ScriptedModel:
        speed.load_s = model.loading_s
        info = EngineInfo(speed.name, VOCABULARY, VOCAB_SIZE, 2**31, EOS)
        return ScriptedModel(ScriptedEngine(self._script, info), speed)

    @property
    def models(self) -> Sequence[str]:
        """Names of all models of devices."""
        return [model.info.model for models in self._models for model in models]

    def __len__(self) -> int:
        return len(self._group_of)

    def __getitem__(self, index: int) -> SimulatedDevice:  # type: ignore[override]
        made = self._made.get(index)
        if made is None:
            profile = self._groups[self._group_of[index]].link.profile(self._seed * 1_000_003 + index)
            outer = self._outer(self._groups[self._group_of[index]])
            made = self._made[index] = SimulatedDevice(self._loop, self._device(index), Link(profile), outer)
        return made

    def _outer(self, group: DeviceGroup) -> TimedOuterEngine | None:
        """Return the two ends of the split model on a device of that group; None without a split."""
        config = self._config
        if (info := config.split_info) is None:
            return None
        split = section(config, SplitConfig)
        ends = group.split_ends(info.first, split.drafter, config.data_folder)
        if ends is None:
            return None
        runner = TimedOuterRunner(self._script, self._guesses, ends, split.drafter != "none")
        hardware = Hardware(self._loop, _over_time(group.speed_trace) if group.speed_trace else None)
        return TimedOuterEngine(hardware, "ends", split.engine, info, split.kind, runner, ends)

    @property
    def busy(self) -> Collection[SimulatedDevice]:
        """Return all devices that have sessions, and a few others."""
        return [self._made[index] for index in self._watched]

    def _device(self, index: int) -> SwitchingDevice:
        models = self._models[self._group_of[index]]
        return _Watched(models, partial(self._watched.__setitem__, index, None))

    def at(self, endpoint: EndpointInfo) -> SimulatedDevice:
        """Return the device at an endpoint. Raises EngineStopped if it has left."""
        index = self.number(endpoint.name)
        if endpoint.address != self.address(index):
            raise EngineStopped(f"nothing answers at {endpoint.address}")
        return self[index]

    def engine(self, endpoint: EndpointInfo) -> Engine:
        """Return the engine that the endpoint names. Raises EngineStopped."""
        return self.at(endpoint).device.engines(endpoint.name)[endpoint.engine]

    async def leave(self, index: int) -> None:
        """End the device's process; only connected peers notice."""
        made = self[index]
        self._lives[index] = self._lives.get(index, 0) + 1
        made.path.cut()
        made.uplink.cut()
        await made.device.close()

    def come_back(self, index: int) -> None:
        """Start another process in place of the one that has left, at another address."""
        made = self[index]
        made.device = self._device(index)
        made.path.heal()
        made.uplink.heal()
        self._tell_anew(index)  # its record has changed

    def forget(self, name: str) -> None:
        """Note that the router counts the device as lost, until it registers again."""
        self._tell_anew(self.number(name))

    def _tell_anew(self, index: int) -> None:
        self._told[index], self._watched[index] = None, None

    def address(self, index: int) -> str:
        """Return the device's present address."""
        lives = self._lives.get(index, 0)
        return f"{self.name(index)}#{lives}" if lives else self.name(index)

    def name(self, index: int) -> str:
        return f"device-{index}"

    def number(self, name: str) -> int:
        return int(name.removeprefix("device-"))

    def news(self) -> list[DeviceRecord]:
        """Return records of the devices that have opened or ended sessions since the last call; all at first."""
        if not self._told:
            self._told = [(0, 0, self._models[g][0].info.model) for g in self._group_of]
            return [self._record(i, *told) for i, told in enumerate(self._told) if told]
        changed = []
        for i in list(self._watched):
            made = self[i]
            now = made.device.sessions, made.device.counters.opened, made.device.info.model
            if now != self._told[i] and not made.path.is_cut:
                self._told[i] = now
                changed.append(self._record(i, *now))
            if not made.device.sessions and now == self._told[i]:
                del self._watched[i]
        return changed

    def _record(self, index: int, sessions: int, opened: int, model: str) -> DeviceRecord:
        return msgspec.structs.replace(
            self._records[self._group_of[index]][model],
            name=self.name(index),
            address=self.address(index),
            sessions=sessions,
            opened=opened,
        )

    @property
    def waited_s(self) -> float:
        """Return the total seconds that frames waited for bandwidth or each other."""
        return sum(made.link.up.waited_s + made.link.down.waited_s for made in self._made.values())

    @property
    def sent_bytes(self) -> int:
        """Return the total bytes sent over links, both ways."""
        return sum(made.link.up.sent_bytes + made.link.down.sent_bytes for made in self._made.values())


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A model that devices hold (`cluster.devices.multi_model.Loadable`)."""

    engine: ScriptedEngine
    speed: TimedSpeed

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def load_s(self) -> float:
        return self.speed.load_s

    @property
    def token_s(self) -> float:
        return self.speed.decode_s(1, CONTEXT)

    async def load(self) -> Engine:
        return self.engine

    async def unload(self) -> None:
        """Do nothing: it holds no memory."""


class _Watched(SwitchingDevice):
    """A device that reports by `opened` that it may have sessions."""

    def __init__(self, models: Sequence[ScriptedModel], opened: Callable[[], None]) -> None:
        super().__init__(models[0].engine, models)
        self._opened = opened

    async def open_with(
        self, model: Loadable | None, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]
    ) -> DeviceSession:
        self._opened()
        return await super().open_with(model, prompt, sampling, log)


def _over_time(trace: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Return the trace's value at a time."""
    times, values = zip(*trace, strict=True)
    return lambda now_s: values[bisect_right(times, now_s) - 1]


def _names(g: int, group: DeviceGroup) -> list[str]:
    """Return the model names of that group."""
    return [f"devices-{g}", *(f"devices-{g}-{m}" for m in range(1, len(group.models)))]


def _record(loaded: ScriptedModel, models: Sequence[ScriptedModel], rtt_s: float) -> DeviceRecord:
    """Return the record of any device with these models, of which `loaded` is loaded."""
    speed = loaded.speed
    prefill_s = speed.prefill_s(CONTEXT) / CONTEXT
    return DeviceRecord(
        models=tuple(map(_model_record, models)) if len(models) > 1 else (),
        name="",
        address="",
        profile=speed.name,
        model=speed.name,
        vocabulary=VOCABULARY,
        rtt_s=rtt_s,
        capacity=speed.sessions,
        emulated=True,
        prefill_token_s=prefill_s,
        decode_token_s=speed.decode_s(1, CONTEXT),
        prefill_j=speed.power_w * prefill_s,
        decode_j=speed.power_w * speed.decode_s(1, CONTEXT),
    )


def _model_record(model: ScriptedModel) -> ModelRecord:
    speed = model.speed
    prefill_s = speed.prefill_s(CONTEXT) / CONTEXT
    return ModelRecord(
        name=model.info.model,
        vocabulary=VOCABULARY,
        load_s=speed.load_s,
        prefill_token_s=prefill_s,
        decode_token_s=model.token_s,
        prefill_j=speed.power_w * prefill_s,
        decode_j=speed.power_w * model.token_s,
    )
