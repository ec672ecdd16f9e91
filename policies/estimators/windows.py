"""Sliding windows of prompt lengths, output lengths and times to first token.

A window forgets its oldest sample. Adding a sample takes O(log n) time (and a memmove), so that a plan that reads
these windows includes the request before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

KEPT = 4096
GOLDEN = (math.sqrt(5) - 1) / 2
EXACT = 4096
"""Tokens; shorter prompts are distinguished by each token of their length."""
PER_DOUBLING = 64
"""Classes of longer prompts from a length to its double: lengths in one class differ by less than 1/64 (1.6 %)."""
POINTS = 200
"""Samples that represent a whole window sent to another process."""


class _Ring:
    """Ring buffer of the last `kept` samples."""

    __slots__ = ("_at", "_kept", "_samples")

    def __init__(self, samples: list[float], kept: int) -> None:
        if kept < 1:
            raise ValueError(f"a window keeps at least 1 sample, not {kept}")
        self._samples, self._kept, self._at = samples[-kept:], kept, 0

    def push(self, sample: float) -> float | None:
        """Add a sample; return the one it replaces, or None if there was room."""
        if len(self._samples) < self._kept:
            self._samples.append(sample)
            return None
        at, self._at = self._at, (self._at + 1) % self._kept
        dropped, self._samples[at] = self._samples[at], sample
        return dropped

    def replace(self, samples: list[float]) -> None:
        self._samples, self._at = samples[-self._kept :], 0

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[float]:
        return iter(self._samples)


class Lengths:
    """p(l): distribution of prompt lengths, and of prompt tokens over lengths.

    A Fenwick tree holds the tokens of all prompts of each length. Above EXACT tokens, lengths that differ by less than
    1/64 may share a class, so that the tree has at most 8,192 entries, however long prompts get.

    samples: lengths in tokens, oldest first.
    kept: size of the window.
    """

    __slots__ = ("_ring", "_size", "_tree", "seen", "total")

    def __init__(self, samples: Iterable[int] = (), kept: int = KEPT) -> None:
        lengths = np.asarray(samples if isinstance(samples, np.ndarray) else list(samples), np.int64)[-kept:]
        if lengths.size and lengths.min() < 1:
            raise ValueError(f"a prompt has at least 1 token, not {lengths.min()}")
        self._ring = _Ring(lengths.tolist(), kept)
        self.total = int(lengths.sum())
        """Tokens of all prompts in the window."""
        self.seen = len(self._ring)
        """Prompts, forgotten ones included."""
        self._build(_class(int(lengths.max(initial=255))), lengths)

    def note(self, tokens: int) -> None:
        """Add a prompt of `tokens` tokens."""
        if tokens < 1:
            raise ValueError(f"a prompt has at least 1 token, not {tokens}")
        dropped = self._ring.push(tokens)
        at = tokens if tokens < EXACT else _class(tokens)
        if at >= self._size:
            self._build(at, np.fromiter(self._ring, np.int64, len(self._ring)))
        else:
            self._add(at, tokens)
            if dropped is not None:
                self._add(_class(int(dropped)), -int(dropped))
        self.total += tokens - int(dropped or 0)
        self.seen += 1

    def around(self, tokens: int) -> tuple[float, float, float]:
        """Return the shares of all prompt tokens in prompts shorter than `tokens`, of its class, and longer; all 0
        before the first sample."""
        total, tree, at = self.total, self._tree, tokens if tokens < EXACT else _class(tokens)
        if not total:
            return 0.0, 0.0, 0.0
        if at >= self._size:
            return 1.0, 0.0, 0.0
        below, left = 0, at - 1
        while left > at & (at - 1):  # entries whose sum tree[at] includes
            below += tree[left]
            left &= left - 1
        alike = tree[at] - below
        while left > 0:
            below += tree[left]
            left &= left - 1
        return below / total, alike / total, (total - below - alike) / total

    def threshold(self, share: float) -> int:
        """Return the least length l such that prompts up to l hold more than `share` of all tokens: the least of its
        class.

        If prompts of every length hold few tokens, this is l_th of DiSCo's equation (3) with share = 1 − b.
        """
        left, at, step, tree = share * self.total, 0, self._size >> 1, self._tree
        while step:
            if at + step < self._size and tree[at + step] <= left:
                at += step
                left -= tree[at]
            step >>= 1
        return _least(at + 1)

    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths in the window, ascending, and the share of all tokens in prompts of each."""
        lengths, prompts = np.unique(np.fromiter(self._ring, np.int64, len(self._ring)), return_counts=True)
        return lengths, lengths * prompts / max(1, self.total)

    def __len__(self) -> int:
        return len(self._ring)

    def _build(self, longest: int, lengths: np.ndarray) -> None:
        """Build the tree for classes up to `longest`."""
        self._size = size = 1 << longest.bit_length()
        if size > EXACT:
            coarse = lengths >= EXACT
            classes = lengths.copy()
            classes[coarse] = [_class(n) for n in lengths[coarse].tolist()]
            tokens = np.bincount(classes, lengths, size).astype(np.int64)
        else:
            tokens = np.bincount(lengths, minlength=size) * np.arange(size)
        below = np.cumsum(tokens)
        index = np.arange(size)
        self._tree: list[int] = (below - below[index & (index - 1)]).tolist()

    def _add(self, at: int, tokens: int) -> None:
        tree, size = self._tree, self._size
        while at < size:
            tree[at] += tokens
            at += at & -at


def _class(tokens: int) -> int:
    """Return the class of a length: the length itself below EXACT."""
    if tokens < EXACT:
        return tokens
    doublings = (tokens // EXACT).bit_length() - 1
    return EXACT + PER_DOUBLING * (doublings - 1) + (tokens * PER_DOUBLING // EXACT >> doublings)


def _least(at: int) -> int:
    """Return the least length of a class."""
    if at < EXACT:
        return at
    doublings, step = divmod(at - EXACT, PER_DOUBLING)
    return (PER_DOUBLING + step) * EXACT // PER_DOUBLING << doublings


def _table(ascending: Sequence[float], points: int) -> tuple[float, ...]:
    """Return F⁻¹(1/n), F⁻¹(2/n) … F⁻¹(1) for n points, or all samples if there are no more than n."""
    count = len(ascending)
    if count <= points:
        return tuple(ascending)
    return tuple(ascending[-(-i * count // points) - 1] for i in range(1, points + 1))


class Sampled(NamedTuple):
    """A window reduced to at most POINTS samples, to send to another process.

    F of these, G(t) = ⌊n·F(t)⌋ / n for n points, is never above the window's own F and less than 1/n = 0.005 below it;
    its quantiles are never below the window's own, and G⁻¹(q) ≤ F⁻¹(q + 1/n). So a plan made with them waits no
    shorter than it should. With n samples or fewer, G is F. It is for decisions only: add further samples to the
    original window, which weighs them against all of its own.

    points: F⁻¹(1/n) … F⁻¹(1).
    seen: samples, forgotten ones included.
    """

    points: tuple[float, ...]
    seen: int


class _Window:
    """Samples in order of arrival, and sorted.

    seen: samples, forgotten ones included.
    """

    __slots__ = ("_ring", "_sorted", "seen")

    def __init__(self, samples: np.ndarray, kept: int) -> None:
        self._ring = _Ring(samples.tolist(), kept)
        self._sorted: list[float] = np.sort(samples[-kept:]).tolist()
        self.seen = len(self._ring)

    def note(self, sample: float) -> None:
        dropped = self._ring.push(sample)
        if dropped is not None:
            del self._sorted[bisect_left(self._sorted, dropped)]
        insort(self._sorted, sample)
        self.seen += 1

    def snapshot(self, points: int = POINTS) -> Sampled:
        """Return a reduced copy, for another process."""
        return Sampled(_table(self._sorted, points), self.seen)

    def adopt(self, other: Sampled) -> None:
        """Take over another window if it has seen more samples."""
        if other.seen > self.seen:
            self._sorted = list(other.points)
            self._ring.replace(self._sorted[:])
            self.seen = other.seen

    def __len__(self) -> int:
        return len(self._ring)


class Latencies(_Window):
    """F(t): distribution of a latency, from a window of samples.

    samples: seconds, oldest first.
    kept: size of the window.
    """

    __slots__ = ("_turn",)

    def __init__(self, samples: Iterable[float] = (), kept: int = KEPT) -> None:
        times_s = np.asarray(samples if isinstance(samples, np.ndarray) else list(samples), float)[-kept:]
        if not np.all(times_s >= 0):
            raise ValueError("a time is 0 s or more")
        super().__init__(times_s, kept)
        self._turn = 0.0

    def note(self, seconds: float) -> None:
        if not seconds >= 0:
            raise ValueError(f"a time is 0 s or more, not {seconds}")
        super().note(seconds)

    def note_longer(self, seconds: float) -> None:
        """Add a censored latency: the operation was stopped after `seconds`, before it was over.

        Its end is imputed evenly over the known tail beyond `seconds`: dropping such samples, or counting them as
        `seconds`, would cut off the very tail that is raced against.
        """
        above = len(self._sorted) - (first := bisect_right(self._sorted, seconds))
        self._turn = (self._turn + GOLDEN) % 1.0
        self.note(self._sorted[first + int(self._turn * above)] if above else seconds)

    def cdf(self, seconds: float) -> float:
        """Return F(t): the share of samples no longer than `seconds`; 0 before the first sample."""
        return bisect_right(self._sorted, seconds) / len(self._sorted) if self._sorted else 0.0

    def cdfs(self, seconds: np.ndarray) -> np.ndarray:
        """Return F(t) of several times."""
        return np.searchsorted(self._sorted, seconds, side="right") / max(1, len(self._sorted))

    def quantile(self, share: float) -> float:
        """Return F⁻¹(q) = inf{t ≥ 0 : F(t) ≥ q}, seconds; infinite for q > 0 before the first sample."""
        if share <= 0.0:
            return 0.0
        if not self._sorted:
            return math.inf
        # 1e-9: q itself is rounded, and F steps exactly where a budget is a round number of samples
        rank = math.ceil(share * len(self._sorted) - 1e-9)
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def __iter__(self) -> Iterator[float]:
        """Iterate from the shortest to the longest."""
        return iter(self._sorted)


class Outputs(_Window):
    """Distribution of answer lengths, and the expected rest of an answer.

    prior: expected tokens before the first answer.
    kept: number of answers in the window.
    """

    __slots__ = ("_prior", "_sums")

    def __init__(self, prior: int = 128, kept: int = 512) -> None:
        super().__init__(np.empty(0), kept)
        self._sums: list[float] = []  # prefix sums of the sorted lengths; empty until needed
        self._prior = prior

    def note(self, tokens: float) -> None:
        super().note(tokens)
        self._sums = []

    @property
    def count(self) -> int:
        """Return the number of answers in the window."""
        return len(self._sorted)

    def remaining(self, sent: int, most: int) -> float:
        """Return the expected further tokens of an answer of `sent` so far and at most `most`: E[L − n | L > n]."""
        lengths = self._sorted
        first, count = bisect_right(lengths, sent), len(lengths)
        if first == count:
            return float(max(0, min(most - sent, 1 if lengths else self._prior)))
        if sent >= most:
            return 0.0
        cut = bisect_left(lengths, most)  # answers from here on end at `most`
        if self._sums or first:
            sums = self._sums or self._sum()
            tokens = sums[cut] - sums[first]
        else:  # of a request that has not begun, after each answer: one sum is enough
            tokens = sum(lengths[:cut])
        tokens += most * (count - cut)
        return (tokens - sent * (count - first)) / (count - first)

    def adopt(self, other: Sampled) -> None:
        super().adopt(other)
        self._sums = []

    def _sum(self) -> list[float]:
        self._sums = [*accumulate(self._sorted, initial=0)]
        return self._sums
