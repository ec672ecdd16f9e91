"""The edge that the settings ask for: device hosts as Ray actors that restart and register by themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import ray
from pydantic import Field, field_validator
from ray.actor import ActorHandle

from cluster import host as hosting
from cluster.link import LinkProfile
from cluster.profile import load_profile
from deployments.endpoint import EndpointSettings
from deployments.engines import EngineSettings, TorchSettings, build_engine
from deployments.settings import Strict

BYTES_PER_MBIT = 125_000


class LinkSettings(Strict):
    """An emulated link between a device and the cloud. rtt_ms, jitter_ms: milliseconds; rates in megabits
    a second, None for as fast as it goes."""

    rtt_ms: float = Field(0.0, ge=0)
    jitter_ms: float = Field(0.0, ge=0)
    up_mbit_per_s: float | None = Field(None, gt=0)
    down_mbit_per_s: float | None = Field(None, gt=0)

    def profile(self) -> LinkProfile:
        """The same in seconds and bytes."""
        rates = (self.up_mbit_per_s, self.down_mbit_per_s)
        up, down = (None if rate is None else rate * BYTES_PER_MBIT for rate in rates)
        return LinkProfile(self.rtt_ms / 1000, self.jitter_ms / 1000, up, down)


class DeviceSettings(Strict):
    """A device. profile: "native" for this machine's own speed, or the profile of what it is slowed to."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    profile: str = "native"
    link: LinkSettings = LinkSettings()

    @field_validator("name")
    @classmethod
    def _means_nothing_else(cls, name: str) -> str:
        if name in ("verifier", "drafter", "expander", "any"):
            raise ValueError(f"{name!r} has a meaning of its own; call the device something else")
        return name

    @field_validator("profile")
    @classmethod
    def _exists(cls, profile: str) -> str:
        load_profile(profile)
        return profile


class HostSettings(Strict):
    """A device host: one process with the devices it lists, which share its engine."""

    name: str = "edge"
    cpus: float = Field(0.1, ge=0)
    engine: EngineSettings = TorchSettings(model="small")
    devices: tuple[DeviceSettings, ...] = Field(min_length=1)


class Edge:
    """The device hosts of one application."""

    def __init__(self, actors: Sequence[ActorHandle]) -> None:
        self._actors = actors

    @classmethod
    def start(
        cls, app: str, hosts: Sequence[HostSettings], register: hosting.Register, endpoint: EndpointSettings
    ) -> Edge:
        """Start the hosts, or find those that outlived a scheduler that died. Returns before they are up.

        A host whose settings changed is another actor; the old one ends with the scheduler that started it.
        """
        actors = []
        for host in hosts:
            same = hashlib.sha256(f"{host!r} {endpoint.host} {endpoint.token}".encode()).hexdigest()[:12]
            actor = hosting.DeviceHost.options(
                name=f"{app} {host.name} {same}", lifetime="detached", get_if_exists=True, num_cpus=host.cpus
            )
            devices = [hosting.DeviceSettings(d.name, d.profile, d.link.profile()) for d in host.devices]
            make_engine = partial(build_engine, host.engine)
            actors.append(
                actor.remote(make_engine, devices, register, host=endpoint.host, token=endpoint.token)
            )
        return cls(actors)

    def stop(self) -> None:
        """End the hosts for good."""
        for actor in self._actors:
            ray.kill(actor)
