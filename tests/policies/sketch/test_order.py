"""Order in which sentences are expanded: the reader waits no longer than in the sketch's, and often not at all."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.order import (
    Schedule,
    _latest_starts_s,
    list_schedule,
    reading_order,
    token_times,
    wait_s,
)

lengths = st.lists(st.integers(1, 150), min_size=1, max_size=12)
slots_ = st.integers(1, 6)
token_s_ = st.floats(0.01, 1)
rates = st.floats(1, 50)


@given(lengths, slots_, st.randoms())
def test_a_schedule_has_everybody_once_and_no_more_than_it_may_at_once(
    tokens: list[int], slots: int, rng: Random
) -> None:
    order = rng.sample(range(len(tokens)), len(tokens))
    schedule = list_schedule(tokens, order, slots)
    assert sorted(i for sequence in schedule.sequences for i in sequence) == list(range(len(tokens)))
    assert len(schedule.sequences) <= slots
    ends = [start + length for start, length in zip(schedule.starts, tokens, strict=True)]
    for sequence in schedule.sequences:
        assert [schedule.starts[i] for i in sequence] == [0, *(ends[i] for i in sequence[:-1])]
    assert schedule.end == max(ends)
    starts = [schedule.starts[i] for i in order]
    assert starts == sorted(starts), "nobody is overtaken"


def test_a_readers_wait_by_hand() -> None:
    schedule = list_schedule([2, 3, 2], [0, 1, 2], slots=2)  # the third after the first
    assert schedule.starts == (0, 0, 2)
    assert token_times([2, 3, 2], schedule, 0.5).tolist() == [0.5, 1.0, 1.0, 1.0, 1.5, 1.5, 2.0]
    assert wait_s([2, 3, 2], schedule, 0.5, rate=2.0) == 0.5, "from then on there is always something to read"
    assert wait_s([2, 3, 2], schedule, 0.5, rate=10.0) == pytest.approx(0.5 + 0.9), (
        "the last comes at 2.0, not at 1.1"
    )


@given(lengths, slots_, token_s_, rates)
def test_the_reader_waits_no_longer_than_in_the_sketchs_order(
    tokens: list[int], slots: int, token_s: float, rate: float
) -> None:
    order = reading_order(tokens, slots, token_s, rate)
    sketch = list(range(len(tokens)))
    assert sorted(order) == sketch
    plain, chosen = list_schedule(tokens, sketch, slots), list_schedule(tokens, order, slots)
    assert wait_s(tokens, chosen, token_s, rate) <= wait_s(tokens, plain, token_s, rate)


@given(lengths, slots_, rates, st.floats(0.1, 1))
def test_sequences_as_fast_as_the_reader_never_keep_them_waiting(
    tokens: list[int], slots: int, rate: float, slower: float
) -> None:
    """The reader never waits after the first token; and with that, expansion begins at once."""
    token_s = slower / rate
    schedule = list_schedule(tokens, reading_order(tokens, slots, token_s, rate), slots)
    assert wait_s(tokens, schedule, token_s, rate) == pytest.approx(token_s)


@given(lengths, slots_, token_s_)
def test_where_nobody_reads_the_device_is_free_soon(tokens: list[int], slots: int, token_s: float) -> None:
    """Graham's bound on the longest first: at most 4/3 of the best."""
    schedule = list_schedule(tokens, reading_order(tokens, slots, token_s, 0.0), slots)
    assert schedule.end <= 4 / 3 * max(max(tokens), sum(tokens) / slots) + max(tokens) / 3 + 1e-9


def test_it_is_nearly_as_good_as_the_best_of_all_orders() -> None:
    """Slow sequences, a quick reader: nobody can keep up, and it matters who comes when."""
    rng, chosen_s, best_s, sketch_s = Random(3), 0.0, 0.0, 0.0
    for _ in range(20):
        tokens = [rng.choice([15, 30, 60, 120]) for _ in range(6)]

        def wait(order: tuple[int, ...], tokens: list[int] = tokens) -> float:
            return wait_s(tokens, list_schedule(tokens, order, 3), 0.3, 8.0)

        chosen_s += wait(reading_order(tokens, 3, 0.3, 8.0))
        sketch_s += wait(tuple(range(6)))
        best_s += min(map(wait, permutations(range(6))))
    assert best_s <= chosen_s <= 1.05 * best_s
    assert chosen_s < sketch_s


def test_a_long_last_sentence_begins_before_it_is_its_turn() -> None:
    """Two sequences of 2 tokens/s. A reader of 4 tokens/s cannot be kept up with: they wait least if nothing waits for
    the last sentence. One of 1 token/s has time enough; so the order is the one that is over first."""
    tokens = [20, 20, 20, 20, 100]
    sketch = (0, 1, 2, 3, 4)
    quick, slow = reading_order(tokens, 2, 0.5, 4.0), reading_order(tokens, 2, 0.5, 1.0)
    assert quick == (0, 4, 1, 2, 3)
    assert slow == (4, 0, 1, 2, 3)
    assert [wait_s(tokens, list_schedule(tokens, order, 2), 0.5, 1.0) for order in (sketch, slow)] == [
        0.5,
        0.5,
    ]
    assert [list_schedule(tokens, order, 2).end for order in (sketch, slow)] == [140, 100]


def test_a_list_schedule_by_hand() -> None:
    """Two sequences: the first sentence, and the second and third one after the other."""
    schedule = list_schedule([5, 2, 2, 4], (0, 1, 2, 3), 2)
    assert schedule == Schedule((0, 0, 2, 4), ((0,), (1, 2, 3)), 8)
    assert token_times([2, 1], list_schedule([2, 1], (1, 0), 1), 0.5).tolist() == [1.0, 1.5, 1.5]


def test_when_a_sentence_must_begin_for_its_reader() -> None:
    """A reader of four tokens a second reaches the third sentence after 1.75 s; a sequence of 0.5 s a token falls a
    quarter of a second a token behind."""
    assert _latest_starts_s([5, 2, 4], 0.5, 4.0).tolist() == [0.0 - 1.25, 1.25 - 0.5, 1.75 - 1.0]
    assert _latest_starts_s([5, 2, 4], 0.1, 4.0).tolist() == [0.0, 1.25, 1.75], "it is faster than the reader"
