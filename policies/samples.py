"""What was seen lately: sliding windows of prompt lengths, of output lengths and of times to first token.

A window forgets by dropping its oldest sample. Every sample is taken in in O(log n) time (and a memmove), so
that a plan that asks these windows is up to date with the request before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np

KEPT = 4096
GOLDEN = (math.sqrt(5) - 1) / 2


class _Ring:
    """The last `kept` samples in order of arrival."""

    __slots__ = ("_at", "_kept", "_samples")

    def __init__(self, samples: list[float], kept: int) -> None:
        if kept < 1:
            raise ValueError(f"a window keeps at least 1 sample, not {kept}")
        self._samples, self._kept, self._at = samples[-kept:], kept, 0

    def push(self, sample: float) -> float | None:
        """Take a sample in; the one that it drives out, if the window was full."""
        if len(self._samples) < self._kept:
            self._samples.append(sample)
            return None
        at, self._at = self._at, (self._at + 1) % self._kept
        dropped, self._samples[at] = self._samples[at], sample
        return dropped

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[float]:
        return iter(self._samples)


class Lengths:
    """p(l): how long prompts are, and how all their tokens are spread over lengths.

    A Fenwick tree over lengths holds the tokens of prompts of each length. samples: lengths, tokens, oldest
    first; kept: how many are remembered.
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
        self._build(1 << int(lengths.max(initial=255)).bit_length(), lengths)

    def note(self, tokens: int) -> None:
        """A prompt of so many tokens has come."""
        if tokens < 1:
            raise ValueError(f"a prompt has at least 1 token, not {tokens}")
        dropped = self._ring.push(tokens)
        if tokens >= self._size:
            self._build(1 << tokens.bit_length(), np.fromiter(self._ring, np.int64, len(self._ring)))
        else:
            self._add(tokens, tokens)
            if dropped is not None:
                self._add(int(dropped), -int(dropped))
        self.total += tokens - int(dropped or 0)
        self.seen += 1

    def share_below(self, tokens: int) -> float:
        """Share of all prompt tokens that are in prompts shorter than `tokens`; 0 where nothing was seen."""
        if not self.total:
            return 0.0
        at, below, tree = min(tokens, self._size) - 1, 0, self._tree
        while at > 0:
            below += tree[at]
            at &= at - 1
        return below / self.total

    def threshold(self, share: float) -> int:
        """The least length l such that prompts up to l hold more than `share` of all tokens.

        Where prompts of every length hold few tokens this is l_th of equation (3) with share = 1 − b.
        """
        left, at, step, tree = share * self.total, 0, self._size >> 1, self._tree
        while step:
            if at + step < self._size and tree[at + step] <= left:
                at += step
                left -= tree[at]
            step >>= 1
        return at + 1

    def shares(self) -> tuple[np.ndarray, np.ndarray]:
        """(lengths that occur in ascending order, share of all tokens that is in prompts of each)."""
        lengths, prompts = np.unique(np.fromiter(self._ring, np.int64, len(self._ring)), return_counts=True)
        return lengths, lengths * prompts / max(1, self.total)

    def __len__(self) -> int:
        return len(self._ring)

    def _build(self, size: int, lengths: np.ndarray) -> None:
        self._size = size
        tokens = np.bincount(lengths, minlength=size) * np.arange(size)
        below = np.cumsum(tokens)
        index = np.arange(size)
        self._tree: list[int] = (below - below[index & (index - 1)]).tolist()

    def _add(self, at: int, tokens: int) -> None:
        tree, size = self._tree, self._size
        while at < size:
            tree[at] += tokens
            at += at & -at


class Latencies:
    """F(t): the distribution of a time, from a window of it.

    samples: seconds, oldest first; kept: how many are remembered.
    """

    __slots__ = ("_ring", "_sorted", "_turn", "seen")

    def __init__(self, samples: Iterable[float] = (), kept: int = KEPT) -> None:
        times_s = np.asarray(samples if isinstance(samples, np.ndarray) else list(samples), float)[-kept:]
        if not np.all(times_s >= 0):
            raise ValueError("a time is 0 s or more")
        self._ring = _Ring(times_s.tolist(), kept)
        self._sorted: list[float] = np.sort(times_s).tolist()
        self._turn = 0.0
        self.seen = len(self._ring)
        """Samples, forgotten ones included."""

    def note(self, seconds: float) -> None:
        """It took so long."""
        if not seconds >= 0:
            raise ValueError(f"a time is 0 s or more, not {seconds}")
        dropped = self._ring.push(seconds)
        if dropped is not None:
            del self._sorted[bisect_left(self._sorted, dropped)]
        insort(self._sorted, seconds)
        self.seen += 1

    def note_longer(self, seconds: float) -> None:
        """It would have taken longer than that: whoever was waited for was stopped.

        Where in the tail it would have ended is imputed from the tail that is known, evenly over it: ignoring
        such samples, or taking them at their word, would cut off the very tail that is raced against.
        """
        above = len(self._sorted) - (first := bisect_right(self._sorted, seconds))
        self._turn = (self._turn + GOLDEN) % 1.0
        self.note(self._sorted[first + int(self._turn * above)] if above else seconds)

    def cdf(self, seconds: float) -> float:
        """F(t): share of samples that were no longer than that; 0 where nothing was seen."""
        return bisect_right(self._sorted, seconds) / len(self._sorted) if self._sorted else 0.0

    def cdfs(self, seconds: np.ndarray) -> np.ndarray:
        """F(t) of many times at once."""
        return np.searchsorted(self._sorted, seconds, side="right") / max(1, len(self._sorted))

    def quantile(self, share: float) -> float:
        """F⁻¹(q) = inf{t ≥ 0 : F(t) ≥ q}, seconds; infinite where nothing was seen and q > 0."""
        if share <= 0.0:
            return 0.0
        if not self._sorted:
            return math.inf
        # 1e-9: q itself is rounded, and F steps exactly where a budget is a round number of samples
        rank = math.ceil(share * len(self._sorted) - 1e-9)
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[float]:
        """From the shortest to the longest."""
        return iter(self._sorted)


class Outputs:
    """How long answers are, and so how much of one is probably left. kept: answers that are remembered."""

    __slots__ = ("_prior", "_ring", "_sorted")

    def __init__(self, prior: int = 128, kept: int = 512) -> None:
        self._ring = _Ring([], kept)
        self._sorted: list[int] = []
        self._prior = prior
        """Tokens, expected where no answer was as long as this one already is."""

    def note(self, tokens: int) -> None:
        """An answer had so many tokens."""
        dropped = self._ring.push(tokens)
        if dropped is not None:
            del self._sorted[bisect_left(self._sorted, dropped)]
        insort(self._sorted, tokens)

    def remaining(self, sent: int, most: int) -> float:
        """Expected tokens that an answer of `sent` tokens and at most `most` still gets: E[L − n | L > n]."""
        longer = self._sorted[bisect_right(self._sorted, sent) :]
        if not longer:
            return float(max(0, min(most - sent, self._prior if not self._sorted else 1)))
        return sum(min(tokens, most) - sent for tokens in longer) / len(longer) if sent < most else 0.0
