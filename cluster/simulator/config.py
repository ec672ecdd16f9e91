"""What to simulate, as a YAML file says it: the topology, the policies, the workload.

Errors name the key and what is allowed; nothing is read beyond this file until the simulation is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from cluster.latency import LogNormal
from cluster.link import LinkProfile
from cluster.simulator.hardware import MeasuredTimer, RateTimer
from cluster.simulator.workload import WorkloadSettings
from policies.base import Registry
from policies.batching import batching
from policies.cost import MAINS_USD_PER_J
from policies.dispatch import dispatch
from policies.migration import migration
from policies.routing import routing
from policies.scheduling import scheduling
from policies.window import window

MEASURED = "measured"


class ConfigError(ValueError):
    """A configuration that cannot be simulated; the message names the file, the key and what is allowed."""


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device's link as people write it. rtt_ms, jitter_ms: milliseconds; *_mbps: megabits/s, null for no
    limit; rtt_trace: [[seconds, rtt_ms], …] in place of a constant RTT."""

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    up_mbps: float | None = None
    down_mbps: float | None = None
    rtt_trace: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        self.profile(0)

    def profile(self, seed: int) -> LinkProfile:
        """The link model's profile, in seconds and bytes."""
        return LinkProfile(
            rtt_s=self.rtt_ms / 1e3,
            jitter_s=self.jitter_ms / 1e3,
            up_bytes_per_s=None if self.up_mbps is None else self.up_mbps * 125e3,
            down_bytes_per_s=None if self.down_mbps is None else self.down_mbps * 125e3,
            seed=seed,
            rtt_trace=tuple((t, rtt_ms / 1e3) for t, rtt_ms in self.rtt_trace),
        )


class HostMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Host memory for KV cache: tokens it holds, and the link to it, each way, in gigabytes/s or (for an engine that
    was measured, whose model's shape is not known) in tokens/s."""

    tokens: int = 1_000_000
    copy_gb_per_s: float = 20.0
    copy_tokens_per_s: float | None = None
    write_through: bool = True
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 0 or min(self.copy_gb_per_s, self.copy_tokens_per_s or 1) <= 0:
            raise ValueError(
                "needs tokens ≥ 0 and copy_gb_per_s, copy_tokens_per_s > 0, not "
                f"{self.tokens}, {self.copy_gb_per_s}, {self.copy_tokens_per_s}"
            )


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`count` alike servers of the cloud pool.

    hardware, model: names the hardware model knows ("4xA100", "Llama-2-70B"), or hardware "measured" with
    the coefficients of a live engine; draft_model: a small model on the same hardware, for fused rounds.
    kv_tokens: KV cache; null is what the hardware's memory leaves beside the weights. padded, first_apart, call_s:
    see `cluster.simulator.server.Server`. host: the KV cache's second tier, used where requests are scheduled.
    """

    model: str
    hardware: str = MEASURED
    count: int = 1
    measured: MeasuredTimer | None = None
    draft_model: str | None = None
    measured_draft: MeasuredTimer | None = None
    max_sessions: int = 256
    token_budget: int = 2048
    kv_tokens: int | None = None
    padded: bool = False
    first_apart: bool = False
    call_s: float = 0.0
    host: HostMemory | None = None

    def __post_init__(self) -> None:
        for key in ("count", "max_sessions", "token_budget"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")
        if self.call_s < 0:
            raise ValueError(f"call_s must be at least 0, not {self.call_s}")
        if (self.hardware == MEASURED) != (self.measured is not None):
            raise ValueError('hardware "measured" goes with the coefficients in `measured`, and only that')
        if self.measured is not None and self.host is not None and self.host.copy_tokens_per_s is None:
            raise ValueError("the host of a measured engine needs copy_tokens_per_s")


class Drafters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`count` alike devices. Either hardware and model, or a device profile of `cluster/configs`, or plain
    rates (prefill_tokens_per_s, decode_tokens_per_s), or coefficients measured on a live engine.
    sessions: requests that each holds at once; power_w: watts while it computes, null for its profile's."""

    count: int = 1
    sessions: int = 1
    hardware: str | None = None
    model: str | None = None
    profile: str | None = None
    rates: RateTimer | None = None
    measured: MeasuredTimer | None = None
    link: LinkSettings = LinkSettings()
    power_w: float | None = None

    def __post_init__(self) -> None:
        for key in ("count", "sessions"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")
        named = None if self.hardware is None or self.model is None else self.hardware
        if sum(way is not None for way in (named, self.profile, self.rates, self.measured)) != 1:
            raise ValueError("a device needs either hardware and model, or profile, or rates, or measured")


class AutoTopology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counts instead of lists: the mixes are repeated in turn until there are so many of each."""

    targets: int
    drafters: int
    target_mix: tuple[Targets, ...]
    drafter_mix: tuple[Drafters, ...]
    link: LinkSettings = LinkSettings()

    def __post_init__(self) -> None:
        if not self.target_mix or not self.drafter_mix:
            raise ValueError("target_mix and drafter_mix need at least one entry each")
        if self.targets < 1 or self.drafters < 1:
            raise ValueError(f"targets and drafters must be at least 1, not {self.targets}, {self.drafters}")

    def expand(self) -> tuple[tuple[Targets, ...], tuple[Drafters, ...]]:
        """Explicit lists: each entry of a mix with the share of the count that falls to it."""
        targets = tuple(
            msgspec.structs.replace(entry, count=count)
            for entry, count in zip(self.target_mix, _shares(self.targets, len(self.target_mix)), strict=True)
            if count
        )
        drafters = tuple(
            msgspec.structs.replace(entry, count=count, link=self.link)
            for entry, count in zip(
                self.drafter_mix, _shares(self.drafters, len(self.drafter_mix)), strict=True
            )
            if count
        )
        return targets, drafters


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy by its registered name, with its parameters."""

    name: str
    parameters: dict[str, Any] = {}


class Policies(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same names and parameters as in the live application's settings. scheduling: null for servers that admit in
    order of arrival."""

    routing: Policy = Policy(name="jsq")
    batching: Policy = Policy(name="chunked")
    window: Policy = Policy(name="static")
    scheduling: Policy | None = None
    dispatch: Policy = Policy(name="disco")
    migration: Policy = Policy(name="buffered")


class Race(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What races cost: the server's prices, dollars for a million tokens; budget: share of prompt tokens that the
    constrained endpoint may take in; exchange_rate: what a joule is worth, dollars. latency: of a server's first
    token, where it is a service's and not only its engine's."""

    price_in: float = 0.15
    price_out: float = 0.60
    budget: float = 0.5
    exchange_rate: float = MAINS_USD_PER_J
    latency: LogNormal | None = None

    def __post_init__(self) -> None:
        if min(self.price_in, self.price_out, self.exchange_rate) < 0 or not 0 <= self.budget <= 1:
            raise ValueError(
                "prices and exchange_rate must be at least 0 and budget between 0 and 1, not "
                f"{self.price_in}, {self.price_out}, {self.exchange_rate}, {self.budget}"
            )


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One simulation. mode: how every request is answered; reader: where tokens are read, see World.

    fused_window: γ of rounds that stay in the cloud. Either auto_topology, or targets and drafters.
    data: folder of profiled tables; null looks where the hardware model looks by itself.
    """

    name: str = "simulation"
    seed: int = 0
    mode: Literal["cloud", "device", "speculative", "race"] = "speculative"
    reader: Literal["device", "cloud"] = "device"
    fused_window: int = 4
    workload: WorkloadSettings
    policies: Policies = Policies()
    race: Race = Race()
    auto_topology: AutoTopology | None = None
    targets: tuple[Targets, ...] = ()
    drafters: tuple[Drafters, ...] = ()
    data: str | None = None
    history: bool = False

    def __post_init__(self) -> None:
        if (self.auto_topology is None) == (not self.targets and not self.drafters):
            raise ValueError("give either auto_topology, or targets and drafters")
        if self.auto_topology is None and not (self.targets and self.drafters):
            raise ValueError("targets and drafters need at least one entry each")
        if self.fused_window < 0:
            raise ValueError(f"fused_window must be at least 0, not {self.fused_window}")
        for registry, choice in self.choices():
            try:
                registry.create(choice.name, **choice.parameters)
            except (TypeError, ValueError) as error:
                raise ValueError(f"policies.{registry.family}: {error}") from None

    def choices(self) -> Sequence[tuple[Registry[Any], Policy]]:
        """The families of policies with what is chosen of each."""
        chosen = self.policies
        families: list[tuple[Registry[Any], Policy]] = [
            (routing, chosen.routing),
            (batching, chosen.batching),
            (window, chosen.window),
            (dispatch, chosen.dispatch),
            (migration, chosen.migration),
        ]
        if chosen.scheduling is not None:
            families.append((scheduling, chosen.scheduling))
        return families

    def topology(self) -> tuple[tuple[Targets, ...], tuple[Drafters, ...]]:
        """Targets and drafters, however they were given."""
        return self.auto_topology.expand() if self.auto_topology else (self.targets, self.drafters)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file; each override is "dotted.key=value" (value in YAML). Raises ConfigError."""
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a mapping of {', '.join(Config.__struct_fields__)} is expected")
    return parse(raw, overrides, origin=str(path))


def parse(raw: Mapping[str, Any], overrides: Sequence[str] = (), origin: str = "configuration") -> Config:
    """A configuration from plain data; raises ConfigError that begins with `origin`."""
    data = msgspec.to_builtins(raw)
    for override in overrides:
        _override(data, override)
    try:
        return msgspec.convert(data, Config, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{origin}: {_helpful(str(error))}") from None


def _override(data: Any, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set wants key=value, not {override!r}")
    *path, last = key.split(".")
    for part in path:
        if isinstance(data, list):
            data = data[_index(data, part, key)]
        elif isinstance(data, dict):
            data = data.setdefault(part, {})
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


def _helpful(message: str) -> str:
    """msgspec says where a key is unknown, not which ones are known."""
    if "unknown field" not in message:
        return message
    places: dict[str, type[msgspec.Struct]] = {
        "auto_topology.target_mix": Targets,
        "auto_topology.drafter_mix": Drafters,
        "link": LinkSettings,
        "auto_topology": AutoTopology,
        "targets": Targets,
        "drafters": Drafters,
        "policies": Policies,
        "race.latency": LogNormal,
        "race": Race,
        "workload": WorkloadSettings,
    }
    where = message.partition("at `$")[2]
    for part, struct in places.items():
        if where.startswith("." + part) or (part == "link" and where.endswith(".link`")):
            return f"{message} (allowed: {', '.join(struct.__struct_fields__)})"
    return f"{message} (allowed: {', '.join(Config.__struct_fields__)})"


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]
