"""The token bucket: never more than flows in, and waits that are long enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.admission.rate_limit import RateLimit

steps = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=60)


@given(limit=st.integers(1, 100), steps=steps)
def test_in_any_time_no_more_is_had_than_the_limit_and_what_flowed_in(
    limit: int, steps: list[tuple[float, int]]
) -> None:
    bucket, now_s, had = RateLimit(limit), 0.0, 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        if amount <= limit and bucket.wait_s(amount, now_s) == 0:
            bucket.take(amount, now_s)
            had += amount
        assert had <= limit + now_s * limit / 60 + 1e-6


@given(limit=st.integers(1, 100), taken=st.integers(0, 500), amount=st.integers(1, 200))
def test_after_the_wait_it_is_there_and_not_before(limit: int, taken: int, amount: int) -> None:
    bucket = RateLimit(limit)
    bucket.take(taken, 0.0)
    wait_s = bucket.wait_s(amount, 0.0)
    assert wait_s == 0 or bucket.left(0.99 * wait_s) < min(amount, limit)
    assert bucket.wait_s(amount, wait_s + 1e-6) <= 1e-6


def test_what_was_taken_in_advance_is_paid_off() -> None:
    bucket = RateLimit(60)
    bucket.take(90, 0.0)
    assert bucket.left(0.0) == -30
    assert bucket.wait_s(1, 0.0) == pytest.approx(31)
    assert bucket.full_s(0.0) == pytest.approx(90)
    assert bucket.left(1000.0) == 60


@given(limits=st.lists(st.integers(1, 100), min_size=1), taken=st.integers(0, 500))
def test_a_limit_that_changes_forgives_nothing(limits: list[int], taken: int) -> None:
    bucket = RateLimit(limits[0])
    bucket.take(taken, 0.0)
    for limit in limits:
        bucket.change(limit, 0.0)
        assert bucket.left(0.0) == limit - taken
        assert bucket.full_s(0.0) == pytest.approx(60 * taken / limit)


def test_what_is_given_back_can_be_taken_again_up_to_the_limit() -> None:
    bucket = RateLimit(60)
    bucket.take(50, 0.0)
    bucket.give(20, 0.0)
    assert bucket.left(0.0) == 30
    bucket.give(20, 5.0)
    assert bucket.left(5.0) == 55
    bucket.give(20, 5.0)
    assert bucket.left(5.0) == 60
