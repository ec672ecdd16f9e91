"""Stand-ins come back as what they stand for, however the answer is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engine.privacy.stand_ins import Restorer, StandIns

TOLD = "I am Anna Svensson, call +49 30 1234567. Anna's mail is anna@example.org."
STAND_INS = StandIns([TOLD])


def test_a_part_has_one_stand_in_everywhere() -> None:
    hidden = "I am <NAME_1> <NAME_2>, call <PHONE_1>. <NAME_1>'s mail is <EMAIL_1>."
    assert STAND_INS.hide(TOLD) == hidden
    assert STAND_INS.show(hidden) == TOLD
    assert STAND_INS.counts == {"name": 2, "phone": 1, "email": 1}
    assert STAND_INS.hide("Annabel, anna") == "Annabel, anna"


def test_a_chat_that_goes_on_keeps_its_stand_ins() -> None:
    longer = StandIns([TOLD, "And Bob Miller?"])
    assert longer.hide(TOLD) == STAND_INS.hide(TOLD)
    assert longer.hide("And Bob Miller?") == "And <NAME_3> <NAME_4>?"


def test_what_the_client_has_written_is_no_stand_in() -> None:
    told = "<NAME_1> is what Anna Svensson wrote."
    stand_ins = StandIns([told])
    assert stand_ins.hide(told) == "<NAME_1> is what <NAME_2> <NAME_3> wrote."
    assert stand_ins.show(stand_ins.hide(told)) == told


pieces = st.lists(
    st.sampled_from(
        ["<NAME_1>", "<NAME_2>", "<NAME_12>", "<EMAIL_1>", "<", "<NA", "<<NAME_1>", "x > y", "\n"]
    ),
    max_size=6,
)


@settings(max_examples=60)
@given(pieces, st.lists(st.integers(0, 60), max_size=8))
def test_any_cut_gives_the_same_text(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    restorer, places = Restorer(STAND_INS), sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    shown = [restorer.push(text[a:b]) for a, b in pairwise(places)]
    assert "".join(shown) + restorer.flush() == STAND_INS.show(text)


def test_only_what_may_be_a_stand_in_is_held_back() -> None:
    restorer = Restorer(STAND_INS)
    assert [restorer.push(piece) for piece in ("a <", "NAME", "_1", "> <b", ">")] == [
        "a ",
        "",
        "",
        "Anna <b",
        ">",
    ]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["Ab-", "Abc ", "12-34-", "a.b", "AB1", "Ab 1, ", "A1\n", "1:", "a"])
def test_a_hostile_text_takes_no_longer_than_another(part: str) -> None:
    text = part * (6_000 // len(part))
    stand_ins = StandIns([text])
    assert stand_ins.show(stand_ins.hide(text)) == text
