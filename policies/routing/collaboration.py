"""Collaboration: which mode serves a request, and with which device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tandem.policies.base import Registry
from tandem.policies.routing.objectives import Candidate, Objective, Prediction

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
    sessions: its open sessions.
    full: whether it has no room for one more.
    prefill_token_s, decode_token_s: seconds to prefill a token and to give one out, 0 if unknown.
    """

    name: str
    rtt_s: float
    sessions: int
    prefill_token_s: float = 0.0
    decode_token_s: float = 0.0
    full: bool = False


Candidates = tuple[Sequence[Candidate], list[float]]
"""Ways to answer a request, and their losses, dollars; infinite where a limit is exceeded."""
Preference = tuple[int | float | str, ...]


def no_candidates(objective: Objective) -> Candidates:
    """Return none; named, so that a state can be pickled."""
    return [], []


@dataclass(frozen=True, slots=True)
class CollaborationState:
    """State when a request arrives.

    mode: mode that the client asks for; None if it left it open.
    device: device that the client asks for, several names if it owns several; None if it left it open.
    modes: modes that may serve it, at least one, and whether a device takes part.
    best_device: the device that the policy prefers among those named, or all that it may use; None if none is
        registered. Constant time in the number of devices.
    prompt_tokens: prompt length.
    max_tokens: most tokens of the answer.
    reader_rate: tokens/s, 0 without a reader.
    budget: the request's own share of prompt tokens that the constrained endpoint may take in; None for its account's.
    objective: what counts for the request; None leaves it to the policy.
    candidates: ways to answer it that its wishes leave open and that endpoints are up for, each with a prediction. They
        are made when this is called, for an objective, and come with their losses in it: ways that are far from the
        best may be missing. There are none if nothing can be predicted.
    """

    mode: str | None
    device: str | tuple[str, ...] | None
    modes: Mapping[str, DevicePart]
    best_device: Callable[[Sequence[str] | None], DeviceView | None]
    prompt_tokens: int = 1
    max_tokens: int = 256
    reader_rate: float = 0.0
    budget: float | None = None
    objective: Objective | None = None
    candidates: Callable[[Objective], Candidates] = no_candidates


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a way to answer a request was chosen.

    loss: its expected loss, dollars.
    second: the runner-up; None if there was none.
    second_loss: the expected loss of the runner-up, dollars.
    candidates: number of ways that were compared.
    tried: whether a way was chosen that does not seem the best, to learn of it.
    missed: whether a limit is expected to be exceeded, as nothing keeps it.
    """

    loss: float
    second: Candidate | None = None
    second_loss: float = 0.0
    candidates: int = 1
    tried: bool = False
    missed: bool = False


@dataclass(frozen=True, slots=True)
class Collaboration:
    """Decision: a mode, and the device that takes part (None without one; speculation is then fused).

    reason: None where the policy compares nothing.
    """

    mode: str
    device: str | None
    reason: Reason | None = None


class NothingAllowed(ValueError):
    """No way to answer the request keeps its limits."""


class NothingUp(ValueError):
    """No endpoint is up that is known to keep the request's limits."""


class CollaborationPolicy(Protocol):
    def preference(self, device: DeviceView) -> Preference:
        """Return the sort key of a device; the least is preferred. It may depend on nothing but the device."""
        ...

    def choose(self, state: CollaborationState) -> Collaboration:
        """Return a mode that the available endpoints can serve; explicit wishes are followed as they stand.

        Raises NothingAllowed or NothingUp.
        """
        ...

    def reconsider(self, state: CollaborationState, present: Prediction) -> Collaboration | None:
        """Return another way for the rest of an answer that is under way; None if it had better go on as it does.

        present: expectation of the rest as it goes on now. The state's candidates are the other ways.
        """
        ...


collaboration: Registry[CollaborationPolicy] = Registry("collaboration")


@collaboration.register("explicit")
class ExplicitElseCloud:
    """Follows the client's wishes; if it leaves the mode open: speculative with its device, else cloud, else the first
    allowed mode.

    A mode that can do without a device does if the client names none (speculation is then fused). If a device must
    take part and none is named, or "any", the least busy one is taken, the quickest and nearest among equals; likewise
    one of several names, among those that are registered.
    """

    def preference(self, device: DeviceView) -> Preference:
        return (device.sessions, device.prefill_token_s, device.rtt_s, device.name)

    def choose(self, state: CollaborationState) -> Collaboration:
        if state.objective is not None:
            raise NothingAllowed(
                "this server's policy weighs no objectives: router.collaboration is not `auto`"
            )
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

    def reconsider(self, state: CollaborationState, present: Prediction) -> Collaboration | None:
        return None
