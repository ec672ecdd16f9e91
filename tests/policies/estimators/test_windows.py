"""Sliding windows against what a list of the same samples says, and what they cost."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.policies.estimators.windows import EXACT, POINTS, Latencies, Lengths, Outputs, Sampled

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
    assert lengths.around(tokens)[0] == pytest.approx(below / sum(last) if last else 0.0)
    found, shares = lengths.shares()
    mass = Counter(last)
    assert dict(zip(found.tolist(), shares, strict=True)) == pytest.approx(
        {n: n * mass[n] / sum(last) for n in mass}
    )


@given(prompts, st.integers(1, 4000))
def test_shares_around_a_length_are_those_of_shorter_equal_and_longer_prompts(prompt, tokens):
    shorter, alike, longer = Lengths(prompt).around(tokens)
    total = sum(prompt) or 1
    assert shorter == pytest.approx(sum(n for n in prompt if n < tokens) / total)
    assert alike == pytest.approx(sum(n for n in prompt if n == tokens) / total)
    assert longer == pytest.approx(sum(n for n in prompt if n > tokens) / total)


long_prompts = st.lists(st.one_of(st.integers(1, 10_000), st.integers(1, 10**12)), min_size=1, max_size=60)


@given(long_prompts, long_prompts, st.integers(1, 40), st.integers(1, 10**12))
@example([4095, 4096, 4159], [4160], 40, 4096)
def test_long_prompts_count_as_alike_only_if_they_are_nearly_as_long(before, after, kept, tokens):
    lengths = Lengths(before, kept)
    for n in after:
        lengths.note(n)
    last = (before[-kept:] + after)[-kept:]
    shorter, alike, longer = lengths.around(tokens)
    assert shorter + alike + longer == pytest.approx(1)
    slack = 0.0 if tokens < EXACT else tokens / 64
    for share, sure, perhaps in (
        (shorter, [n for n in last if n < tokens - slack], [n for n in last if n < tokens]),
        (alike, [n for n in last if n == tokens], [n for n in last if abs(n - tokens) <= slack]),
        (longer, [n for n in last if n > tokens + slack], [n for n in last if n > tokens]),
    ):
        assert sum(sure) - 1 <= share * sum(last) * (1 + 1e-9) + 1
        assert share * sum(last) <= sum(perhaps) * (1 + 1e-9) + 1
    threshold = lengths.threshold(0.5)
    assert lengths.around(threshold)[0] <= 0.5 + 1e-9
    assert sum(lengths.around(threshold)[:2]) > 0.5 - 1e-9


@pytest.mark.parametrize("tokens", [100_000, 10**6, 10**12])
def test_a_long_prompt_does_not_make_an_account_large(tokens):
    lengths = Lengths(kept=1024)
    lengths.note(tokens)
    assert len(pickle.dumps(lengths)) < 40_000, "8,192 places"
    assert len(pickle.dumps(Lengths([tokens], kept=1024))) < 40_000


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.floats(0, 0.999))
def test_threshold_is_the_first_length_that_goes_beyond_the_share(prompt, share):
    lengths = Lengths(prompt)
    threshold = lengths.threshold(share)
    assert lengths.around(threshold)[0] <= share + 1e-12
    assert lengths.around(threshold + 1)[0] > share - 1e-12


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
    assert lengths.around(1000)[0] == 0.0
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


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(0, 300), st.integers(0, 300))
def test_what_is_left_is_the_mean_over_longer_answers(answers, sent, most):
    outputs = Outputs()
    for tokens in answers:
        outputs.note(tokens)
        outputs.remaining(sent, most)  # asked in between, too
    longer = [min(tokens, most) - sent for tokens in answers if tokens > sent]
    if longer:
        assert outputs.remaining(sent, most) == (sum(longer) / len(longer) if sent < most else 0.0)


many = st.lists(st.floats(0, 100), max_size=3 * POINTS)


@given(many, st.floats(0, 110), st.floats(0, 1))
def test_a_snapshot_of_times_is_right_within_its_error(times, t, q):
    """0 ≤ F − G < 1/n, and F⁻¹(q) ≤ G⁻¹(q) ≤ F⁻¹(q + 1/n); nothing is lost of n samples or less."""
    whole, copy = Latencies(times), Latencies()
    snapshot = whole.snapshot()
    copy.adopt(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Sampled))
    assert copy.seen == whole.seen
    assert len(copy) <= POINTS
    exact = len(times) <= POINTS
    assert -1e-9 <= whole.cdf(t) - copy.cdf(t) < (1e-9 if exact else 1 / POINTS)
    assert whole.quantile(q) <= copy.quantile(q)
    assert copy.quantile(q) <= whole.quantile(q if exact else min(1.0, q + 1 / POINTS + 1e-9))
    assert copy.snapshot() == snapshot


@given(st.lists(st.integers(1, 2000), max_size=3 * POINTS), st.integers(0, 2000))
def test_a_snapshot_of_answers_is_right_within_its_error(answers, sent):
    whole, copy = Outputs(), Outputs()
    for tokens in answers:
        whole.note(tokens)
    copy.adopt(whole.snapshot())
    assert copy.seen == whole.seen
    last = answers[-512:]
    longer = sum(tokens > sent for tokens in last)
    if len(last) <= POINTS:
        assert copy.remaining(sent, 3000) == whole.remaining(sent, 3000)
    elif longer:
        points = sum(tokens > sent for tokens in copy.snapshot().points)
        assert 0 <= points / POINTS - longer / len(last) < 1 / POINTS
        spread = max(last) - sent
        assert abs(copy.remaining(sent, 3000) - whole.remaining(sent, 3000)) <= spread / points


def test_only_who_has_seen_more_is_believed():
    one, other = Latencies([1.0, 2.0]), Latencies([5.0])
    one.adopt(other.snapshot())
    assert list(one) == [1.0, 2.0]
    other.adopt(one.snapshot())
    assert list(other) == [1.0, 2.0]
    other.note(3.0)
    assert (list(other), other.seen) == ([1.0, 2.0, 3.0], 3)


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


def test_points_of_a_snapshot_by_hand():
    times = Latencies([5.0, 1.0, 4.0, 2.0, 3.0])
    assert times.snapshot(2).points == (3.0, 5.0)
    assert times.snapshot(3).points == (2.0, 4.0, 5.0)
    assert times.snapshot(5).points == times.snapshot(9).points == (1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_window_that_was_adopted_forgets_as_any():
    there, here = Latencies([1.0, 2.0, 3.0]), Latencies(kept=3)
    here.adopt(there.snapshot())
    here.note(9.0)
    assert (list(here), len(here), here.seen) == ([2.0, 3.0, 9.0], 3, 4)


def test_ends_that_were_not_seen_are_spread_over_the_tail():
    """The golden section picks the fourth of five, the second of six, the sixth of seven."""
    times = Latencies([float(n) for n in range(1, 11)])
    seen = []
    for _ in range(3):
        before = list(times)
        times.note_longer(5.5)
        after = list(times)
        for known in before:
            after.remove(known)
        seen += after
    assert seen == [9.0, 7.0, 9.0]
    times.note_longer(99.0)
    assert 99.0 in list(times), "there is no longer one"
