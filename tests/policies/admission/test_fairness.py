"""The fair queue: never more than there is room for, nobody starves, and shares come out equal."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.admission.fairness import Claim, FairQueue

requests = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 5)), min_size=1, max_size=40)


@given(
    capacity=st.integers(1, 8),
    requests=requests,
    ends=st.lists(st.integers(0, 1000), max_size=80),
    gives_up=st.sets(st.integers(0, 39)),
)
def test_all_come_in_order_and_never_too_many(
    capacity: int, requests: list[tuple[str, int]], ends: list[int], gives_up: set[int]
) -> None:
    queue = FairQueue(capacity)
    places = [queue.join(*request) for request in requests]
    for number in sorted(gives_up):
        if number < len(places):
            queue.leave(places[number])
    expected = [place for number, place in enumerate(places) if number not in gives_up]
    begun: list[Claim] = []
    under_way: list[Claim] = []
    chance = iter(ends)
    while True:
        new = queue.admit()
        begun += new
        under_way += new
        assert queue.under_way == sum(place.size for place in under_way)
        assert queue.under_way <= max(capacity, *(place.size for place in under_way), 0)
        if not under_way:
            break
        queue.leave(under_way.pop(next(chance, 0) % len(under_way)))
    assert queue.waiting == queue.under_way == 0
    assert set(begun) == set(expected)
    for account in "abcd":
        mine = [place.arrival for place in begun if place.account == account]
        assert mine == sorted(mine)
    assert not queue._accounts


@given(
    requests=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), min_size=1, max_size=30),
    left=st.sets(st.integers(0, 29), max_size=5),
)
def test_an_accounts_requests_come_by_priority_and_take_nothing_from_others(
    requests: list[tuple[str, int]], left: set[int]
) -> None:
    """Accounts take turns as if all requests were alike."""
    ranked, alike = FairQueue(1), FairQueue(1)
    pairs = [(ranked.join(account, 1, priority), alike.join(account, 1)) for account, priority in requests]
    for number in left & set(range(len(pairs) - 1)):
        for queue, place in zip((ranked, alike), pairs[number], strict=True):
            queue.leave(place)
    begun: list[Claim] = []
    while ranked.waiting:
        (first,), (second,) = ranked.admit(), alike.admit()
        if not left:
            assert first.account == second.account
        begun.append(first)
        ranked.leave(first)
        alike.leave(second)
    for account in "abc":
        mine = [(place.priority, place.arrival) for place in begun if place.account == account]
        assert mine == sorted(mine)


def test_a_late_comer_has_as_much_as_one_that_had_everything() -> None:
    queue = FairQueue(8)
    first = [queue.join("greedy", 1) for _ in range(100)]
    running = queue.admit()
    assert len(running) == 8
    for _ in range(20):
        queue.join("modest", 1)
    for _ in range(4):
        queue.leave(running.pop(0))
        (new,) = queue.admit()
        assert new.account == "modest"
        running.append(new)
    assert Counter(place.account for place in running) == {"greedy": 4, "modest": 4}
    for _ in range(8):  # and so it stays
        queue.leave(running.pop(0))
        running += queue.admit()
    assert Counter(place.account for place in running) == {"greedy": 4, "modest": 4}
    assert first[0].admitted


def test_a_large_one_is_not_overtaken_for_ever() -> None:
    queue = FairQueue(4)
    small = [queue.join("a", 1) for _ in range(4)]
    assert queue.admit() == small
    large = queue.join("b", 4)
    queue.join("c", 1)
    for place in small:
        assert large not in queue.admit()
        queue.leave(place)
    assert queue.admit() == [large]


def test_one_that_is_larger_than_everything_comes_when_it_is_alone() -> None:
    queue = FairQueue(2)
    first, large = queue.join("a", 1), queue.join("b", 5)
    assert queue.admit() == [first]
    queue.leave(first)
    assert queue.admit() == [large]


def test_an_account_has_what_is_under_way_and_what_waits() -> None:
    queue = FairQueue(2)
    assert queue.of("a") == 0
    first, _ = queue.join("a", 2), queue.join("a", 4)
    queue.join("b", 1)
    assert queue.admit() == [first]
    assert (queue.of("a"), queue.of("b"), queue.of("c")) == (6, 1, 0)
    queue.leave(first)
    assert queue.of("a") == 4
