"""A budget is a limit in any order of events, and is used up although plans are wrong."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tandem.policies.race.budget import Booking, Budget


def used(budget):
    """The share of the prompts' tokens that the constrained endpoint took in."""
    return budget.spent / budget.tokens


def book(budget: Budget, tokens: int, rng: random.Random, share: float | None = None) -> Booking:
    """A request that is planned by chance."""
    return budget.book(tokens, rng.random() < budget.next(share), share)


@given(st.floats(0.1, 0.9), st.floats(0.6, 1.0), st.floats(0, 0.5), st.integers(0, 2**32))
@example(0.5, 0.625, 0.0, 34)  # 2.5 % too little where a deviation was made up over 32 requests
def test_a_biased_plan_is_made_up_for(share, takes_part, fails, seed):
    """Spending only in some planned requests, and in some unplanned ones, ends within 2 % of the budget, or within 5 %
    if spending nearly always would be needed: bad luck is then made up slowly."""
    assume(share < 0.95 * takes_part)  # else spending always is not enough
    assume(fails < 0.8 * share)  # else planning nothing is not little enough
    rng, budget = random.Random(seed), Budget(share, window=1000)
    for _ in range(1500):
        booking = book(budget, rng.randrange(1, 200), rng)
        spends = booking.planned and rng.random() < takes_part
        budget.settle(booking, booking.tokens * (spends or rng.random() < fails))
    assert used(budget) == pytest.approx(share, abs=0.02 if share <= 0.8 * takes_part else 0.05)


def test_nothing_and_everything_are_meant_so():
    for share in (0.0, 1.0):
        budget = Budget(share)
        budget.settle(budget.book(100, True), 100 * (share == 0.0))  # the opposite of what was asked for
        assert budget.next() == share
        assert budget.book(100, True).limit == budget.book(100, False).limit == (math.inf if share else 0.0)


def test_a_new_share_counts_at_once():
    budget = Budget(1.0)
    for i in range(100):
        budget.settle(budget.book(10, True, 0.5), 10 * (i % 2 == 0))
    budget.share = 0.1
    assert budget.next() == pytest.approx(0.1**2), (
        "nothing was saved, and what was allowed before is not regretted"
    )
    assert budget.next(0.9) == pytest.approx(0.9**2)


def test_requests_may_have_shares_of_their_own():
    rng, budget = random.Random(3), Budget(0.5)
    spent = {0.2: 0, 0.8: 0}
    for i in range(4000):
        share = 0.2 if i % 2 else 0.8
        booking = book(budget, 10, rng, share)
        spent[share] += booking.planned
        budget.settle(booking, booking.planned)
    assert spent[0.2] / 20_000 == pytest.approx(0.2, abs=0.05)
    assert spent[0.8] / 20_000 == pytest.approx(0.8, abs=0.05)
    assert used(budget) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("bad", [{"share": 1.1}, {"share": -0.1}, {"window": 0}, {"correction": 0.0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match="budget|above 0"):
        Budget(**bad)


def test_a_burst_gets_what_is_there_and_no_more():
    budget = Budget(0.25)
    burst = [budget.book(10, True) for _ in range(100)]
    assert [booking.limit for booking in burst[:8]] == [0, 0, 0, 10, 0, 0, 0, 10]
    assert budget.reserved == sum(booking.limit for booking in burst) == 250
    for booking in burst[:50]:
        budget.settle(booking, 0)
    assert budget.spent == budget.reserved == 130, "those that are never reported stay reserved"
    assert sum(budget.book(10, True).limit == 10 for _ in range(14)) == 14


def test_who_is_not_planned_gets_what_is_left_over():
    budget = Budget(0.5)
    limits = [budget.book(10, False).limit for _ in range(20)]
    assert limits[:5] == [0] * 5, "half of four prompts is kept for plans"
    assert limits[5:] == [10, 0] * 7 + [10]
    assert budget.spent == 0


def test_what_may_come_later_is_reserved_as_far_as_there_is_room():
    budget = Budget(0.5)
    budget.book(100, False)
    assert budget.book(60, True, beyond=50).limit == 80
    assert (budget.spent, budget.reserved) == (60, 80)
    budget.book(30, False)
    assert budget.book(10, True, beyond=50).limit == 20


def test_what_turns_out_too_late_does_not_count():
    budget = Budget(1.0, window=2)
    first = budget.book(10, True)
    budget.book(10, False)
    budget.book(10, False)
    assert budget.spent == 0
    budget.settle(first, 10)
    assert (budget.spent, budget.tokens) == (0, 20)


def test_what_is_taken_in_again_is_made_up_for():
    """A prompt of 10 tokens, and later its answer of 5 with it: what is planned next is less."""
    once, twice = Budget(0.5), Budget(0.5)
    for budget, spent in ((once, 10), (twice, 25)):
        for _ in range(9):
            budget.settle(budget.book(10, False), 0)
        budget.settle(budget.book(10, True), spent)
        assert budget.spent == spent
    assert twice.next() < once.next()


shares = st.none() | st.floats(0, 1) | st.just(1.0)
events = st.one_of(
    st.tuples(st.just("book"), st.integers(1, 300), st.booleans(), shares, st.integers(0, 300)),
    st.tuples(st.just("settle"), st.integers(0, 60), st.floats(0, 1), st.none(), st.just(0)),
    st.tuples(st.just("overspend"), st.integers(0, 60), st.floats(0, 1), st.none(), st.integers(0, 900)),
)


@given(st.lists(events, max_size=60), st.integers(1, 8), st.floats(0, 1))
def test_the_invariant_holds_in_any_order_of_events(history, window, share):
    """Against a list of all requests; some are never settled."""
    budget = Budget(share, window)
    all_, shares_ = list[Booking](), list[float]()
    within = list[float]()  # what they may yet spend, or have spent, within their limits
    for event, a, b, own, more in history:
        if event == "book":
            assert 0.0 <= budget.next(own) <= 1.0
            booking = budget.book(a, b, own, more)
            all_.append(booking)
            shares_.append(share if own is None else own)
            within.append(a if booking.limit == math.inf else booking.limit)
            assert booking.limit in (0.0, math.inf) or a <= booking.limit <= a + b * more
            if 0.0 < booking.limit < math.inf:
                assert budget.reserved <= budget.allowed + 1e-6
        elif all_:
            at = a % len(all_)
            spent = math.floor(b * within[at])
            budget.settle(all_[at], spent + more)
            within[at] = min(within[at], spent + more)
        assert sum(within) <= sum(b.tokens * s for b, s in zip(all_, shares_, strict=True)) + 1e-6
        last = all_[-window:]
        assert budget.tokens == sum(booking.tokens for booking in last)
        assert budget.spent == sum(booking.planned for booking in last)
        assert budget.reserved == sum(booking.reserved for booking in last)
