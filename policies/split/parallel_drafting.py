"""Parallel drafting: what the device of a split model drafts while it waits for a verdict.

HAT (Xie et al. 2025), section 3.5. The last token of a draft is the one that the drafter was least sure of. Branches
start from the likeliest tokens at its place, one row of a batch each. If the model chooses one of these tokens, its
branch is the next round's draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tandem.policies.base import Registry
from tandem.policies.speculation.arithmetic import MAX_WINDOW


@dataclass(frozen=True, slots=True)
class WaitState:
    """State when a draft is sent.

    tokens: μ_i, number of tokens whose hidden states are sent.
    left: tokens that the next draft may have.
    link_token_s: A/β_up + A/β_down, seconds of a token's hidden state up and down.
    delay_s: g(μ), seconds of a batch in the cloud if it begins at once.
    draft_s: γ as a function: seconds to draft a token in each of a number of branches; non-decreasing.
    rtt_s: the link's round trip without its bandwidth.
    passed_s: seconds of the wait that have passed already.
    """

    tokens: int
    left: int
    link_token_s: float
    delay_s: float
    draft_s: Callable[[float], float]
    rtt_s: float = 0.0
    passed_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the verdict, at least: the numerator of HAT's equation (6), plus the link's latency."""
        transfer_s = self.tokens * self.link_token_s
        return max(0.0, self.rtt_s + transfer_s + self.delay_s - self.passed_s)


class Ahead(NamedTuple):
    """Parallel drafting of a wait: number of branches, and of tokens after the first one of each."""

    branches: int
    steps: int


NOTHING = Ahead(0, 0)


class ParallelDraftingPolicy(Protocol):
    def choose(self, state: WaitState) -> Ahead:
        """Return branches and steps that end before the verdict can come."""
        ...


parallel_drafting: Registry[ParallelDraftingPolicy] = Registry("parallel_drafting")


@parallel_drafting.register("none")
class NoParallelDrafting:
    """Does not draft while it waits."""

    def choose(self, state: WaitState) -> Ahead:
        return NOTHING


@parallel_drafting.register("hat")
class HatParallelDrafting:
    """HAT's equation (6): λ = ⌊(μ_i·A/β_up + g(μ) + μ_i·A/β_down) / γ⌋ steps, where γ is the time of a step of all
    branches; fewer branches if there is no time for one step of them all.

    k: branches.
    most: most steps.
    """

    def __init__(self, k: int = 4, most: int = MAX_WINDOW) -> None:
        if k < 1 or most < 1:
            raise ValueError(f"needs k ≥ 1 and most ≥ 1, not {k} and {most}")
        self._k, self._most = k, most

    def choose(self, state: WaitState) -> Ahead:
        wait_s, most = state.wait_s, min(self._most, state.left)
        for branches in range(self._k, 0, -1):
            step_s = state.draft_s(branches)
            steps = int(wait_s / step_s) if most * step_s > wait_s else most
            if steps > 0:
                return Ahead(branches, steps)
        return NOTHING
