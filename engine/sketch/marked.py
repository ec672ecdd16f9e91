"""Sketches of models that were trained to write them, between marks of their own, as the embedded family was:

sketch     … <|s|><|len|> N<|;|> note<|;|> note<eos>    N: tokens of the answer
expansion  … <|s|> note<|;|> note<|x|> note<|e|> sentence<eos>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tandem.engine.base import InvalidRequest
from tandem.engine.sketch.base import Extent, Question, Sketch, TextFormat
from tandem.engine.text.tokenizer import Tokenizer

ANSWER, SKETCH, LENGTH, NEXT, EXPAND, SENTENCE = "<|a|>", "<|s|>", "<|len|>", "<|;|>", "<|x|>", "<|e|>"


class MarkedFormat(TextFormat):
    """Sketch format with marks of the vocabulary. Raises InvalidRequest if the vocabulary lacks them."""

    states_length = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        marks = (ANSWER, SKETCH, LENGTH, NEXT, EXPAND, SENTENCE)
        self._answer, self._sketch, self._length, self._next, self._expand, self._sentence = map(
            tokenizer.special_id, marks
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MarkedFormat | None:
        """None where the vocabulary lacks the marks."""
        try:
            return cls(tokenizer)
        except InvalidRequest:
            return None

    def sketch(self, question: Question, extent: Extent | None = None) -> list[int] | None:
        """Return the prompt. No extent has one of its own: a sketch is as long as the model was trained to make it,
        about 0.3 of the answer, in notes of two or three words, which cannot be fewer."""
        *asked, last = question.prompt
        return [*asked, self._sketch, self._length] if last == self._answer and extent is None else None

    def sketch_form(self, extent: Extent | None) -> None:
        return None

    def sentence_form(self) -> None:
        return None

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        head, *notes = self._split(written)
        if not notes and not ended:
            return Sketch()
        length = re.fullmatch(r"\s*(\d{1,6})\s*", self._tokenizer.decode(head))
        complete = notes if ended else notes[:-1]
        return Sketch(
            int(length[1]) if length else None, tuple(tuple(note) for note in complete if self.text(note))
        )

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        notes = [token for each in sketch.notes for token in (self._next, *each)][1:]
        return [
            *question.prompt[:-1],
            self._sketch,
            *notes,
            self._expand,
            *sketch.notes[note],
            self._sentence,
        ]

    def opening(self, question: Question, note: Sequence[int]) -> list[int]:
        return self.expand(question, Sketch(notes=(tuple(note),)), 0)

    def clean(
        self, question: Question, sketch: Sketch, note: int, written: Sequence[int], ended: bool
    ) -> list[int]:
        """Return all, unless it has no end: a model that was trained for sentences writes nothing else."""
        return list(written) if ended else []

    def sentence(self, question: Question, written: Sequence[int], number: int) -> list[int]:
        """Sentences are spelt with the space before them."""
        return [token for token in written if self._tokenizer.special_name(token) is None]

    def _split(self, written: Sequence[int]) -> Iterator[list[int]]:
        """Split at the marks; other special tokens are dropped."""
        part: list[int] = []
        for token in written:
            if token == self._next:
                yield part
                part = []
            elif self._tokenizer.special_name(token) is None:
                part.append(token)
        yield part
