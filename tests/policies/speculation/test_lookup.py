"""Prompt lookup: matches, what is learnt of them, and windows that pay."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.arithmetic import expected_tokens
from tandem.policies.speculation.lookup import (
    LEAST_MATCH,
    LENGTHS,
    LookupHistory,
    NgramIndex,
    PromptLookup,
    best_window,
)

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def free(_: int) -> float:
    """Seconds of a step in which further positions cost nothing."""
    return 1.0


@given(texts, st.integers(1, 8))
def test_a_match_is_what_stood_before_and_its_draft_what_followed(text: list[int], most: int) -> None:
    length, draft = NgramIndex().find(text, most)
    ends = {tuple(text[at - LEAST_MATCH : at]) for at in range(LEAST_MATCH, len(text))}
    assert bool(length) == (tuple(text[-LEAST_MATCH:]) in ends and len(text) > LEAST_MATCH)
    if not length:
        assert draft == []
        return
    assert len(draft) == most
    follows = [at for at in range(length, len(text)) if text[at - length : at] == text[len(text) - length :]]
    goes_on = [(text[at:] + draft)[:most] for at in follows]
    assert draft in goes_on


@given(texts, st.lists(st.tuples(st.integers(0, 40), texts), max_size=4))
def test_a_text_that_changes_is_matched_as_it_is_now(
    text: list[int], changes: list[tuple[int, list[int]]]
) -> None:
    index = NgramIndex()
    index.find(text, 4)
    for keep, new in changes:
        text = text[:keep] + new
        length, draft = index.find(text, 4)
        if length:
            assert text[len(text) - length :] in [text[at - length : at] for at in range(length, len(text))]
            assert len(draft) == 4
        else:
            assert draft == []


def test_a_text_that_repeats_itself_is_drafted_as_far_as_is_wanted() -> None:
    assert NgramIndex().find([7, 8] * 4, 5) == (6, [7, 8, 7, 8, 7])


def test_the_longest_match_counts_up_to_a_limit() -> None:
    text = list(range(30)) + list(range(30))
    assert NgramIndex().find(text[:-1], 1) == (LENGTHS[-1], [29])


def test_what_is_not_drafted_is_learnt_from_as_well() -> None:
    """Verification that never pays still tells how the text went on."""
    sure, unsure = LookupHistory(), LookupHistory()
    chance = random.Random(0)
    for history, pattern in ((sure, [1, 2, 3, 4, 5]), (unsure, [])):
        lookup, text = PromptLookup(history), list[int]()
        for step in range(400):
            text.append(pattern[step % 5] if pattern else chance.randrange(3))
            assert lookup.draft(text, 4, 0, lambda own: float(own)) == []
        kind = len(LENGTHS) - 1 if pattern else 0
        assert (lookup.alpha(kind) > 0.9) if pattern else (lookup.alpha(kind) < 0.5)


def test_a_session_differs_from_the_others() -> None:
    """A few tokens of its own tell against many of others."""
    history = LookupHistory()
    for _ in range(1000):
        history.note(0, 4, 1)
    lookup = PromptLookup(history)
    before = lookup.alpha(0)
    text = [5, 6, 7, 1, 5, 6, 7, 1, 5, 6, 7]
    for token in [1, 5, 6, 7] * 8:
        lookup.draft(text, 4, 0, free)
        text.append(token)
    assert before < 0.3
    assert lookup.alpha(0) > before or lookup.alpha(len(LENGTHS) - 1) > 0.8


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_a_window_that_costs_nothing_is_as_long_as_may_be(alpha: float) -> None:
    assert best_window(alpha, 8, 0, free) == 8


def test_the_window_gives_the_most_tokens_a_second() -> None:
    """A 1.5B model in Q4 on two cores, milliseconds by positions."""
    took = {1: 27.0, 2: 43.0, 3: 59.0, 4: 78.0, 5: 97.0, 9: 140.0}

    def step_s(own: int) -> float:
        return took[own] / 1e3 if own in took else 1.0

    assert best_window(0.5, 8, 0, step_s) == 0
    assert best_window(0.97, 8, 0, step_s) == 8
    assert expected_tokens(0.97, 8) / step_s(9) > 1.3 / step_s(1)


def test_beside_others_a_window_must_pay_for_their_wait() -> None:
    """Eight sessions wait for one's drafts."""

    def step_s(own: int) -> float:
        return 0.02 + 0.01 * (8 + own)

    assert best_window(0.8, 8, 0, lambda own: 0.02 + 0.01 * own) > 0
    assert best_window(0.8, 8, 8, step_s) == 0
    assert best_window(0.95, 8, 8, step_s) > 0


@given(texts, st.integers(0, 40))
def test_a_text_that_was_cut_back_is_known_as_before(text: list[int], keep: int) -> None:
    index = NgramIndex()
    index.find(text, 4)
    assert index.find(text[:keep], 4) == NgramIndex().find(text[:keep], 4)


@given(texts, texts)
def test_what_may_follow_is_matched_and_not_learnt(text: list[int], ahead: list[int]) -> None:
    index = NgramIndex()
    length, draft = index.find(text, 4, ahead)
    assert index.find(text, 4) == NgramIndex().find(text, 4)
    if length:
        whole = text + ahead
        follows = [at for at in range(length, len(text)) if whole[at - length : at] == whole[-length:]]
        assert draft in [(whole[at:] + draft)[:4] for at in follows]


PASSAGE = list(range(20))
QUOTED = [*PASSAGE, 50, *PASSAGE[:8]]


def mixed(
    drafts: list[int], stated: bool, right: bool, step_s: Callable[[int], float] = free, most: int = 8
) -> list[int]:
    """Return what is verified for a client whose drafts have been right or wrong."""
    lookup = PromptLookup(LookupHistory())
    for _ in range(40):
        lookup.judge(4, 4 if right else 0)
    return lookup.mix(QUOTED, drafts, stated, most, 0, step_s)


@pytest.mark.parametrize("stated", [False, True])
def test_lookups_follow_a_clients_drafts(stated: bool) -> None:
    assert mixed([8, 9], stated, True) == list(range(8, 16))
    assert mixed([60, 61], stated, True) == [60, 61], "nothing was said after these"
    assert mixed([8, 9], stated, True, lambda own: float(own**2)) == [8, 9], "costs too much"
    assert mixed(list(range(60, 70)), stated, True) == list(range(60, 70)), "more than are looked up"


def test_lookups_replace_the_drafts_of_a_client_that_is_wrong() -> None:
    """But never drafts that come with the distributions that they were drawn from."""
    assert mixed([60, 61], False, False) == list(range(8, 16))
    assert mixed([60, 61], True, False) == [60, 61]
    assert mixed([], False, False) == list(range(8, 16))
