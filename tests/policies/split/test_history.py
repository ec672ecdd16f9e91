"""States that a middle has kept are found by the tokens that they are of, at the device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split.history import LEAST, History, Kept, common

LONG = tuple(range(100))


def test_the_next_turn_finds_what_it_begins_with() -> None:
    history = History(4)
    history.keep("m", Kept("a", LONG))
    history.keep("m", Kept("b", (*LONG[:60], 7)))
    assert history.take("m", (*LONG[:80], 3)) == (Kept("a", LONG), 80)
    assert history.take("m", (*LONG[:80], 3)) == (Kept("b", (*LONG[:60], 7)), 60), "the other is in use"
    assert history.take("m", LONG) is None


def test_another_middle_and_another_conversation_have_nothing() -> None:
    history = History(4)
    history.keep("m", Kept("a", LONG))
    assert history.take("n", LONG) is None
    assert history.take("m", LONG[: LEAST - 1]) is None
    assert history.take("m", LONG[::-1]) is None


def test_the_oldest_are_forgotten() -> None:
    history = History(2)
    for handle in "abc":
        history.keep("m", Kept(handle, LONG))
    found = {taken[0].handle for _ in range(3) if (taken := history.take("m", LONG))}
    assert found == {"b", "c"}
    none = History(0)
    none.keep("m", Kept("a", LONG))
    assert none.take("m", LONG) is None


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_the_common_beginning_is_the_longest(a: list[int], b: list[int]) -> None:
    same = common(a, b)
    assert a[:same] == b[:same]
    assert a[same : same + 1] != b[same : same + 1] or same == min(len(a), len(b))


def test_sixteen_common_tokens_are_worth_asking_for() -> None:
    history = History(4)
    history.keep("m", Kept("a", LONG))
    assert history.take("m", (*LONG[:15], -1)) is None
    assert history.take("m", (*LONG[:16], -1)) == (Kept("a", LONG), 16)
