"""Spelling of a notation's special tokens."""

from __future__ import annotations

from tandem.app.api.tools.answer_reader import BEGIN, END, AnswerReader
from tandem.app.api.tools.spelling import MarkedSpelling
from tests.app.api.tools.answers import read
from tests.engine.text.test_grammar import marked_vocabulary


def test_thoughts_between_special_tokens_are_read() -> None:
    vocabulary = marked_vocabulary(special=True)
    ids = vocabulary.encode(f"{BEGIN}Rain?{END}It rains.")
    assert vocabulary.shown_bytes(ids) == b"Rain?It rains."
    spelling = MarkedSpelling(vocabulary, (BEGIN, END))
    found = read(
        lambda: AnswerReader(None, thinks=True), [spelling.shown_bytes([token]).decode() for token in ids]
    )
    assert (found.reasoning, found.content) == ("Rain?", "It rains.")
