"""Collaboration: which mode serves a request, and with which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.base import Registry

MODES = ("cloud", "device", "speculative")
ANY_DEVICE = "any"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A registered device as a policy sees it.

    rtt_s: round-trip time of its link, seconds; sessions: how many it is working on now.
    """

    name: str
    rtt_s: float
    sessions: int


@dataclass(frozen=True, slots=True)
class CollaborationState:
    """What is known when a request arrives; `mode` and `device` are None where the client left them open."""

    mode: str | None
    device: str | None
    verifiers: int
    drafters: int
    devices: Sequence[DeviceView]


@dataclass(frozen=True, slots=True)
class Collaboration:
    """The decision: a mode, and the device that takes part (None: no device; speculation is then fused)."""

    mode: str
    device: str | None


class CollaborationPolicy(Protocol):
    def choose(self, state: CollaborationState) -> Collaboration:
        """A mode that the endpoints at hand can serve; explicit wishes are followed as they stand."""
        ...


collaboration: Registry[CollaborationPolicy] = Registry("collaboration")


@collaboration.register("explicit")
class ExplicitElseCloud:
    """Do what the client asks; where it leaves the mode open: speculative with its device, else cloud.

    Speculative without a device is fused: the cloud's own drafter drafts. The device name "any", and mode
    "device" without a name, take the least busy device, the nearest among equals.
    """

    def choose(self, state: CollaborationState) -> Collaboration:
        mode = state.mode or ("speculative" if state.device else "cloud")
        if mode == "cloud":
            return Collaboration(mode, None)
        if mode == "speculative" and state.device is None:
            return Collaboration(mode, None)
        device = state.device
        if device in (None, ANY_DEVICE) and state.devices:
            device = min(state.devices, key=lambda d: (d.sessions, d.rtt_s, d.name)).name
        return Collaboration(mode, device)
