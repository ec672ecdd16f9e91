"""Batch formation: which sequences get how many token positions in the engine's next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.base import Registry


@dataclass(frozen=True, slots=True)
class Demand:
    """One sequence that has work to do.

    pending: token positions not yet computed (prompt left to prefill plus the window).
    window: the positions at the end of `pending` that must be computed in one step, because
        their logits are needed together (1 for plain decode, γ + 1 for a verification window,
        0 where no logits are wanted).
    arrival: order in which the sequences' present work arrived; lower is older.
    """

    pending: int
    window: int
    arrival: int


class BatchingPolicy(Protocol):
    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        """Positions granted to each demand, in the order given.

        A grant is 0 ≤ g ≤ pending, and either g = pending (the window is computed) or
        g ≤ pending − window (a prefill chunk). The grants sum to at most `budget`, except that a
        single window larger than the budget may be granted alone, so that it cannot starve.
        """
        ...


batching: Registry[BatchingPolicy] = Registry("batching")


@batching.register("fifo")
class FifoChunkedPrefill:
    """Decode and verification first (their readers wait), then prefill in order of arrival, in chunks.

    chunk: the most prefill positions in a step that also decodes; it bounds how long a long
        prompt can hold up the others' next token (Sarathi-style chunked prefill). A step with
        nothing to decode uses the whole budget.
    """

    def __init__(self, chunk: int = 128) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 token, not {chunk}")
        self.chunk = chunk

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        grants = [0] * len(demands)
        left = budget
        by_arrival = sorted(range(len(demands)), key=lambda i: demands[i].arrival)
        for i in by_arrival:  # windows that are ready: nothing to prefill before them
            d = demands[i]
            if d.pending == d.window and (d.window <= left or left == budget):
                grants[i] = d.window
                left -= d.window
        if left < budget:
            left = min(left, self.chunk)
        for i in by_arrival:
            d = demands[i]
            if left <= 0:
                break
            if d.pending == d.window:
                continue
            grants[i] = d.pending if d.pending <= left else min(left, d.pending - d.window)
            left -= grants[i]
        return grants
