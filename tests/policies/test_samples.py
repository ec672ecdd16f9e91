"""Sliding windows against what a list of the same samples says, and what they cost."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.samples import Latencies, Lengths, Outputs

prompts = st.lists(st.integers(1, 3000), max_size=80)
times = st.lists(st.floats(0, 100, allow_nan=False), max_size=80)


@given(prompts, prompts, st.integers(1, 50), st.integers(1, 4000))
def test_lengths_are_those_of_the_last_prompts(before, after, kept, tokens):
    lengths = Lengths(before, kept)
    for n in after:
        lengths.note(n)
    last = (before[-kept:] + after)[-kept:]
    assert len(lengths) == len(last)
    assert lengths.total == sum(last)
    below = sum(n for n in last if n < tokens)
    assert lengths.share_below(tokens) == pytest.approx(below / sum(last) if last else 0.0)
    found, shares = lengths.shares()
    mass = Counter(last)
    assert dict(zip(found.tolist(), shares, strict=True)) == pytest.approx(
        {n: n * mass[n] / sum(last) for n in mass}
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.floats(0, 0.999))
def test_threshold_is_the_first_length_that_goes_beyond_the_share(prompt, share):
    lengths = Lengths(prompt)
    threshold = lengths.threshold(share)
    assert lengths.share_below(threshold) <= share + 1e-12
    assert lengths.share_below(threshold + 1) > share - 1e-12


@given(times, times, st.integers(1, 50), st.floats(0, 110), st.floats(0, 1))
def test_latencies_are_those_of_the_last_times(before, after, kept, t, q):
    latencies = Latencies(before, kept)
    for seconds in after:
        latencies.note(seconds)
    last = sorted((before[-kept:] + after)[-kept:])
    assert list(latencies) == last
    assert latencies.cdf(t) == pytest.approx(sum(s <= t for s in last) / len(last) if last else 0.0)
    assert latencies.cdfs(np.array([t]))[0] == pytest.approx(latencies.cdf(t))
    found = latencies.quantile(q)
    if q == 0:
        assert found == 0.0
    elif not last:
        assert found == math.inf
    else:  # inf{t: F(t) >= q}
        assert latencies.cdf(found) >= q - 1e-9
        assert all(latencies.cdf(s) < q for s in last if s < found)


def test_stopped_waits_do_not_cut_the_tail_off():
    """Waits are stopped at 2 s; the distribution beyond is still what the waits that were not stopped say."""
    rng = np.random.default_rng(7)
    latencies, naive = Latencies(kept=2000), Latencies(kept=2000)
    for i, t in enumerate(rng.lognormal(0.0, 1.0, 6000)):
        if t > 2.0 and i % 4:  # three in four are stopped
            latencies.note_longer(2.0)
            naive.note(2.0)
        else:
            latencies.note(t)
            naive.note(t)
    true_s = math.exp(1.0 * 2.326)
    assert latencies.quantile(0.99) == pytest.approx(true_s, rel=0.25)
    assert naive.quantile(0.99) < 0.75 * true_s


def test_a_window_follows_a_drift():
    latencies, lengths = Latencies(kept=100), Lengths(kept=100)
    for _ in range(1000):
        latencies.note(1.0)
        lengths.note(10)
    for _ in range(100):
        latencies.note(5.0)
        lengths.note(1000)
    assert latencies.quantile(0.01) == 5.0
    assert lengths.share_below(1000) == 0.0
    assert len(latencies) == len(lengths) == 100


def test_what_is_left_of_an_answer_is_what_longer_ones_still_got():
    outputs = Outputs(prior=40)
    assert outputs.remaining(10, 100) == 40  # nothing is known
    assert outputs.remaining(90, 100) == 10
    for tokens in (20, 60, 100):
        outputs.note(tokens)
    assert outputs.remaining(0, 1000) == 60
    assert outputs.remaining(20, 1000) == 60  # 40 and 80
    assert outputs.remaining(20, 70) == 45  # 40 and 50
    assert outputs.remaining(200, 1000) == 1  # longer than any
    assert outputs.remaining(70, 70) == 0


@pytest.mark.parametrize("bad", [0, -3])
def test_a_prompt_has_tokens(bad):
    lengths = Lengths([5])
    with pytest.raises(ValueError, match="at least 1 token"):
        lengths.note(bad)
    with pytest.raises(ValueError, match="at least 1 token"):
        Lengths([bad])
    assert lengths.total == 5


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_time_is_not_negative(bad):
    latencies = Latencies([1.0])
    with pytest.raises(ValueError, match="0 s or more"):
        latencies.note(bad)
    with pytest.raises(ValueError, match="0 s or more"):
        Latencies([bad])
    assert list(latencies) == [1.0]
