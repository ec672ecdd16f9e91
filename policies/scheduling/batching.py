"""Batching: how many token positions each sequence gets in the engine's next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tandem.policies.base import Registry


class Demand(NamedTuple):
    """One sequence that has work to do.

    pending: token positions not yet computed (prompt left to prefill plus the window).
    window: positions at the end of `pending` that must be computed in one step, because their logits are needed
        together (1 for plain decode, γ + 1 for a verification window, 0 if no logits are wanted).
    arrival: order in which the sequences' present work arrived; lower is older. Every decoded token is new work, so
        sequences just served stand behind the others.
    context: positions already computed, which every pending one attends to.
    slack: positions that the engine can compute before the sequence's reader runs dry; only for policies that need it.
    """

    pending: int
    window: int
    arrival: int
    context: int = 0
    slack: int = 0


class BatchingPolicy(Protocol):
    """Forms the batch of each step. needs_slack: whether it uses the demands' slack."""

    needs_slack: bool

    @property
    def size(self) -> int | None:
        """Most sequences in a step; None if only the budget limits it."""
        ...

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        """Return the positions granted to each demand, in the order given.

        A grant is 0 ≤ g ≤ pending, and either g = pending (the window is computed) or g ≤ pending − window (a prefill
        chunk). The grants sum to at most `budget`, except that a single window larger than the budget may be granted
        alone, so that it cannot starve.
        """
        ...


batching: Registry[BatchingPolicy] = Registry("batching")


@batching.register("fifo")
class Fifo:
    """Grants strictly in order of arrival. size: most sequences in a step."""

    needs_slack = False

    def __init__(self, size: int = 256) -> None:
        self.size = _at_least_one("size", size)

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        return _serve(demands, _by_arrival(demands)[: self.size], budget, overtake=False)


@batching.register("lab")
class LengthAware:
    """DSD's length-aware batching: the oldest sequence, and those closest to it in length.

    A batch is padded to its longest sequence, so similar lengths waste least. The oldest always runs, so no sequence
    starves. size: most sequences in a step.
    """

    needs_slack = False

    def __init__(self, size: int = 256) -> None:
        self.size = _at_least_one("size", size)

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        lengths = [d.context + d.pending for d in demands]
        line = _by_arrival(demands)
        if len(line) > 2:
            head = lengths[line[0]]
            line[1:] = sorted(line[1:], key=lambda i: abs(lengths[i] - head))
        return _serve(demands, line[: self.size], budget, overtake=True)


@batching.register("continuous")
class Continuous:
    """Grants ready windows first (their readers wait), then whole prompts as they fit; only a prompt larger than the
    budget is cut. The oldest prompt, if it does not fit beside the windows, goes before them once. size: most
    sequences in a step."""

    needs_slack = False

    def __init__(self, size: int = 256) -> None:
        self.size = _at_least_one("size", size)

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        line = _by_arrival(demands)
        ready = [i for i in line if demands[i].pending == demands[i].window]
        if line and len(ready) < len(line):
            oldest = demands[line[0]]
            waits = oldest.pending != oldest.window
            windows = sum(demands[i].window for i in ready)
            if not waits or (windows + oldest.pending <= budget and len(ready) < self.size):
                line.sort(key=lambda i: demands[i].pending != demands[i].window)  # stable
        return _serve(demands, line[: self.size], budget, overtake=True)


@batching.register("chunked")
class ChunkedPrefill:
    """Grants decode and verification first (their readers wait), then prefill chunks in order of arrival.

    chunk: prefill positions in a step that also decodes; bounds the delay of the others' next token by a long prompt
        (Sarathi-style chunked prefill). A step without decoding uses the whole budget.
    context_doubles: tokens of context at which a prefill position costs twice as much as at the start, as attention
        grows with the context; chunks shrink accordingly.
    """

    needs_slack = False
    size: int | None = None

    def __init__(self, chunk: int = 32, context_doubles: int = 1024) -> None:
        self.chunk = _at_least_one("chunk", chunk)
        self.context_doubles = _at_least_one("context_doubles", context_doubles)

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        return self._form(demands, budget, self.chunk)

    def _form(self, demands: Sequence[Demand], budget: int, chunk: int) -> list[int]:
        grants = [0] * len(demands)
        left = budget
        by_arrival = _by_arrival(demands)
        for i in by_arrival:  # ready windows: nothing is left to prefill before them
            d = demands[i]
            if d.pending == d.window and (d.window <= left or left == budget):
                grants[i] = d.window
                left -= d.window
        allowance = float(chunk if left < budget else budget)
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


@batching.register("buffered")
class Buffered(ChunkedPrefill):
    """Chunked prefill whose chunks grow with the unread tokens of the decoding sequences: over a step, at most as many
    of their readers may run dry as there are prompts whose readers wait for a first token.

    chunk: least prefill beside decoding.
    share: share of the time until the readers run dry that a step may take.
    """

    needs_slack = True

    def __init__(self, chunk: int = 32, context_doubles: int = 1024, share: float = 0.5) -> None:
        super().__init__(chunk, context_doubles)
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, not {share}")
        self.share = share

    def form(self, demands: Sequence[Demand], budget: int) -> list[int]:
        slacks = sorted(d.slack for d in demands if d.pending == d.window)
        waiting = len(demands) - len(slacks)
        slack = slacks[min(waiting, len(slacks) - 1)] if slacks else budget
        return self._form(demands, budget, max(self.chunk, int(self.share * slack)))


def _by_arrival(demands: Sequence[Demand]) -> list[int]:
    return sorted(range(len(demands)), key=[d.arrival for d in demands].__getitem__)


def _serve(demands: Sequence[Demand], line: Sequence[int], budget: int, overtake: bool) -> list[int]:
    """Grant the demands of `line` in its order, while the budget lasts.

    Prompts that do not fit are cut, the first of the line in any case; overtake: later ones may use what an earlier
    one cannot.
    """
    grants = [0] * len(demands)
    left = budget
    for i in line:
        d = demands[i]
        if d.pending <= left:
            grants[i] = d.pending
        elif left == budget:  # the head: a larger window goes alone, a prompt is cut
            grants[i] = d.window if d.pending == d.window else min(left, d.pending - d.window)
        elif not overtake:
            grants[i] = min(left, d.pending - d.window)
            break
        left -= grants[i]
        if left <= 0:
            break
    return grants


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value
