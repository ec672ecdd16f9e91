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
    context: token positions already computed, which every pending one attends to.
    """

    pending: int
    window: int
    arrival: int
    context: int = 0


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

    chunk: prefill positions in a step that also decodes; it bounds how long a long prompt can hold up
        the others' next token (Sarathi-style chunked prefill). A step with nothing to decode uses the
        whole budget.
    context_doubles: tokens of context at which a prefill position costs twice what it costs at the
        start, attention growing with the context; chunks shrink accordingly.
    """

    def __init__(self, chunk: int = 32, context_doubles: int = 1024) -> None:
        if chunk < 1 or context_doubles < 1:
            raise ValueError(f"chunk and context_doubles must be at least 1, not {chunk}, {context_doubles}")
        self.chunk, self.context_doubles = chunk, context_doubles

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        grants = [0] * len(demands)
        left = budget
        by_arrival = sorted(range(len(demands)), key=lambda i: demands[i].arrival)
        for i in by_arrival:  # windows that are ready: nothing to prefill before them
            d = demands[i]
            if d.pending == d.window and (d.window <= left or left == budget):
                grants[i] = d.window
                left -= d.window
        allowance = float(self.chunk if left < budget else budget)
        weighted = left < budget
        for i in by_arrival:
            d = demands[i]
            if left <= 0 or allowance <= 0:
                break
            if d.pending == d.window:
                continue
            cost = 1 + d.context / self.context_doubles if weighted else 1.0
            room = min(left, max(1, int(allowance / cost)))
            grants[i] = d.pending if d.pending <= room else min(room, d.pending - d.window)
            left -= grants[i]
            allowance -= grants[i] * cost
        return grants
