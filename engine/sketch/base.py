"""What a sketch is, and what a way to ask for one must offer. All of it in the tokens of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Sketch:
    """What a model has written of a sketch so far.

    expected: tokens that it expects of the full answer; None: it has not said.
    notes: the short sentences that are complete, each in tokens.
    """

    expected: int | None = None
    notes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be answered.

    prompt: as the target is asked for the full answer.
    chat: the messages that it was made of; empty: it was no chat.
    text: the question itself, for people.
    """

    prompt: Sequence[int]
    chat: Sequence[Mapping[str, Any]] = ()
    text: str = ""


class SketchFormat(Protocol):
    """A way to ask."""

    @property
    def end(self) -> int:
        """The token that an answer ends with."""
        ...

    def sketch(self, question: Question) -> list[int] | None:
        """The prompt for a sketch; None: there is none for such a question."""
        ...

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        """What the answer to that prompt says so far; where it has `ended`, its last note is complete."""
        ...

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        """The prompt for the sentence that tells the note of this number, in sight of the others."""
        ...

    def sentence(self, written: Sequence[int], first: bool) -> list[int]:
        """What such an answer adds to the full one, of which it is the `first` sentence or a later one."""
        ...

    def text(self, note: Sequence[int]) -> str:
        """A note, for policies."""
        ...

    def line(self, note: Sequence[int]) -> list[int]:
        """A note, shown to people as a line."""
        ...

    def gap(self) -> list[int]:
        """What follows the last of such lines."""
        ...


class TextFormat:
    """What is the same of all formats of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end = tokenizer.eos

    def text(self, note: Sequence[int]) -> str:
        return self._tokenizer.decode(note).strip()

    def line(self, note: Sequence[int]) -> list[int]:
        return self._tokenizer.encode_bytes(f"- {self.text(note)}\n".encode())

    def gap(self) -> list[int]:
        return self._tokenizer.encode_bytes(b"\n")
