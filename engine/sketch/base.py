"""Sketches, and the interface of a format that asks for them. All in tokens of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.engine.base import Grammar
from tandem.engine.text.tokenizer import Tokenizer

SLACK = 10
"""Tokens that a sketch may have more or less than was asked for, as PICE has seen."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """A model's sketch so far.

    expected: its stated length of the full answer, tokens; None if not stated yet.
    notes: its complete short sentences, each in tokens.
    tokens: that the model has written for it; 0: not counted.
    """

    expected: int | None = None
    notes: tuple[tuple[int, ...], ...] = ()
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Question to answer.

    prompt: prompt for the full answer.
    chat: messages that it was rendered from; empty if it was no chat.
    text: the question itself, as text.
    """

    prompt: Sequence[int]
    chat: Sequence[Mapping[str, Any]] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of a sketch that is asked for, and kept to SLACK tokens.

    tokens: of the sketch.
    answer: tokens of the answer that it is to be a sketch of.
    """

    tokens: int
    answer: int


class SketchFormat(Protocol):
    """A way to ask.

    states_length: whether a sketch begins with a length of the answer that can be relied on, as the model was trained
        for it.
    """

    states_length: bool

    @property
    def end(self) -> int:
        """The token that an answer ends with."""
        ...

    def sketch(self, question: Question, extent: Extent | None = None) -> list[int] | None:
        """The prompt for a sketch; None: there is none for such a question, or that extent needs none of its own."""
        ...

    def sketch_form(self, extent: Extent | None) -> Grammar | None:
        """The form of what is written after that prompt; None for any."""
        ...

    def sentence_form(self) -> Grammar | None:
        """The form of an expansion; None for any."""
        ...

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        """Parse the answer to that prompt so far; if it has `ended`, its last note is complete."""
        ...

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        """The prompt for the sentence that tells the note of this number, in sight of the others."""
        ...

    def opening(self, question: Question, note: Sequence[int]) -> list[int] | None:
        """The prompt for the first sentence, which tells this note, in sight of no other; None where a sentence must be
        whole before it can be cleaned."""
        ...

    def clean(
        self, question: Question, sketch: Sketch, note: int, written: Sequence[int], ended: bool
    ) -> list[int]:
        """Return what of the answer to that prompt is the sentence, empty if nothing is; whether the model `ended`."""
        ...

    def sentence(self, question: Question, written: Sequence[int], number: int) -> list[int]:
        """Return what the sentence of that number, from 0, adds to the full answer."""
        ...

    def text(self, note: Sequence[int]) -> str:
        """A note, for policies."""
        ...

    def line(self, note: Sequence[int]) -> list[int]:
        """A note, shown to people as a line."""
        ...

    def gap(self) -> list[int]:
        """Return the separator after the last of such lines."""
        ...


class TextFormat:
    """Common part of all formats of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end = tokenizer.eos

    def text(self, note: Sequence[int]) -> str:
        return self._tokenizer.decode(note).strip()

    def line(self, note: Sequence[int]) -> list[int]:
        return self._tokenizer.encode_bytes(f"- {self.text(note)}\n".encode())

    def gap(self) -> list[int]:
        return self._tokenizer.encode_bytes(b"\n")
