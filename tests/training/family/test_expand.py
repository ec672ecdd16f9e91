"""Every line of a sketch is told once, in its place, whichever way it is expanded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.training.family.expand import expand, expand_in_a_row
from tandem.training.family.prompts import EOS, EXPAND, SENTENCE, SKETCH

sketches = st.lists(st.lists(st.text("abc", min_size=1, max_size=4), max_size=4), max_size=4)


def told(prompts: Sequence[str]) -> list[str]:
    """A writer that repeats the line it is asked for."""
    return [f"Told {prompt.rpartition(EXPAND)[2].removesuffix(SENTENCE).strip()}." for prompt in prompts]


@pytest.mark.parametrize("way", [expand, expand_in_a_row])
@given(sketches=sketches)
def test_each_line_has_its_sentence(way, sketches):
    answers = way(told, [f"Q{i}?" for i in range(len(sketches))], sketches)
    assert answers == [[f"Told {line}." for line in lines] for lines in sketches]


def test_on_its_own_a_sentence_is_written_in_sight_of_no_other():
    seen: list[str] = []
    expand(lambda prompts: seen.extend(prompts) or told(prompts), ["Q?"], [["a", "b"]])
    assert seen == [f"<bos><|q|> Q?{SKETCH} a<|;|> b{EXPAND} {line}{SENTENCE}" for line in "ab"]


def test_in_a_row_the_second_sentence_follows_the_first():
    seen: list[str] = []
    expand_in_a_row(lambda prompts: seen.extend(prompts) or told(prompts), ["Q?"], [["a", "b"]])
    first = f"<bos><|q|> Q?{SKETCH} a<|;|> b{EXPAND} a{SENTENCE}"
    assert seen == [first, f"{first} Told a.{EOS}{EXPAND} b{SENTENCE}"]
