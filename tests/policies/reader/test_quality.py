from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.reader.quality import (
    Reader,
    ReaderStream,
    assess,
    buffers,
    effective_tokens,
    read_times,
    stall_s,
    token_value,
)

# Multiples of 1/64 s and rates that are powers of 2 leave no rounding, so that ties are ties.
gaps = st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 400))
exact_times = st.lists(gaps, max_size=60).map(lambda g: [float(t) / 64 for t in np.cumsum(g)])
exact_rates = st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
any_times = st.lists(st.floats(0.0, 1e4), max_size=60).map(sorted)
any_rates = st.floats(0.1, 100.0)


def slow_reads(times: list[float], rate: float) -> list[float]:
    """The reader, token by token."""
    reads: list[float] = []
    for time in times:
        reads.append(max(time, reads[-1] + 1 / rate) if reads else time)
    return reads


def slow_buffers(times: list[float], rate: float) -> list[int]:
    reads = slow_reads(times, rate)
    return [j - sum(read <= time for read in reads) for j, time in enumerate(times, 1)]


def slow_stall(times: list[float], rate: float) -> float:
    """The waits one by one: from the end of a token's reading to the beginning of the next."""
    return sum(max(0.0, b - (a + 1 / rate)) for a, b in pairwise(slow_reads(times, rate)))


def slow_effective(times: list[float], rate: float) -> float:
    """The rule of 10 % and 20 %, in words."""
    total, length = 0.0, len(times)
    for size in slow_buffers(times, rate):
        share = size / length
        total += 1.0 if share <= 0.1 else 0.0 if share >= 0.2 else (0.2 - share) / 0.1
    return total


@given(exact_times, exact_rates)
def test_equals_the_slow_reader(times: list[float], rate: float) -> None:
    assert read_times(times, rate).tolist() == slow_reads(times, rate)
    assert buffers(times, rate).tolist() == slow_buffers(times, rate)
    assert stall_s(times, rate) == slow_stall(times, rate)
    assert effective_tokens(times, rate) == pytest.approx(slow_effective(times, rate))


@given(any_times, any_rates)
def test_rounding_does_no_harm(times: list[float], rate: float) -> None:
    reads = read_times(times, rate)
    assert reads == pytest.approx(slow_reads(times, rate), abs=1e-6)
    assert (reads >= times).all()
    assert stall_s(times, rate) == pytest.approx(slow_stall(times, rate), abs=1e-6)
    if times:
        assert stall_s(times, rate) == pytest.approx(reads[-1] - reads[0] - (len(times) - 1) / rate, abs=1e-6)
    sizes = buffers(times, rate)
    assert ((sizes >= 0) & (sizes < max(1, len(times)))).all()
    assert 0 <= effective_tokens(times, rate) <= len(times)


@given(exact_times, exact_rates)
def test_reader_follows_deliveries(times: list[float], rate: float) -> None:
    reader = Reader(rate)
    arrived = sorted(set(times))
    for now in arrived:
        reader.deliver(times.count(now), now)
        so_far = [t for t in times if t <= now]
        # of the unread, one is being read: it counts with what is left of it
        assert math.ceil(reader.buffer(now)) - 1 == buffers(times, rate)[len(so_far) - 1]
        assert now + reader.dry_s(now) == read_times(so_far, rate)[-1] + 1 / rate


@given(any_times, any_rates)
def test_reader_agrees_at_any_times(times: list[float], rate: float) -> None:
    reader = Reader(rate)
    for i, time in enumerate(times, 1):
        reader.deliver(1, time)
        assert time + reader.dry_s(time) == pytest.approx(
            read_times(times[:i], rate)[-1] + 1 / rate, abs=1e-6
        )


def test_a_reader_by_hand() -> None:
    times = [10.0, 10.0, 10.25, 14.0, 14.0]  # 2 tokens/s: waits from 11.5 to 14
    assert read_times(times, 2.0).tolist() == [10.0, 10.5, 11.0, 14.0, 14.5]
    assert buffers(times, 2.0).tolist() == [0, 1, 2, 0, 1]
    assert stall_s(times, 2.0) == 2.5

    reader = Reader(2.0)
    assert (reader.buffer(3.0), reader.dry_s(3.0)) == (0.0, 0.0)
    reader.deliver(0, 5.0)
    assert reader.dry_s(5.0) == 0.0
    reader.deliver(2, 10.0)
    assert (reader.buffer(10.0), reader.dry_s(10.0)) == (2.0, 1.0)
    reader.deliver(1, 10.25)
    assert (reader.buffer(10.25), reader.dry_s(10.25)) == (2.5, 1.25)
    assert (reader.buffer(12.0), reader.dry_s(12.0)) == (0.0, 0.0)
    reader.deliver(2, 14.0)
    assert reader.buffer(14.0) == 2.0


def test_no_tokens_and_one() -> None:
    assert read_times([], 5.0).tolist() == buffers([], 5.0).tolist() == []
    assert stall_s([], 5.0) == effective_tokens([], 5.0) == 0.0
    assert read_times([3.0], 5.0).tolist() == [3.0]
    assert buffers([3.0], 5.0).tolist() == [0]
    assert (stall_s([3.0], 5.0), effective_tokens([3.0], 5.0)) == (0.0, 1.0)


def test_utility() -> None:
    assert token_value(np.array([0.0, 4, 8, 10, 12, 14, 16, 50]), 80.0) == pytest.approx(
        [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    )


def test_effective_tokens_of_all_at_once() -> None:
    # buffers 0 … 99: 0 to 10 count in full, 11 to 19 for 0.9 to 0.1, the others not at all
    assert effective_tokens(np.zeros(100), 20.0) == pytest.approx(11 + 4.5)
    assert effective_tokens(np.arange(100) / 16, 16.0) == 100


def test_assess_by_hand() -> None:
    quality = assess(
        [
            ReaderStream(1.0, [2.0, 2.5, 5.0], 2.0),  # stalls 2 s
            ReaderStream(2.0, np.array([5.0, 5.5, 6.0]), 2.0),
            ReaderStream(3.0, [], 2.0),
        ],
        ttft_weight=0.5,
        stall_weight=0.25,
    )
    assert (quality.requests, quality.tokens, quality.span_s) == (3, 6, 5.0)
    assert (quality.ttft_mean_s, quality.ttft_p50_s) == (2.0, 2.0)
    assert quality.ttft_p99_s == pytest.approx(2.98)
    assert quality.throughput == quality.effective_throughput == pytest.approx(1.2)
    assert (quality.stall_mean_s, quality.stall_max_s) == (pytest.approx(2 / 3), 2.0)
    assert quality.stalled_share == pytest.approx(1 / 3)
    assert quality.qos == pytest.approx((6 - 0.5 * 4 - 0.25 * 2) / 5)


def test_a_wait_of_a_millisecond_is_no_stall() -> None:
    def of(wait: float) -> float:
        return assess([ReaderStream(0.0, [0.0, 0.05 + wait], 20.0)]).stalled_share

    assert (of(0.0009), of(0.0011)) == (0.0, 1.0)


@given(st.lists(st.tuples(exact_times, exact_rates, st.integers(0, 100)), min_size=1, max_size=6))
def test_assess_equals_the_sums(drawn: list[tuple[list[float], float, int]]) -> None:
    quality = assess([ReaderStream(-delay / 64, times, rate) for times, rate, delay in drawn], 2.0, 3.0)
    ttfts = [times[0] + delay / 64 for times, _, delay in drawn if times]
    effective = sum(slow_effective(times, rate) for times, rate, _ in drawn)
    stalls = [slow_stall(times, rate) for times, rate, _ in drawn]
    tokens = sum(len(times) for times, _, _ in drawn)
    first = min(-delay / 64 for *_, delay in drawn)
    span = max((times[-1] for times, *_ in drawn if times), default=first) - first
    assert (quality.requests, quality.tokens, quality.span_s) == (len(drawn), tokens, span)
    assert quality.throughput * span == pytest.approx(tokens * (span > 0))
    assert quality.effective_throughput * span == pytest.approx(effective * (span > 0))
    assert quality.qos * span == pytest.approx(
        (effective - 2 * sum(ttfts) - 3 * sum(stalls)) * (span > 0), abs=1e-9
    )
    assert (quality.stall_mean_s, quality.stall_max_s) == (
        pytest.approx(sum(stalls) / len(drawn)),
        max(stalls),
    )
    if ttfts:
        assert quality.ttft_mean_s == pytest.approx(sum(ttfts) / len(ttfts))
        assert min(ttfts) <= quality.ttft_p50_s <= quality.ttft_p99_s <= max(ttfts)
    else:
        assert math.isnan(quality.ttft_mean_s)


def test_requests_that_got_nothing() -> None:
    quality = assess([ReaderStream(1.0, [], 2.0), ReaderStream(4.0, [], 2.0)])
    assert (quality.requests, quality.tokens, quality.span_s, quality.throughput) == (2, 0, 0.0, 0.0)
    assert all(map(math.isnan, (quality.ttft_mean_s, quality.ttft_p50_s, quality.ttft_p99_s)))
    assert (quality.stall_max_s, quality.stalled_share, quality.qos) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_no_such_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ReaderStream(0.0, [], rate)
    with pytest.raises(ValueError, match="above 0"):
        Reader(rate)


@pytest.mark.parametrize(
    ("arrival", "times"),
    [(0.0, [2.0, 1.0]), (1.5, [1.0, 2.0]), (0.0, [1.0, math.nan]), (0.0, [math.inf]), (math.nan, [])],
)
def test_no_such_times(arrival: float, times: list[float]) -> None:
    with pytest.raises(ValueError, match="not decrease"):
        ReaderStream(arrival, times, 1.0)


def test_other_errors() -> None:
    with pytest.raises(ValueError, match="at least one stream"):
        assess([])
    with pytest.raises(ValueError, match="-1 tokens"):
        Reader(1.0).deliver(-1, 0.0)


@given(exact_times, exact_rates)
def test_a_reader_adds_up_its_waits(times: list[float], rate: float) -> None:
    reader = Reader(rate)
    assert reader.stalled_s == 0.0
    for time in times:
        reader.deliver(1, time)
    assert reader.stalled_s == slow_stall(times, rate)


def test_a_second_of_ttft_and_of_stall_costs_a_token_unless_weights_say_otherwise() -> None:
    quality = assess([ReaderStream(1.0, [2.0, 2.5, 5.0], 2.0)])
    assert quality.qos == pytest.approx((3 - 1 - 2) / 4)
    late = assess([ReaderStream(0.0, [2.0, 2.5, 5.0], 2.0)])
    assert late.qos == pytest.approx((3 - 2 - 2) / 5)
    nothing_passed = assess([ReaderStream(2.0, [2.0], 2.0)])
    assert (nothing_passed.span_s, nothing_passed.throughput, nothing_passed.qos) == (0.0, 0.0, 0.0)
