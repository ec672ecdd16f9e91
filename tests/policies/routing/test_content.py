from __future__ import annotations

import pytest

from tandem.policies.routing.content import READ, content_of


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Complete this function.\n\ndef add(a, b):\n", "code"),
        ("Why does this fail?\n```\nx\n```", "code"),
        ("A train leaves at 10:45 and travels 120 km at 80 km/h.", "numbers"),
        ("Tell me about the town of Marworth, in 3 sentences.", ""),
        ("What is 123 + 456?", "numbers"),
        ("What is 12 + 345?", ""),
        ("", ""),
    ],
)
def test_contents_are_told_by_their_text(text: str, content: str) -> None:
    assert content_of(text) == content
    assert content_of(text, formed=True) == "form"


def test_the_end_of_a_text_decides() -> None:
    assert content_of("def f(x):\n" + "a word " * READ) == ""
