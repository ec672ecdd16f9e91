"""Window control: how many tokens to draft in the next speculative round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from policies.base import Registry


@dataclass(frozen=True, slots=True)
class WindowState:
    """What a draft–target pair has seen by the start of a round.

    acceptance: share of drafted tokens accepted recently, in [0, 1].
    rtt_s: recent round-trip time of the link between drafter and target, seconds.
    tpot_s: recent time per output token at the target, seconds.
    queue: target queue depth as a share of its batch limit.
    previous: the previous window (γ), tokens; 0 before the first round.
    """

    acceptance: float
    rtt_s: float
    tpot_s: float
    queue: float
    previous: int


class WindowPolicy(Protocol):
    def choose(self, state: WindowState) -> int:
        """γ ≥ 1, tokens to draft; DSD's fused mode is γ ≤ 1."""
        ...


window: Registry[WindowPolicy] = Registry("window")


@window.register("static")
class StaticWindow:
    """Always the same γ."""

    def __init__(self, size: int = 4) -> None:
        if size < 1:
            raise ValueError(f"window size must be at least 1 token, not {size}")
        self.size = size

    def choose(self, state: WindowState) -> int:
        return self.size
