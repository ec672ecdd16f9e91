"""Device profiles: how fast and how hungry a piece of hardware is with the model it would run.

The files are `cluster/configs/*.yaml`, one a profile. A profile slows a device of this machine to that
hardware: its tokens are real, their times and joules are emulated.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Protocol

import msgspec


class UnknownProfile(ValueError):
    """A name that no profile carries."""


class ProfileError(ValueError):
    """A profile that cannot be read; the message names the key and what it allows."""


class DeviceSpeed(Protocol):
    """Speed that a device is slowed to; a profile, or hardware in a simulation.

    power_w: drawn while computing, in watts; 0 if it is not accounted.
    emulated: whether the device is slowed at all.
    sessions: most sessions at a time.
    batch: sequences that it decodes at once; it prefills prompts one by one.
    battery_wh: a full battery in watt-hours; None on mains.
    load_s: seconds that loading its model takes at least.
    """

    @property
    def name(self) -> str: ...
    @property
    def power_w(self) -> float: ...
    @property
    def emulated(self) -> bool: ...
    @property
    def sessions(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def battery_wh(self) -> float | None: ...
    @property
    def load_s(self) -> float: ...

    def prefill_s(self, tokens: int) -> float:
        """Seconds to take in `tokens` tokens."""
        ...

    def decode_s(self, tokens: int, context: int, sequences: int = 1) -> float:
        """Return the seconds to decode `tokens` tokens, after `context` of them, in each of `sequences` sequences."""
        ...


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """hardware, model: what the figures are of; source: where they come from, or that they are estimated.

    prefill_tokens_per_s, decode_tokens_per_s: speeds; null is whatever this machine does.
    power_w: drawn while computing, in watts; 0 where it is not accounted.
    battery_wh: a full battery in watt-hours; null for a device on mains.
    sessions: how many it works on at a time.
    batch: sequences that it decodes at once, each as fast as one alone: memory is what decoding waits for.
    load_s: seconds to load the model, for a device that holds several; 0: as many as it takes this machine.
    """

    name: str
    hardware: str
    model: str
    source: str
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    power_w: float = 0.0
    battery_wh: float | None = None
    sessions: int = 4
    batch: int = 1
    load_s: float = 0.0

    def __post_init__(self) -> None:
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s", "battery_wh"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ValueError(f"{key} must be above 0, or null, not {value}")
        if (self.prefill_tokens_per_s is None) != (self.decode_tokens_per_s is None):
            raise ValueError("prefill_tokens_per_s and decode_tokens_per_s must both be given, or both null")
        for key in ("power_w", "load_s"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must be 0 or more, not {getattr(self, key)}")
        for key in ("sessions", "batch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")

    @property
    def emulated(self) -> bool:
        """Whether the device is slowed to these speeds."""
        return self.decode_tokens_per_s is not None

    def prefill_s(self, tokens: int) -> float:
        """Seconds to take in `tokens` tokens; 0 at this machine's own speed."""
        return tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def decode_s(self, tokens: int, context: int = 0, sequences: int = 1) -> float:
        """Seconds to produce `tokens` tokens one by one, whatever the context and of however many sequences; 0 at this
        machine's own speed."""
        return tokens / self.decode_tokens_per_s if self.decode_tokens_per_s else 0.0


def parse_profile(text: str | bytes, origin: str = "profile") -> DeviceProfile:
    """A profile from YAML; raises ProfileError that begins with `origin`."""
    try:
        return msgspec.yaml.decode(text, type=DeviceProfile)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        keys = ", ".join(DeviceProfile.__struct_fields__)
        raise ProfileError(f"{origin}: {error} (keys: {keys})") from None


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder.iterdir() if f.name.endswith(".yaml"))


def load_profile(name: str) -> DeviceProfile:
    """The profile called `name`; raises UnknownProfile naming what there is, ProfileError."""
    if name not in profile_names():
        raise UnknownProfile(f"no device profile {name!r}; there are: {', '.join(profile_names())}")
    return parse_profile((_folder / f"{name}.yaml").read_bytes(), f"{name}.yaml")


_folder = files("tandem.cluster") / "configs"
