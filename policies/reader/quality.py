"""Quality of text streaming (TokenFlow, sections 3.2 and 7.1.3), computed from the arrival times of tokens.

A reader of rate r, tokens/s, starts with the first token and takes one every 1/r seconds; token j, which comes at
times_j, is read at read_j = max(times_j, read_{j−1} + 1/r), and takes until read_j + 1/r. All times are in seconds on
any one clock; times_s are those of one request's tokens, and do not decrease.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FULL = 0.1  # share of the output: up to this buffer a token counts in full (τ1 of TokenFlow, section 7.1.3)
NONE = 0.2  # share of the output: from this buffer on a token counts nothing (τ2 there)
STALLED_S = 1e-3  # a request that waited longer in all has stalled


def _leads(times_s: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Return by how many seconds each token comes after a reader who never waited would have taken it; 0 for the
    first."""
    return (times_s - times_s[:1]) - np.arange(times_s.size) / rate


def read_times(times_s: ArrayLike, rate: float) -> NDArray[np.float64]:
    """Return when the reading of each token begins: j/r + the cumulative maximum of times_k − k/r.

    Computed from the token that the reader last waited for, so that a token read as it comes has exactly that time.
    """
    times = np.asarray(times_s, dtype=np.float64)
    leads, index = _leads(times, rate), np.arange(times.size)
    since = np.maximum.accumulate(np.where(leads >= np.maximum.accumulate(leads), index, 0))
    return np.maximum(times, times[since] + (index - since) / rate)


def buffers(times_s: ArrayLike, rate: float) -> NDArray[np.int64]:
    """Return B_j, tokens: those that have come up to token j, less those whose reading has begun."""
    times = np.asarray(times_s, dtype=np.float64)
    return np.arange(1, times.size + 1) - np.searchsorted(read_times(times, rate), times, side="right")


def stall_s(times_s: ArrayLike, rate: float) -> float:
    """Return rebuffering, seconds the reader waited after the first token: read_L − read_1 − (L − 1)/r."""
    return float(_leads(np.asarray(times_s, dtype=np.float64), rate).max(initial=0.0))


def token_value(buffer: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """Return w of TokenFlow's equation (1), a token's value: 1 up to a buffer of 10 % of the output, 0 from 20 % on.

    buffer: B, tokens.
    length: of the output, tokens.
    """
    full, none = FULL * length, NONE * length
    return np.minimum(np.maximum((none - buffer) / (none - full), 0.0), 1.0)


def effective_tokens(times_s: ArrayLike, rate: float) -> float:
    """Return the number of tokens of an output, weighted by `token_value`."""
    sizes = buffers(times_s, rate).astype(np.float64)
    return float(token_value(sizes, sizes.size).sum()) if sizes.size else 0.0


def _check_rate(rate: float) -> None:
    if not 0.0 < rate < math.inf:
        raise ValueError(f"a reader's rate must be a number of tokens/s above 0, not {rate}")


@dataclass(frozen=True, eq=False)
class ReaderStream:
    """One request as its reader saw it.

    arrival_s: arrival time of the request.
    times_s: arrival times of its tokens.
    rate: tokens/s; clients that are not readers get a reference rate.
    """

    arrival_s: float
    times_s: Sequence[float] | NDArray[np.float64]
    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        times = np.array((self.arrival_s, *self.times_s), dtype=np.float64)
        if not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise ValueError("the times of a stream must be finite, not decrease and not precede its arrival")


@dataclass(frozen=True)
class Quality:
    """Quality of service over several streams. Figures per second are 0 if span_s is.

    requests, tokens: counts.
    span_s: from the first arrival to the last token of all.
    ttft_mean_s, ttft_p50_s, ttft_p99_s: from arrival to first token, over the requests that have one; NaN if none has.
    throughput: tokens/s.
    effective_throughput: tokens/s, weighted as in effective_tokens.
    stall_mean_s, stall_max_s: the readers' waits, over all requests.
    stalled_share: share of requests whose reader waited more than 1 ms in all, in [0, 1].
    qos: TokenFlow's equation (2), 1/s; requests without tokens do not count, see `requests`.
    """

    requests: int
    tokens: int
    span_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    throughput: float
    effective_throughput: float
    stall_mean_s: float
    stall_max_s: float
    stalled_share: float
    qos: float


def assess(streams: Sequence[ReaderStream], ttft_weight: float = 1.0, stall_weight: float = 1.0) -> Quality:
    """Return the quality of some streams.

    ttft_weight: λ of TokenFlow's equation (2), tokens per second.
    stall_weight: μ of that equation.
    """
    if not streams:
        raise ValueError("quality needs at least one stream")
    begun = [s for s in streams if len(s.times_s)]
    ttfts = np.array([s.times_s[0] - s.arrival_s for s in begun])
    stalls = np.array([stall_s(s.times_s, s.rate) for s in streams])
    tokens = sum(len(s.times_s) for s in begun)
    effective = sum(effective_tokens(s.times_s, s.rate) for s in begun)
    first = min(s.arrival_s for s in streams)
    span_s = float(max((s.times_s[-1] for s in begun), default=first) - first)
    per_s = 1.0 / span_s if span_s > 0 else 0.0
    return Quality(
        requests=len(streams),
        tokens=tokens,
        span_s=span_s,
        ttft_mean_s=float(ttfts.mean()) if begun else math.nan,
        ttft_p50_s=float(np.percentile(ttfts, 50)) if begun else math.nan,
        ttft_p99_s=float(np.percentile(ttfts, 99)) if begun else math.nan,
        throughput=tokens * per_s,
        effective_throughput=effective * per_s,
        stall_mean_s=float(stalls.mean()),
        stall_max_s=float(stalls.max()),
        stalled_share=float((stalls > STALLED_S).mean()),
        qos=float(effective - ttft_weight * ttfts.sum() - stall_weight * stalls.sum()) * per_s,
    )


class Reader:
    """One reader, followed online in constant time per delivery.

    Reading is continuous: the unread rest of the current token counts, so that the buffer falls by `rate` a second.

    rate: tokens/s.
    stalled_s: seconds that it has waited for tokens after the first.
    """

    __slots__ = ("_dry_at", "rate", "stalled_s")

    def __init__(self, rate: float) -> None:
        _check_rate(rate)
        self.rate = rate
        self._dry_at = -math.inf  # when all that has come will have been read
        self.stalled_s = 0.0

    def deliver(self, tokens: int, now_s: float) -> None:
        """Record that `tokens` arrive at once."""
        if tokens < 0:
            raise ValueError(f"cannot deliver {tokens} tokens")
        if tokens:
            if self._dry_at > -math.inf:
                self.stalled_s += max(0.0, now_s - self._dry_at)
            self._dry_at = max(self._dry_at, now_s) + tokens / self.rate

    def dry_s(self, now_s: float) -> float:
        """Return the seconds until the buffer runs dry; 0 if it has, or nothing has come."""
        return max(0.0, self._dry_at - now_s)

    def buffer(self, now_s: float) -> float:
        """Return the unread tokens."""
        return self.dry_s(now_s) * self.rate
