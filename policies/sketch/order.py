"""Order in which a device expands the sentences of a sketch whose reader reads along.

Beyond PICE, whose reader waits for the whole answer. A device expands a fixed number of sequences at once; a sentence
begins when one before it in the order has ended. The sketch's own order serves a slow reader; the longest first ends
soonest (LPT); between them lies least slack first: by the time a sentence must begin for its reader not to run dry.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.policies.reader.quality import stall_s


class Schedule(NamedTuple):
    """Start of each sentence, in tokens of one sequence since the first began; sequences are equally fast.

    starts: of each sentence.
    sequences: the sentences of each sequence, in order.
    end: of the last one.
    """

    starts: tuple[int, ...]
    sequences: tuple[tuple[int, ...], ...]
    end: int


def list_schedule(tokens: Sequence[int], order: Sequence[int], slots: int) -> Schedule:
    """Return Graham's list schedule: in this order, each sentence to the sequence that is free first.

    tokens: expected length of each sentence's expansion, at least 1.
    order: all sentences' indices.
    slots: sequences at once, at least 1.
    """
    free = [(0, slot) for slot in range(slots)]
    starts, sequences = [0] * len(tokens), [list[int]() for _ in range(slots)]
    for sentence in order:
        starts[sentence], slot = heapq.heappop(free)
        sequences[slot].append(sentence)
        heapq.heappush(free, (starts[sentence] + tokens[sentence], slot))
    return Schedule(tuple(starts), tuple(tuple(s) for s in sequences if s), max(free)[0])


def token_times(tokens: Sequence[int], schedule: Schedule, token_s: float) -> NDArray[np.float64]:
    """Return when each token of the answer can be read, in order: no sooner than all before it; seconds.

    token_s: a sequence's seconds per token.
    """
    came = [start + np.arange(1, length + 1) for start, length in zip(schedule.starts, tokens, strict=True)]
    return np.maximum.accumulate(np.concatenate(came)) * token_s


def wait_s(tokens: Sequence[int], schedule: Schedule, token_s: float, rate: float) -> float:
    """Return the seconds that a reader of `rate` tokens/s waits, for the first token and whenever the buffer is dry."""
    times_s = token_times(tokens, schedule, token_s)
    return float(times_s[0]) + stall_s(times_s, rate)


def reading_order(tokens: Sequence[int], slots: int, token_s: float, rate: float) -> tuple[int, ...]:
    """Return the one of three orders for which the reader waits least; among equals the device is free soonest.

    The best of all orders is a hard problem (scheduling on parallel machines against the latest delay). If all
    sentences fit at once, the sketch's order is taken.

    tokens, slots: as in `list_schedule`.
    token_s: a sequence's seconds per token.
    rate: the reader's, tokens/s; 0 without a reader.
    """
    sketch = tuple(range(len(tokens)))
    if len(tokens) <= slots:
        return sketch
    longest_first = tuple(sorted(sketch, key=lambda i: -tokens[i]))
    if not rate:
        return longest_first
    latest = _latest_starts_s(tokens, token_s, rate)
    least_slack_first = (0, *sorted(sketch[1:], key=lambda i: latest[i]))

    def cost(order: tuple[int, ...]) -> tuple[float, int]:
        schedule = list_schedule(tokens, order, slots)
        return wait_s(tokens, schedule, token_s, rate), schedule.end

    return min(sketch, least_slack_first, longest_first, key=cost)


def _latest_starts_s(tokens: Sequence[int], token_s: float, rate: float) -> NDArray[np.float64]:
    """Return when each sentence must begin, after the reader has, so that the reader does not run dry in it: when the
    reader reaches it, or earlier by as much as a slower sequence falls behind."""
    lengths = np.array(tokens, dtype=np.float64)
    reached_s = (lengths.cumsum() - lengths) / rate
    latest_s: NDArray[np.float64] = reached_s - lengths * max(0.0, token_s - 1 / rate)
    return latest_s
