"""Incremental decoding and stop strings."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.engine.base import InvalidRequest
from tandem.engine.text.detokenizer import Detokenizer, StopStrings, watch_for
from tests.engine.text.test_tokenizer import TOKENIZER, ids


def split(sequence, cuts):
    """The sequence in pieces, cut at the given places."""
    places = sorted({min(c, len(sequence)) for c in cuts} | {0, len(sequence)})
    return [sequence[a:b] for a, b in itertools.pairwise(places)]


cuts = st.lists(st.integers(0, 60), max_size=20)


@given(ids, cuts)
def test_any_split_of_the_tokens_gives_the_same_text(ids, cuts):
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(piece) for piece in split(ids, cuts)]
    assert "".join([*pieces, detokenizer.flush()]) == TOKENIZER.decode(ids)


@given(st.text(min_size=1, max_size=20))
def test_whole_characters_only(text):
    ordinary = text.translate(str.maketrans("<>", "()"))
    detokenizer = Detokenizer(TOKENIZER)
    said = ""
    for token in TOKENIZER.encode(ordinary):
        said += detokenizer.push([token])
        assert ordinary.startswith(said)
    assert (said, detokenizer.flush()) == (ordinary, "")


stops = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def cut_by_hand(text, stops):
    """The definition: the first character that completes a stop string, of those the longest."""
    for end in range(1, len(text) + 1):
        if met := [s for s in stops if text[:end].endswith(s)]:
            return text[: end - max(map(len, met))], True
    return text, False


@given(st.text("abcd", max_size=40), stops, cuts)
@example("xabcd", ["d", "bc", "c"], [])
@example("xabcd", ["bcd", "c"], [2])
def test_the_earliest_stop_string_wins_however_the_text_is_split(text, stops, cuts):
    expected, stops_there = cut_by_hand(text, stops)
    checker = StopStrings(stops)
    said, stopped = "", False
    for piece in split(text, cuts):
        safe, stopped = checker.push(piece)
        said += safe
        assert expected.startswith(said)
    assert stopped == stops_there
    assert said + ("" if stopped else checker.flush()) == expected


def test_nothing_follows_a_stop():
    checker = StopStrings(["ab"])
    assert checker.push("xaby") == ("x", True)
    assert checker.push("more") == ("", True)
    assert checker.flush() == ""


def test_text_is_held_only_while_it_may_become_a_stop():
    checker = StopStrings(["END"])
    assert [checker.push(c)[0] for c in "xENxE"] == ["x", "", "", "ENx", ""]
    assert checker.flush() == "E"


def test_stop_strings_are_watched_for_from_the_beginning_of_each_output():
    watch = watch_for(["ab"], TOKENIZER)
    for _ in range(2):
        detokenizer, stops = watch()
        assert stops.push(detokenizer.push(TOKENIZER.encode("xabc"))) == ("x", True)


def test_nothing_is_watched_without_stop_strings_and_they_need_a_tokenizer():
    assert watch_for([], None) is None
    with pytest.raises(InvalidRequest, match="tokenizer"):
        watch_for(["ab"], None)
