"""Collaboration: which mode serves a request, and with which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.base import Registry

MODES = ("cloud", "device", "speculative", "race")
ANY_DEVICE = "any"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A registered device as a policy sees it.

    rtt_s: round-trip time of its link, seconds; sessions: how many it is working on now; prefill_token_s: seconds
    to take in a token, 0 where not known.
    """

    name: str
    rtt_s: float
    sessions: int
    prefill_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CollaborationState:
    """What is known when a request arrives; `mode` and `device` are None where the client left them open, and
    `device` has several names where the client owns several."""

    mode: str | None
    device: str | tuple[str, ...] | None
    verifiers: int
    drafters: int
    devices: Sequence[DeviceView]


@dataclass(frozen=True, slots=True)
class Collaboration:
    """The decision: a mode, and the device that takes part (None: no device; speculation is then fused, and a race
    has but one runner)."""

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

    Speculative without a device is fused: the cloud's own drafter drafts. The device name "any", and modes
    "device" and "race" without a name, take the least busy device, the quickest and nearest among equals; so is one
    of several names chosen, of those that are there.
    """

    def choose(self, state: CollaborationState) -> Collaboration:
        mode = state.mode or ("speculative" if state.device else "cloud")
        if mode == "cloud":
            return Collaboration(mode, None)
        if mode == "speculative" and state.device is None:
            return Collaboration(mode, None)
        if isinstance(state.device, str) and state.device != ANY_DEVICE:
            return Collaboration(mode, state.device)
        named = state.device if isinstance(state.device, tuple) else None
        there = [d for d in state.devices if named is None or d.name in named]
        if there:
            best = min(there, key=lambda d: (d.sessions, d.prefill_token_s, d.rtt_s, d.name))
            return Collaboration(mode, best.name)
        return Collaboration(
            mode, named[0] if named else state.device if isinstance(state.device, str) else None
        )
