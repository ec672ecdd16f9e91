"""The settings of a device's own program: what `tandem device --config FILE` may say."""

from __future__ import annotations

import ssl
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from tandem.app.api.http.settings import ApiSettings
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.wire.address import is_loopback, split
from tandem.cluster.wire.tls import NAMED, pinned, trusting
from tandem.cluster.wire.wire import WireSettings
from tandem.deployments.access.keys import PREFIX
from tandem.deployments.config.settings import LimitSettings
from tandem.deployments.gateway.messages import SILENCE_S
from tandem.deployments.modes import AT_DEVICES
from tandem.deployments.modes.sections import with_sections
from tandem.deployments.pools.engines import EngineSettings, TorchSettings
from tandem.engine.config import EngineConfig, Strict


@with_sections(AT_DEVICES.values())
class DeviceProgram(Strict):
    """The modes' settings, where this device drives them for its owner, are among these.

    connect: the cloud's gateway, "host:port".
    key: the file with the device's key, from `tandem keys device make` or `tandem up --gateway`; or the key itself. It
        may name the gateway's certificate; then no other one is accepted.
    authority: PEM file of the authority that signed the gateway's certificate; null: one that this machine trusts.
        Without TLS only a gateway on this machine is dialled.
    listen: address of the device's API for its owner's programs; on this machine.
    bundle: folder with the two ends of a split model, made by `tandem split`; or with several such
        folders, cut at different layers, one of which is chosen when the program starts; null: none.
    most_recovery: greatest share of a prompt's tokens that an attacker with the model may recover from its hidden
        states.
    outer: memory of the two ends.
    threads: torch's threads for the two ends.
    engine: the device's own small model, which drafts for the cloud, too.
    profile: "native" for this machine's own speed, or the profile that the engine is slowed to.
    model: name of the model for the owner's programs.
    cloud_model: name of the cloud's model that helps with the owner's requests; "": the gateway's choice.
    default_reader_rate: tokens/s that a chat's reader consumes if the client does not say (0: no reader).
    resume_s: how long sessions wait for a broken connection.
    """

    connect: str = Field(pattern=r"^.+:\d{1,5}$")
    key: Path
    authority: Path | None = None
    listen: str = Field("127.0.0.1:8001", pattern=r"^.+:\d{1,5}$")
    bundle: Path | None = None
    most_recovery: float = Field(1.0, ge=0, le=1)
    outer: EngineConfig = EngineConfig()
    threads: int | None = Field(1, ge=1)
    engine: EngineSettings = TorchSettings(model="small")
    profile: str = "native"
    model: str = "tandem"
    cloud_model: str = ""
    default_reader_rate: float = Field(5.0, ge=0, le=10_000, allow_inf_nan=False)
    resume_s: float = Field(30.0, ge=0, le=600)
    limits: LimitSettings = LimitSettings()
    api: ApiSettings = ApiSettings()

    @field_validator("profile")
    @classmethod
    def _exists(cls, profile: str) -> str:
        load_profile(profile)
        return profile

    @model_validator(mode="after")
    def _listens_at_home(self) -> DeviceProgram:
        host, _ = split(self.listen)
        if not is_loopback(host):
            raise ValueError(f"listen: the API is for this machine alone, not for {host}")
        return self

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context to dial with; None if the gateway is on this machine, and neither an authority nor a
        certificate is named. Raises OSError, ValueError."""
        _, fingerprint = self._parts()
        if self.authority is None and fingerprint:
            return pinned(fingerprint)
        host, _ = split(self.connect)
        return None if self.authority is None and is_loopback(host) else trusting(self.authority)

    def secret(self) -> str:
        """The device's key. Raises OSError, ValueError."""
        return self._parts()[0]

    def _parts(self) -> tuple[str, str]:
        """Return the key, and the fingerprint of the gateway's certificate; "" if it names none."""
        text = str(self.key) if self._is_itself else self.key.read_text(encoding="utf-8").strip()
        secret, _, fingerprint = text.partition(NAMED)
        if not secret or len(text.split()) != 1:
            raise ValueError(f"{self.key} holds no key; see `tandem keys device make`")
        return secret, fingerprint

    @property
    def key_place(self) -> str:
        """Place of the key, for messages."""
        return "--key" if self._is_itself else str(self.key)

    @property
    def _is_itself(self) -> bool:
        """Whether `key` is no file, but the key."""
        return str(self.key).startswith(PREFIX) and not self.key.exists()

    def wire(self) -> WireSettings:
        """Return the settings of the connection to the gateway."""
        return self.limits.wire(SILENCE_S, self.resume_s)
