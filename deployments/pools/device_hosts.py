"""The edge that the settings ask for: device hosts as Ray actors that restart and register by themselves."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import ray
import ray.util
from pydantic import Field, field_validator, model_validator
from ray.experimental import internal_kv

from tandem.cluster.devices import host as hosting
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.access.device_name import PATTERN, device_name
from tandem.deployments.config.settings import LinkSettings, Strict
from tandem.deployments.messages import carry_messages
from tandem.deployments.pools.engines import AnySettings, EngineSettings, TorchSettings, build_engine
from tandem.deployments.pools.replica import EndpointSettings
from tandem.deployments.tracing.engine import made_traced

logger = logging.getLogger("ray.serve")

VERSION = metadata.version("tandem-llm")
EVERY_S = 2.0
"""Seconds between two looks after the hosts."""


class DeviceSettings(Strict):
    """A device.

    name: name of the device for requests.
    profile: "native" for this machine's own speed, or the profile that the device is slowed to.
    profiles: profiles by model, if the host has several; models without an entry have `profile`.
    """

    name: str = Field(pattern=PATTERN)
    profile: str = "native"
    profiles: dict[str, str] = Field(default_factory=dict)
    link: LinkSettings = LinkSettings()

    @field_validator("name")
    @classmethod
    def _means_nothing_else(cls, name: str) -> str:
        return device_name(name)

    @field_validator("profile")
    @classmethod
    def _exists(cls, profile: str) -> str:
        load_profile(profile)
        return profile

    @field_validator("profiles")
    @classmethod
    def _exist(cls, profiles: dict[str, str]) -> dict[str, str]:
        for profile in profiles.values():
            load_profile(profile)
        return profiles

    def hosted(self, serves: tuple[str, ...] = ()) -> hosting.HostedDevice:
        """Return the settings for its host. Each link's jitter has its own seed, the same after a restart."""
        link = self.link.profile(zlib.crc32(self.name.encode()))
        return hosting.HostedDevice(self.name, self.profile, link, self.profiles, serves)


class HostSettings(Strict):
    """A device host: one process with the devices it lists, which share its engines.

    name: unique name of the host.
    cpus: cores that Ray reserves for it.
    models: models that each device holds, in place of the engine's, loaded one at a time; the first one at the start.
    serves: the cloud's models, by name, whose requests these devices take part in; empty: all.
    """

    name: str = Field("edge", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    cpus: float = Field(0.1, ge=0)
    engine: EngineSettings = TorchSettings(model="small")
    models: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    devices: tuple[DeviceSettings, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _models_fit(self) -> HostSettings:
        if self.models and not isinstance(self.engine, TorchSettings):
            raise ValueError(f"models: engine {self.engine.kind} has one model; kind torch can have several")
        names = [Path(model).name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"models: their names must differ: {', '.join(names)}")
        for device in self.devices:
            if unknown := set(device.profiles) - set(names):
                raise ValueError(
                    f"device {device.name}: profiles of models that are not there: {sorted(unknown)}"
                )
        return self

    @property
    def engines(self) -> tuple[AnySettings, ...]:
        """Return the settings of each model's engine."""
        if not self.models:
            return (self.engine,)
        return tuple(self.engine.model_copy(update={"model": model}) for model in self.models)


class Edge:
    """The device hosts of one application: detached actors, which outlive a scheduler that dies.

    A host whose settings have changed is another actor, and so is one of another version of Tandem. The cluster records
    their owner: the scheduler that began last. It starts those that are not there, takes over those that are, and ends
    those of its predecessors that it does not want, once its own are up and answers under way have had time to finish;
    a predecessor that ends later leaves them alone.

    app: its name.
    owner: tells this scheduler from all others.
    inherited: whether another scheduler owned them before.
    """

    def __init__(
        self,
        app: str,
        hosts: Sequence[HostSettings],
        register: hosting.Register,
        endpoint: EndpointSettings,
        owner: str,
    ) -> None:
        self._app, self._owner = app, owner.encode()
        self._register, self._endpoint = register, endpoint
        self.want(hosts)
        self.inherited: bool = internal_kv._internal_kv_put(self._key, self._owner, overwrite=True)

    def want(self, hosts: Sequence[HostSettings]) -> None:
        """Set the hosts that should run, from the next reconciliation on."""
        self._hosts = {self._actor_name(host): host for host in hosts}

    async def tend(self) -> None:
        """See to it, again and again, that the hosts that are wanted are there, and no others."""
        owned = True
        while owned:
            try:
                owned = await asyncio.to_thread(self.tend_once)
            except Exception as error:  # Ray's head restarts
                logger.warning("cannot tend the device hosts: %r", error)
            await asyncio.sleep(EVERY_S)
        await asyncio.Event().wait()  # a successor does

    def tend_once(self) -> bool:
        """Start the hosts that are not there, and have those drained that are not wanted (again, if they are draining:
        it changes nothing). Returns before they are up, or gone; False if another scheduler has taken over."""
        if not self.owned:
            return False
        wanted = self._hosts
        there = {name for name in ray.util.list_named_actors() if name.rpartition("/")[0] == self._prefix}
        for name, host in wanted.items():
            if name not in there:
                self._start(name, host)
        unwanted = sorted(there - set(wanted))
        if unwanted and _are_up(wanted):
            for name in unwanted:
                with suppress(ValueError):  # it is gone already
                    ray.get_actor(name).drain.remote(self._endpoint.drain_s)
        return True

    @property
    def owned(self) -> bool:
        """Whether no other scheduler has taken over."""
        return bool(internal_kv._internal_kv_get(self._key) == self._owner)

    def stop(self) -> None:
        """End the hosts for good, unless a successor has taken them over; those that drain end by themselves."""
        if self.owned:
            internal_kv._internal_kv_del(self._key)
            for name in self._hosts:
                with suppress(ValueError):  # it is gone already
                    ray.kill(ray.get_actor(name))

    @property
    def _key(self) -> bytes:
        return f"tandem device hosts of {self._app}".encode()

    @property
    def _prefix(self) -> str:
        return f"{self._app} devices"

    def _actor_name(self, host: HostSettings) -> str:
        """Return the actor's name for this host with these settings."""
        endpoint = self._endpoint
        said = f"{VERSION} {host!r} {endpoint.host} {endpoint.tls!r} {endpoint.token}"
        return f"{self._prefix}/{host.name} {hashlib.sha256(said.encode()).hexdigest()[:12]}"

    def _start(self, name: str, host: HostSettings) -> None:
        hosting.DeviceHost.options(  # type: ignore[attr-defined]
            name=name, lifetime="detached", get_if_exists=True, num_cpus=host.cpus
        ).remote(
            [partial(made_traced, partial(build_engine, engine), host.name) for engine in host.engines],
            [device.hosted(host.serves) for device in host.devices],
            self._register,
            self._endpoint.listening,
            carry_messages,  # records go to schedulers of other versions
            host=self._endpoint.host,
            token=self._endpoint.token,
        )


def _are_up(hosts: Iterable[str]) -> bool:
    """Whether they all have an engine."""
    try:
        ray.get([ray.get_actor(name).ping.remote() for name in hosts], timeout=EVERY_S)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return False
    return True
