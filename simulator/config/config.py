"""A simulation's configuration: workload, servers, devices and policies, read from a YAML file.

Settings that the live application has too have the same keys and classes here. Errors name the file, the key and what
is allowed; `docs/simulation.md` describes every key.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tandem.deployments.config.explain import explain
from tandem.deployments.config.settings import AccountSettings, LimitSettings, LinkSettings, RouterSettings
from tandem.deployments.modes import MODES
from tandem.deployments.modes.sections import section, with_sections
from tandem.deployments.request.pools import MIDDLE
from tandem.engine.base import SplitInfo
from tandem.engine.config import Strict
from tandem.simulator import hardware
from tandem.simulator.config.devices import DeviceGroup
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.config.modes import SIMULATED, SplitConfig
from tandem.simulator.config.servers import ServerEngine, TargetGroup, TimedEngineConfig, TimedVllmConfig
from tandem.simulator.workload import WorkloadSettings

HIDDEN = 512  # width of a hidden state by default: the embedded target's
ALPHA = 0.8  # acceptance rate by default: the embedded pair's
LEAST = 0.01  # bound of it and of its complement, for drafters that are never or always right


class AutoTopology(Strict):
    """Numbers of servers and devices, divided evenly among the entries of a mix.

    targets, devices: number of servers and of devices.
    target_mix, device_mix: entries as in `targets` and `devices`, whose own counts are ignored.
    link: of devices whose entry has none.
    """

    targets: int = Field(ge=1)
    devices: int = Field(0, ge=0)
    target_mix: tuple[TargetGroup, ...] = Field(min_length=1)
    device_mix: tuple[DeviceGroup, ...] = ()
    link: LinkSettings = LinkSettings()

    @model_validator(mode="after")
    def _devices_have_a_mix(self) -> AutoTopology:
        if self.devices and not self.device_mix:
            raise ValueError(f"{self.devices} devices need at least one entry in device_mix")
        return self

    def expand(self) -> tuple[tuple[TargetGroup, ...], tuple[DeviceGroup, ...]]:
        """Groups of servers and devices: each entry of a mix with its share of the count."""
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


@with_sections(MODES.values(), SIMULATED)
class Config(Strict):
    """One simulation, the settings of the modes among its own.

    name: title of its results.
    seed: of links and policies; the workload has a seed of its own.
    mode: of requests without one; null: the router's collaboration policy chooses.
    reader: where prompts come from and answers are read, device or cloud (the application's front door); null: device
        if there are devices.
    workload: the requests.
    router: the policies that choose mode, device and server.
    accounts: prices, and the terms of accounts.
    limits: time limits of a request, as in the application: requests that an overloaded system keeps waiting longer
        fail.
    engine: memory, limits and policies of all targets' engines, unless a target has its own.
    targets, devices: groups of servers and of devices.
    auto_topology: counts and mixes, in place of targets and devices.
    data: folder of profiled tables; null: the hardware model's default.
    history: keep the times of every token and round.
    """

    name: str = "simulation"
    seed: int = 0
    mode: str | None = None
    reader: Literal["device", "cloud"] | None = None
    workload: WorkloadSettings
    router: RouterSettings = RouterSettings()
    accounts: AccountSettings = AccountSettings()
    limits: LimitSettings = LimitSettings()
    engine: ServerEngine = TimedEngineConfig()
    targets: tuple[TargetGroup, ...] = ()
    devices: tuple[DeviceGroup, ...] = ()
    auto_topology: AutoTopology | None = None
    data: str | None = None
    history: bool = False

    @model_validator(mode="before")
    @classmethod
    def _inherit_kind(cls, raw: Any) -> Any:
        """Give the engines of groups without a kind the kind of the simulation's `engine`."""
        match raw:
            case {"engine": {"kind": str(kind)}}:
                groups = {"targets", "auto_topology"} & raw.keys()
                return {**raw, **{key: _with_kind(raw[key], kind) for key in groups}}
        return raw

    @field_validator("mode")
    @classmethod
    def _mode_exists(cls, mode: str | None) -> str | None:
        if mode not in (None, *MODES):
            raise ValueError(f"no mode {mode!r} (allowed: {', '.join(MODES)}, null)")
        return mode

    @field_validator("data")
    @classmethod
    def _data_exists(cls, data: str | None) -> str | None:
        if data is not None:
            hardware.data_folder(Path(data))
        return data

    @model_validator(mode="after")
    def _is_consistent(self) -> Config:
        if (self.auto_topology is None) == (not self.targets and not self.devices):
            raise ValueError("give either auto_topology, or targets and devices")
        targets, devices = self.topology()
        if not targets:
            raise ValueError("targets need at least one entry")
        for target in targets:
            engine = target.engine
            if engine.host_tier and target.kv_token_bytes is None:
                raise ValueError(f"target {target.model}: a measured engine with host memory needs kv_bytes")
            if target.hardware is not None and "kv_blocks" not in engine.model_fields_set:
                hardware.kv_tokens(target.hardware, target.model)
        modes = {mode for mode in (self.mode, *(mode for _, mode in self.workload.modes)) if mode is not None}
        self._check_middles(modes, targets, devices)
        self._check_users(sum(group.count for group in devices))
        if devices:
            return self
        for mode in sorted(modes):
            if (role := MODES[mode].device_role()) is None:
                continue
            if role.needed:
                raise ValueError(f"mode {mode} needs devices")
            if not any(target.drafts for target in targets):
                raise ValueError(f"mode {mode} needs devices, or targets with a draft_model")
        if self.reader == "device":
            raise ValueError("reader device needs devices")
        return self

    def _check_middles(
        self, modes: set[str], targets: Sequence[TargetGroup], devices: Sequence[DeviceGroup]
    ) -> None:
        middles = [target for target in targets if target.first is not None]
        if len({(middle.first, middle.model) for middle in middles}) > 1:
            raise ValueError("the middles of all targets must be of one model, and begin with the same layer")
        if any(isinstance(middle.engine, TimedVllmConfig) for middle in middles):
            raise ValueError("a middle runs on Tandem's own engine (engine: {kind: torch})")
        split = {mode for mode in modes if any(role.pool == MIDDLE for role in MODES[mode].roles)}
        if split and not (middles and self.reader_at_device):
            raise ValueError(
                f"mode {min(split)} needs targets with a middle (first), devices, and readers there"
            )
        if not middles:
            return
        for device in devices:
            if device.ends is None and device.hardware is None and split:
                raise ValueError(f"mode {min(split)} needs devices with hardware and model, or ends")
            if device.ends is None and device.model not in (None, middles[0].model):
                raise ValueError(f"a device with {device.model} has no part of {middles[0].model}")
        if (self.mode is None or modes - split) and len(middles) == len(targets):
            raise ValueError("targets that are all middles serve mode split alone")

    def _check_users(self, devices: int) -> None:
        arrival = self.workload.arrival
        if arrival.kind != "closed":
            return
        if not devices and arrival.users is None:
            raise ValueError("closed arrivals without devices need workload.arrival.users")
        if 0 < devices < (arrival.users or 0):
            raise ValueError(
                f"workload.arrival.users: {arrival.users} need a device each, and there are {devices}"
            )

    @property
    def split_info(self) -> SplitInfo | None:
        """The split model's two parts; None if there is none."""
        for target in self.topology()[0]:
            if (first := target.first) is not None:
                known = None if target.hardware is None else hardware.shape_of(target.model)
                hidden = section(self, SplitConfig).hidden or (known.hidden if known else HIDDEN)
                return SplitInfo("simulated", first, known.layers if known else first + 1, hidden)
        return None

    @property
    def sureness(self) -> float:
        """Sureness of the split model's drafter, see `simulator.engines.guesses`."""
        acceptance = self.workload.acceptance
        if (sureness := section(self, SplitConfig).sureness) is not None:
            return sureness
        alpha = acceptance.alpha if acceptance.kind == "alpha" else ALPHA
        return max(alpha, LEAST) / max(1 - alpha, LEAST)

    def topology(self) -> tuple[tuple[TargetGroup, ...], tuple[DeviceGroup, ...]]:
        """Groups of servers, their engines with the simulation's settings, and groups of devices."""
        targets, devices = self.auto_topology.expand() if self.auto_topology else (self.targets, self.devices)
        return tuple(target.with_defaults(self.engine) for target in targets), devices

    @property
    def reader_at_device(self) -> bool:
        """Whether prompts and answers travel over the device's link."""
        return self.reader == "device" or (self.reader is None and bool(self.topology()[1]))

    @property
    def data_folder(self) -> Path | None:
        """Folder of profiled tables; None if there is none."""
        return hardware.data_folder(None if self.data is None else Path(self.data))

    def as_given(self) -> dict[str, Any]:
        """Plain data from which `parse` makes this configuration, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)


def _with_kind(groups: Any, kind: str) -> Any:
    """Groups of targets, or a topology of them, with `kind` for engines that have none."""
    match groups:
        case list() | tuple():
            return [_with_kind(group, kind) for group in groups]
        case {"target_mix": mix}:
            return {**groups, "target_mix": _with_kind(mix, kind)}
        case {"engine": dict(engine)}:
            return {**groups, "engine": {"kind": kind, **engine}}
    return groups


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file. overrides: "dotted.key=value", values in YAML. Raises ConfigError."""
    return parse(read(path), overrides, origin=str(path))


def read(path: str | Path) -> dict[str, Any]:
    """Read a YAML file as plain data; files that it names lie relative to its folder. Raises ConfigError."""
    try:
        raw = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a mapping of {', '.join(Config.model_fields)} is expected")
    workload = raw.get("workload")
    acceptance = workload.get("acceptance") if isinstance(workload, dict) else None
    for holder, key in ((raw, "data"), (workload, "path"), (acceptance, "path")):
        if isinstance(holder, dict) and isinstance(holder.get(key), str):
            holder[key] = str(Path(path).parent / holder[key])
    return raw


def parse(raw: Mapping[str, Any], overrides: Sequence[str] = (), origin: str = "configuration") -> Config:
    """Make a configuration from plain data. Raises ConfigError, whose message begins with `origin`."""
    data = copy.deepcopy(dict(raw))
    for override in overrides:
        _override(data, override)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, Config)}") from None


def _override(data: Any, override: str) -> None:
    """Set the key that `override` names in `data`. Raises ConfigError."""
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
