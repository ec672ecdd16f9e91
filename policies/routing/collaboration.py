"""Collaboration: which mode serves a request, and with which device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tandem.policies.base import Registry

ANY_DEVICE = "any"


class DevicePart(StrEnum):
    """Whether a device takes part in a mode."""

    NEVER = "never"
    MAY = "may"
    MUST = "must"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A registered device as a policy sees it.

    rtt_s: round-trip time of its link, seconds.
    sessions: how many it is working on now.
    prefill_token_s: seconds to take in a token, 0 where not known.
    """

    name: str
    rtt_s: float
    sessions: int
    prefill_token_s: float = 0.0


Preference = tuple[int | float | str, ...]


@dataclass(frozen=True, slots=True)
class CollaborationState:
    """What is known when a request arrives.

    mode, device: as the client wishes; None where it left them open. device: several names where it owns several.
    modes: those that it may be served in, at least one, and whether a device takes part.
    best_device: the device that the policy prefers, of those named or of all that it may use; None where none of them
        is there. It takes no longer for many devices than for few.
    prompt_tokens, max_tokens: tokens of the prompt, and of the answer at most.
    reader_rate: tokens/s, 0: nobody reads along.
    budget: of this request, the share of prompt tokens that the constrained endpoint may take in; None: its account's.
    """

    mode: str | None
    device: str | tuple[str, ...] | None
    modes: Mapping[str, DevicePart]
    best_device: Callable[[Sequence[str] | None], DeviceView | None]
    prompt_tokens: int = 1
    max_tokens: int = 256
    reader_rate: float = 0.0
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Collaboration:
    """The decision: a mode, and the device that takes part (None: no device; speculation is then fused)."""

    mode: str
    device: str | None


class CollaborationPolicy(Protocol):
    def preference(self, device: DeviceView) -> Preference:
        """What devices are compared by; the least is the best. It may depend on nothing but the device."""
        ...

    def choose(self, state: CollaborationState) -> Collaboration:
        """A mode that the endpoints at hand can serve; explicit wishes are followed as they stand."""
        ...


collaboration: Registry[CollaborationPolicy] = Registry("collaboration")


@collaboration.register("explicit")
class ExplicitElseCloud:
    """Do what the client asks; where it leaves the mode open: speculative with its device, else cloud; where it may not
    have that, the first that it may.

    A mode that can do without a device does, where the client names none (speculation is then fused). Where one must
    take part and none is named, or by the name "any", it is the least busy one, the quickest and nearest among equals;
    so is one of several names chosen, of those that are there.
    """

    def preference(self, device: DeviceView) -> Preference:
        return (device.sessions, device.prefill_token_s, device.rtt_s, device.name)

    def choose(self, state: CollaborationState) -> Collaboration:
        mode = state.mode or ("speculative" if state.device else "cloud")
        if mode not in state.modes:
            mode = next(iter(state.modes))
        wanted, part = state.device, state.modes[mode]
        if part is DevicePart.NEVER or (part is DevicePart.MAY and wanted is None):
            return Collaboration(mode, None)
        if isinstance(wanted, str) and wanted != ANY_DEVICE:
            return Collaboration(mode, wanted)
        best = state.best_device(wanted if isinstance(wanted, tuple) else None)
        if best is not None:
            return Collaboration(mode, best.name)
        return Collaboration(mode, wanted[0] if isinstance(wanted, tuple) else wanted)
