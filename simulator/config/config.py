"""What to simulate, as a YAML file says it: the workload, the servers and devices, the policies.

What the live application has as well is said as in its settings, with the same keys and the same classes. Errors name
the file, the key and what is allowed; `docs/simulation.md` describes every key.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from tandem.cluster.devices.profile import load_profile
from tandem.deployments.config.choices import WindowChoice
from tandem.deployments.config.explain import explain
from tandem.deployments.config.settings import (
    ExpandingModel,
    LatencySettings,
    LimitSettings,
    LinkSettings,
    RacingSettings,
    RouterSettings,
    SketchSettings,
    SplitSettings,
)
from tandem.deployments.modes import MODES
from tandem.deployments.pools.autoscaling import AutoscalingSettings
from tandem.deployments.request.pools import MIDDLE, VERIFIER
from tandem.engine import vllm
from tandem.engine.base import SplitInfo
from tandem.engine.config import BatchingChoice, EngineConfig, SessionLimits, Strict
from tandem.engine.core.split.pipeline import spread
from tandem.engine.vllm.config import VllmConfig, check_options
from tandem.policies.scheduling.batching import ChunkedPrefill
from tandem.simulator import hardware
from tandem.simulator.config.errors import ConfigError, renamed
from tandem.simulator.engines.sketch import SketchShape
from tandem.simulator.hardware import Drafter, Ends, MeasuredEnds, MeasuredTimer, RateTimer, StepTimer
from tandem.simulator.workload import WorkloadSettings

__all__ = [
    "AutoTopology",
    "Config",
    "ConfigError",
    "DeviceGroup",
    "Engine",
    "Split",
    "TargetGroup",
    "Vllm",
    "load",
    "parse",
]

MAX_SESSIONS = 256  # of a server of named hardware, as vLLM has it
NO_LIMIT = 1_000_000  # requests that wait there
GROUPED = ("targets", "auto_topology")  # keys of a configuration below which targets' engines lie
VLLM_KV_BLOCKS = 1024  # of a measured engine; a live one has as many as it finds memory for
VLLM_TOKEN_BUDGET = 2048  # vLLM's choice on most machines
HIDDEN = 512  # numbers of a hidden state where nobody says: the embedded target's
ALPHA = 0.8  # share of drafts that is accepted where nobody says: of the embedded pair
LEAST = 0.01  # of that share, and of what is left, for a drafter that is never or always right


class Service(SessionLimits):
    """What is said of a server's engine of any kind. null is as if nothing was said.

    latency: a service's time to first token, in place of its engine's where that is sooner; null for none.
    """

    latency: LatencySettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_unsaid(cls, raw: Any) -> Any:
        return {k: v for k, v in raw.items() if v is not None} if isinstance(raw, dict) else raw


class Engine(Service, EngineConfig):
    """A server's engine with Tandem's own core, as `engine:` of the application's pools says it.

    What is not said (or null) has the application's default where the engine was measured. Where hardware is named, it
    follows from hardware and model: `kv_blocks` from the memory beside the weights, `token_budget` and the chunks of
    `batching` from the step times (see `hardware.batching`), `max_sessions` 256, `max_waiting` no limit.

    kind: which engine.
    """

    kind: Literal["torch"] = "torch"

    @field_validator("host_memory", mode="after")
    @classmethod
    def _link_is_known(cls, host: Any) -> Any:
        if host is not None and host.copy_mb_per_s is None:
            raise ValueError("needs copy_mb_per_s: a simulation cannot measure it")
        return host


class Vllm(Service, VllmConfig):
    """A server's vLLM, as `engine:` of the application's pools says it, without a model's folder.

    What is not said follows from hardware and model as for the other kind, but for `token_budget`.

    kind: which engine.
    """

    kind: Literal["vllm"]

    @field_validator("speculation")
    @classmethod
    def _nobody_proposes(cls, speculation: Any) -> None:
        if speculation is not None:
            raise ValueError("a simulation does not know what vLLM's own proposers would say")

    @model_validator(mode="after")
    def _vllm_is_there(self) -> Vllm:
        vllm.require()
        if self.options:  # vLLM takes seconds to import
            vllm.set_environment()
            check_options(self.options)
        return self


def _kind(raw: Any) -> str:
    kind = raw.get("kind") if isinstance(raw, dict) else getattr(raw, "kind", None)
    return str(kind or "torch")


AnyEngine = Annotated[Annotated[Engine, Tag("torch")] | Annotated[Vllm, Tag("vllm")], Discriminator(_kind)]


class Split(SplitSettings):
    """What devices do with the two ends of a split model, as `tandem device` is told it, and what else a simulation has
    to know.

    drafter: adapter, whose every token takes a pass; heads, which give a draft in one; or none.
    sureness: s of the drafter's confidence, see `simulator.engines.guesses`; null: what the share of accepted drafts
        implies, that of the embedded pair where `workload.acceptance` does not say.
    hidden: numbers of a token's hidden states; null: the model's.
    engine: memory and limits of a device's part.
    """

    drafter: Drafter = "adapter"
    sureness: float | None = Field(None, gt=0)
    hidden: int | None = Field(None, ge=1)
    engine: EngineConfig = EngineConfig()


class Sketch(SketchSettings):
    """Sketches, as the application is told of them, and what else a simulation has to know.

    models: of devices: "devices-0" is the first group's, "devices-0-1" the first of its `others`, and so on; none: all
        expand.
    capability: of devices, where `models` does not say it.
    share: of an answer's tokens that its sketch has.
    sentence: tokens of a sentence of an answer.
    length_error: standard deviation of the logarithm of the length that the target tells over the true one.
    asking: tokens that are asked in beside a question.
    """

    models: dict[str, ExpandingModel] = Field(default_factory=dict)
    capability: float = Field(0.9, ge=0, le=1)
    share: float = Field(0.3, gt=0, lt=1)
    sentence: int = Field(20, ge=1)
    length_error: float = Field(0.1, ge=0)
    asking: int = Field(16, ge=0)

    def shape(self, seed: int) -> SketchShape:
        """Of all sketches."""
        return SketchShape(self.share, self.sentence, self.length_error, self.asking, seed)

    def settings(self, models: Iterable[str]) -> SketchSettings:
        """With these models of devices."""
        known = ExpandingModel(capability=self.capability, least_share=self.share)
        return self.model_copy(update={"models": self.models or dict.fromkeys(models, known)})


class TargetGroup(Strict):
    """Alike servers of the cloud pool.

    count: how many there are.
    hardware, model: names that the hardware model knows ("4xA100", "Llama-2-70B").
    first: they have a split model's middle, from this layer on; those before it are devices'. null: whole models.
    stages: P, that this is spread over; each is on such hardware of its own. What passes between them takes no time.
    measured: step times of a live engine, in place of hardware; `model` is then any name.
    draft_model: a small model on the same hardware, which drafts in fused rounds; null for none.
    measured_draft: step times of such a model, in place of draft_model.
    kv_bytes: bytes of KV cache that a token takes, for host memory; null: the model's.
    engine: its memory, limits and policies, where they differ from the simulation's `engine`.
    padded: a step costs as if every sequence were as long as the longest, and every window as wide as the widest.
    call_s: what every call of it takes beside its steps (wire, threads), seconds.
    autoscaling: as in the application's pools: `count` is how many there are at first; null: and always.
    start_s: how long a further one takes to start, seconds.
    drain_s: how long one that goes lets its sessions finish before they move elsewhere, seconds.
    """

    count: int = Field(1, ge=1)
    hardware: str | None = None
    model: str
    first: int | None = Field(None, ge=1)
    stages: int = Field(1, ge=1)
    measured: MeasuredTimer | None = None
    draft_model: str | None = None
    measured_draft: MeasuredTimer | None = None
    kv_bytes: int | None = Field(None, ge=1)
    engine: AnyEngine = Engine()
    padded: bool = False
    call_s: float = Field(0.0, ge=0)
    autoscaling: AutoscalingSettings | None = None
    start_s: float = Field(30.0, ge=0)
    drain_s: float = Field(10.0, ge=0)

    @property
    def initial(self) -> int:
        """How many there are at first."""
        if (bounds := self.autoscaling) is None:
            return self.count
        return min(max(self.count, bounds.min_replicas), bounds.max_replicas)

    @model_validator(mode="after")
    def _known(self) -> TargetGroup:
        if (self.hardware is None) == (self.measured is None):
            raise ValueError("a target needs either hardware or measured")
        if self.draft_model is not None and (self.measured_draft is not None or self.hardware is None):
            raise ValueError("draft_model goes with hardware, and without measured_draft")
        if self.first is not None:
            if self.draft_model is not None or self.measured_draft is not None:
                raise ValueError("a middle has no drafter beside it")
            if self.engine.latency is not None:
                raise ValueError("a middle is no service with a latency of its own")
        if self.stages > 1 and (self.first is None or self.hardware is None):
            raise ValueError("stages are of a middle (first) on hardware")
        if self.hardware is not None:
            hardware.check(self.hardware, self.model)
            layers = hardware.shape_of(self.model).layers
            if self.first is not None and self.first >= layers:
                raise ValueError(f"first must be below {self.model}'s {layers} layers, not {self.first}")
            if self.first is not None:
                spread(self.first, layers, self.stages)
            if self.draft_model is not None:
                hardware.check(self.hardware, self.draft_model)
        return self

    def timer(self, data: Path | None) -> StepTimer:
        """How long its steps take. data: folder of the tables, see `hardware.data_folder`."""
        if self.hardware is None:
            assert self.measured is not None
            return self.measured
        if self.first is not None:
            return self.stage_timers(data)[0]
        return hardware.timer(self.hardware, self.model, data)

    def stage_timers(self, data: Path | None) -> list[StepTimer]:
        """The same of each stage of a middle."""
        if self.hardware is None or self.first is None:
            return [self.timer(data)]
        layers = hardware.shape_of(self.model).layers
        return [
            hardware.middle_timer(self.hardware, self.model, end - begin, data)
            for begin, end in spread(self.first, layers, self.stages)
        ]

    @property
    def pool(self) -> str:
        """In which they are."""
        return VERIFIER if self.first is None else MIDDLE

    def draft_timer(self, data: Path | None) -> StepTimer | None:
        """The same of the small model beside it; None without one."""
        if self.draft_model is None or self.hardware is None:
            return self.measured_draft
        return hardware.timer(self.hardware, self.draft_model, data)

    @property
    def kv_token_bytes(self) -> int | None:
        """Bytes of KV cache a token; None where nobody said and nobody needs it."""
        if self.kv_bytes is not None or self.hardware is None:
            return self.kv_bytes
        return hardware.kv_bytes(self.model)

    def over(self, common: AnyEngine) -> TargetGroup:
        """With what is said of all engines, where its own does not say otherwise, or is of another kind that has no
        such key."""
        if self.first is not None:  # which no vLLM can be, nor a service
            common = Engine() if isinstance(common, Vllm) else common.model_copy(update={"latency": None})
        if "engine" not in self.model_fields_set:
            return self.model_copy(update={"engine": common})
        own = self.engine
        said = common.model_fields_set & set(type(own).model_fields) - own.model_fields_set - {"kind"}
        engine = own.model_copy(update={key: getattr(common, key) for key in said})
        return self.model_copy(update={"engine": engine})

    def complete_engine(self, data: Path | None) -> AnyEngine:
        """The engine with what follows from hardware and model. Raises UnknownHardware where the model does not fit."""
        engine = self.engine
        said = engine.model_fields_set
        derived: dict[str, Any] = {}
        if self.hardware is not None:
            if "kv_blocks" not in said:
                places = self.hardware if self.stages == 1 else f"{self.stages}x{self.hardware}"
                derived["kv_blocks"] = hardware.kv_tokens(places, self.model) // engine.block_size
            if "max_sessions" not in said:
                derived["max_sessions"] = MAX_SESSIONS
            if "max_waiting" not in said:
                derived["max_waiting"] = NO_LIMIT
        if isinstance(engine, Vllm):
            unsaid = {"kv_blocks": VLLM_KV_BLOCKS, "token_budget": VLLM_TOKEN_BUDGET}
            derived = {key: value for key, value in unsaid.items() if key not in said} | derived
        elif self.hardware is not None:
            derived |= self._steps(engine, derived.get("max_sessions", engine.max_sessions), data)
        return engine.model_copy(update=derived)

    def _steps(self, engine: Engine, sessions: int, data: Path | None) -> dict[str, Any]:
        """How steps are formed, where nobody said."""
        derived: dict[str, Any] = {}
        steps = hardware.derive_batching(self.timer(data))
        parameters = dict(engine.batching.parameters)
        if isinstance(engine.batching.create(), ChunkedPrefill):
            parameters = {"chunk": steps.chunk, "context_doubles": steps.context_doubles} | parameters
            derived["batching"] = BatchingChoice(name=engine.batching.name, parameters=parameters)
        if "token_budget" not in engine.model_fields_set:  # a chunk, and a token of every session
            derived["token_budget"] = parameters.get("chunk", steps.chunk) + sessions
        return derived

    def batching_source(self, data: Path | None) -> str:
        """How its steps are formed, and what of that nobody said."""
        engine, complete = self.engine, self.complete_engine(data)
        if not isinstance(engine, Engine) or not isinstance(complete, Engine):
            return f"vLLM, token_budget {complete.token_budget}"
        parameters = ", ".join(f"{key} {value}" for key, value in complete.batching.parameters.items())
        derived = [key for key in complete.batching.parameters if key not in engine.batching.parameters]
        derived += [] if "token_budget" in engine.model_fields_set else ["token_budget"]
        source = f"{complete.batching.name} {parameters}, token_budget {complete.token_budget}"
        return source + (f" (from step times: {', '.join(derived)})" if derived else "")


class DeviceModel(Strict):
    """A model on a device. Its speed is said in one of four ways: hardware and model, profile, rates, or measured.

    hardware, model: names that the hardware model knows ("A40", "Qwen-7B").
    profile: of `cluster/configs`, as in the application's `hosts`.
    rates: prefill_tokens_per_s and decode_tokens_per_s.
    measured: step times of a live engine.
    load_s: seconds to load the model where another one is loaded; null: as its profile says, else 0.
    """

    hardware: str | None = None
    model: str | None = None
    profile: str | None = None
    rates: RateTimer | None = None
    measured: MeasuredTimer | None = None
    load_s: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _known(self) -> DeviceModel:
        ways = (self.hardware or self.model, self.profile, self.rates, self.measured)
        if sum(way is not None for way in ways) != 1 or (self.hardware is None) != (self.model is None):
            raise ValueError("a device needs either hardware and model, or profile, or rates, or measured")
        if self.hardware is not None and self.model is not None:
            hardware.check(self.hardware, self.model)
        if self.profile is not None:
            RateTimer.of(load_profile(self.profile))
        return self

    def timer(self, data: Path | None) -> StepTimer:
        """How long its steps take."""
        if self.profile is not None:
            return RateTimer.of(load_profile(self.profile))
        if self.hardware is not None and self.model is not None:
            return hardware.timer(self.hardware, self.model, data)
        timer = self.rates or self.measured
        assert timer is not None
        return timer

    @property
    def loading_s(self) -> float:
        """Seconds to load it."""
        if self.load_s is None and self.profile is not None:
            return load_profile(self.profile).load_s
        return self.load_s or 0.0


class DeviceGroup(DeviceModel):
    """Alike devices.

    count: how many there are.
    sessions: requests that each works on at a time; null: as its profile says, else 1.
    batch: sequences that each decodes at once; null: as its profile says, else 1.
    others: models that each holds beside this one, which is loaded at the start.
    ends: step times of a split model's two ends on it; null: as hardware and model have them, else it has none.
    link: between the device and the cloud.
    power_w: drawn while computing, watts; null: as its profile says, else 0.
    """

    count: int = Field(1, ge=1)
    sessions: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1)
    others: tuple[DeviceModel, ...] = ()
    ends: MeasuredEnds | None = None
    link: LinkSettings = LinkSettings()
    power_w: float | None = Field(None, ge=0)

    def split_ends(self, first: int, drafter: Drafter, data: Path | None) -> Ends | None:
        """How long its part of a split model takes; None if it has none."""
        if self.ends is not None:
            return self.ends.ends(drafter)
        if self.hardware is None or self.model is None:
            return None
        return hardware.ends(self.hardware, self.model, first, drafter, data)

    @property
    def models(self) -> tuple[DeviceModel, ...]:
        """All that each holds, the one that is loaded at the start first."""
        return (self, *self.others)

    @property
    def places(self) -> int:
        """Requests that each works on at a time."""
        if self.sessions is None and self.profile is not None:
            return load_profile(self.profile).sessions
        return self.sessions or 1

    @property
    def batch_limit(self) -> int:
        """Sequences that each decodes at once."""
        if self.batch is None and self.profile is not None:
            return load_profile(self.profile).batch
        return self.batch or 1

    @property
    def watts(self) -> float:
        """Drawn while computing."""
        if self.power_w is None and self.profile is not None:
            return load_profile(self.profile).power_w
        return self.power_w or 0.0


class AutoTopology(Strict):
    """Counts instead of lists: the entries of each mix are repeated in turn until there are so many.

    targets, devices: how many there are.
    target_mix, device_mix: entries as in `targets` and `devices`; their own counts do not matter.
    link: of devices whose entry has none.
    """

    targets: int = Field(ge=1)
    devices: int = Field(0, ge=0)
    target_mix: tuple[TargetGroup, ...] = Field(min_length=1)
    device_mix: tuple[DeviceGroup, ...] = ()
    link: LinkSettings = LinkSettings()

    @model_validator(mode="after")
    def _devices_are_of_a_kind(self) -> AutoTopology:
        if self.devices and not self.device_mix:
            raise ValueError(f"{self.devices} devices need at least one entry in device_mix")
        return self

    def expand(self) -> tuple[tuple[TargetGroup, ...], tuple[DeviceGroup, ...]]:
        """Explicit lists: each entry of a mix with the share of the count that falls to it."""
        targets = [
            entry.model_copy(update={"count": count})
            for entry, count in zip(self.target_mix, _shares(self.targets, len(self.target_mix)), strict=True)
            if count
        ]
        devices = [
            entry.model_copy(
                update={"count": count, "link": entry.link if "link" in entry.model_fields_set else self.link}
            )
            for entry, count in zip(self.device_mix, _shares(self.devices, len(self.device_mix)), strict=True)
            if count
        ]
        return tuple(targets), tuple(devices)


class Config(Strict):
    """One simulation.

    name: stands over its results.
    seed: of links and policies; a workload has one of its own.
    mode: of requests that ask for none; null: the router's collaboration policy chooses.
    reader: where prompts come from and answers are read, device or cloud (the application's front door); null: device
        where there are devices.
    fused_window: γ of rounds that stay in the cloud.
    workload: what is asked.
    window: the policy that chooses γ.
    router: the policies that choose mode, device and server.
    racing: policies, prices and budgets of races.
    split: policies of devices with the two ends of a split model, and what drafts there.
    sketch: of mode sketch.
    limits: time limits of a request, as live: an overloaded system turns away whom it keeps waiting for longer.
    engine: memory, limits and policies of every target's engine that does not say otherwise.
    targets, devices: groups of servers and of devices.
    auto_topology: counts and mixes, in place of targets and devices.
    data: folder of profiled tables; null: where the hardware model looks by itself.
    history: keep the times of every token and round.
    """

    name: str = "simulation"
    seed: int = 0
    mode: str | None = None
    reader: Literal["device", "cloud"] | None = None
    fused_window: int = Field(4, ge=0)
    workload: WorkloadSettings
    window: WindowChoice = WindowChoice(name="static", parameters={"size": 4})
    router: RouterSettings = RouterSettings()
    racing: RacingSettings = RacingSettings()
    split: Split = Split()
    sketch: Sketch = Sketch()
    limits: LimitSettings = LimitSettings()
    engine: AnyEngine = Engine()
    targets: tuple[TargetGroup, ...] = ()
    devices: tuple[DeviceGroup, ...] = ()
    auto_topology: AutoTopology | None = None
    data: str | None = None
    history: bool = False

    @model_validator(mode="before")
    @classmethod
    def _kind_of_all(cls, raw: Any) -> Any:
        """A group's engine that says nothing of its kind is of the kind of all."""
        match raw:
            case {"engine": {"kind": str(kind)}}:
                return {
                    key: _with_kind(value, kind) if key in GROUPED else value for key, value in raw.items()
                }
        return raw

    @field_validator("mode")
    @classmethod
    def _mode_exists(cls, mode: str | None) -> str | None:
        if mode not in (None, *MODES):
            raise ValueError(f"no mode {mode!r} (allowed: {', '.join(MODES)}, null)")
        return mode

    @field_validator("data")
    @classmethod
    def _data_is_there(cls, data: str | None) -> str | None:
        if data is not None:
            hardware.data_folder(Path(data))
        return data

    @model_validator(mode="after")
    def _can_be_answered(self) -> Config:
        if (self.auto_topology is None) == (not self.targets and not self.devices):
            raise ValueError("give either auto_topology, or targets and devices")
        targets, devices = self.topology()
        if not targets:
            raise ValueError("targets need at least one entry")
        for target in targets:
            host_memory = target.engine.host_memory if isinstance(target.engine, Engine) else None
            if host_memory is not None and target.kv_token_bytes is None:
                raise ValueError(f"target {target.model}: a measured engine with host_memory needs kv_bytes")
            if target.hardware is not None and "kv_blocks" not in target.engine.model_fields_set:
                hardware.kv_tokens(target.hardware, target.model)
        self._parts_fit(targets, devices)
        arrival = self.workload.arrival
        if devices:
            count = sum(group.count for group in devices)
            if arrival.kind == "closed" and (arrival.users or 0) > count:
                raise ValueError(
                    f"workload.arrival.users: {arrival.users} need a device each, and there are {count}"
                )
            return self
        for mode in (self.mode, *(mode for _, mode in self.workload.modes)):
            if mode in ("device", "race"):
                raise ValueError(f"mode {mode} needs devices")
            if mode == "speculative" and not any(t.draft_model or t.measured_draft for t in targets):
                raise ValueError("mode speculative needs devices, or targets with a draft_model")
        if self.reader == "device":
            raise ValueError("reader device needs devices")
        if arrival.kind == "closed" and arrival.users is None:
            raise ValueError("closed arrivals without devices need workload.arrival.users")
        return self

    def _parts_fit(self, targets: Sequence[TargetGroup], devices: Sequence[DeviceGroup]) -> None:
        middles = [target for target in targets if target.first is not None]
        if len({(middle.first, middle.model) for middle in middles}) > 1:
            raise ValueError("the middles of all targets must be of one model, and begin with the same layer")
        if any(isinstance(middle.engine, Vllm) for middle in middles):
            raise ValueError("a middle runs on Tandem's own engine (engine: {kind: torch})")
        asked = {self.mode, *(mode for _, mode in self.workload.modes)}
        if "split" in asked and not (middles and self.reader_at_device):
            raise ValueError("mode split needs targets with a middle (first), devices, and readers there")
        if not middles:
            return
        for device in devices:
            if device.ends is None and device.hardware is None and "split" in asked:
                raise ValueError("mode split needs devices with hardware and model, or ends")
            if device.ends is None and device.model not in (None, middles[0].model):
                raise ValueError(f"a device with {device.model} has no part of {middles[0].model}")
        others = asked - {"split"}
        if others and len(middles) == len(targets):
            raise ValueError("targets that are all middles serve mode split alone")

    @property
    def split_info(self) -> SplitInfo | None:
        """Of both parts of the split model; None if there is none."""
        for target in self.topology()[0]:
            if (first := target.first) is not None:
                known = None if target.hardware is None else hardware.shape_of(target.model)
                hidden = self.split.hidden or (known.hidden if known else HIDDEN)
                return SplitInfo("simulated", first, known.layers if known else first + 1, hidden)
        return None

    @property
    def sureness(self) -> float:
        """The drafter's, see `simulator.engines.guesses`."""
        acceptance = self.workload.acceptance
        if self.split.sureness is not None:
            return self.split.sureness
        alpha = acceptance.alpha if acceptance.kind == "alpha" else ALPHA
        return max(alpha, LEAST) / max(1 - alpha, LEAST)

    def topology(self) -> tuple[tuple[TargetGroup, ...], tuple[DeviceGroup, ...]]:
        """Servers, their engines with what is said of all, and devices."""
        targets, devices = self.auto_topology.expand() if self.auto_topology else (self.targets, self.devices)
        return tuple(target.over(self.engine) for target in targets), devices

    @property
    def reader_at_device(self) -> bool:
        """Whether prompts and answers travel over the device's link."""
        return self.reader == "device" or (self.reader is None and bool(self.topology()[1]))

    @property
    def data_folder(self) -> Path | None:
        """Where profiled tables lie; None if there are none."""
        return hardware.data_folder(None if self.data is None else Path(self.data))

    def as_given(self) -> dict[str, Any]:
        """Plain data that `parse` takes for the same configuration: what was said, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)


def _with_kind(groups: Any, kind: str) -> Any:
    """Groups of targets, or what holds them, whose engines are of a kind."""
    match groups:
        case list() | tuple():
            return [_with_kind(group, kind) for group in groups]
        case {"target_mix": mix}:
            return {**groups, "target_mix": _with_kind(mix, kind)}
        case {"engine": dict(engine)}:
            return {**groups, "engine": {"kind": kind, **engine}}
    return groups


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file; each override is "dotted.key=value" (value in YAML). Raises ConfigError."""
    return parse(read(path), overrides, origin=str(path))


def read(path: str | Path) -> dict[str, Any]:
    """A YAML file as plain data. Raises ConfigError."""
    try:
        raw = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a mapping of {', '.join(Config.model_fields)} is expected")
    return raw


def parse(raw: Mapping[str, Any], overrides: Sequence[str] = (), origin: str = "configuration") -> Config:
    """A configuration from plain data; raises ConfigError that begins with `origin`."""
    data = copy.deepcopy(dict(raw))
    for override in overrides:
        _override(data, override)
    if (complaint := renamed(data)) is not None:
        raise ConfigError(f"{origin}: {complaint}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, Config)}") from None


def _override(data: Any, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set wants key=value, not {override!r}")
    *path, last = key.split(".")
    for part in path:
        if isinstance(data, list):
            data = data[_index(data, part, key)]
        elif isinstance(data, dict):
            if data.get(part) is None:
                data[part] = {}
            data = data[part]
        else:
            raise ConfigError(f"--set {key}: {part} is inside a plain value")
    if isinstance(data, list):
        data[_index(data, last, key)] = yaml.safe_load(text)
    elif isinstance(data, dict):
        data[last] = yaml.safe_load(text)
    else:
        raise ConfigError(f"--set {key}: {last} is inside a plain value")


def _index(data: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(data):
        raise ConfigError(f"--set {key}: {part!r} is no index into a list of {len(data)}")
    return int(part)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]
