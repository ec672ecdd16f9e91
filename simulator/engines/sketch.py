"""Sketches in virtual time: what the target would write, and small models from it, as scripted.

A request may bring its answer's outline. Otherwise the answer's sentences are about equally long, and so are the
sketch's notes; the target estimates the answer's length with an error like real models'. Expansions are the answer's
own tokens, so that one that is lost, repeated or misplaced shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import exp

import numpy as np

from tandem.engine.sketch.base import SLACK, Extent, Question, Sketch
from tandem.simulator.engines.script import EOS, TOKEN, Script
from tandem.simulator.workload import Outline, Request

HEAD = 4
"""Tokens of a sketch that state the expected length of the answer."""
SKETCHES = 2**28
"""The first token of the first sketch; those of the others follow."""


@dataclass(frozen=True, slots=True)
class SketchShape:
    """Shape of all sketches.

    share: length of a sketch as a share of its answer's.
    sentence: tokens of a sentence of the answer.
    length_error: standard deviation of the logarithm of estimated over true length.
    asking: tokens that the sketch prompt adds to the question.
    seed: of the random numbers.
    doubted: share of the sentences of small models that the target doubts.
    """

    share: float = 0.3
    sentence: int = 20
    length_error: float = 0.1
    asking: int = 16
    seed: int = 0
    doubted: float = 0.0


class ScriptedFormat:
    """Scripted counterpart of `engine.sketch.base.SketchFormat`."""

    end = EOS
    states_length = True

    def __init__(self, script: Script, shape: SketchShape) -> None:
        self._script, self._shape = script, shape
        self._begun: dict[int, Outline] = {}  # by first token of the answer
        self._of: dict[int, tuple[int, Outline]] = {}  # first token and outline, by the question's number
        self._next = SKETCHES

    def sketch(self, question: Question, extent: Extent | None = None) -> list[int] | None:
        number = question.prompt[0]
        if number in self._of:
            first, outline = self._of[number]
            if extent is None:
                return self._asked(question, first, outline)
            if abs(self._shape.share * extent.answer - extent.tokens) <= SLACK:  # the model's own measure
                return None
        request = self._script.request(number)
        outline = request.outline or self._drawn(number, request, extent)
        self._script.doubt(number, self._doubted(number, outline))
        first = self._next
        self._of[number], self._begun[first] = (first, outline), outline
        self._next += outline.tokens + 1
        return self._asked(question, first, outline)

    def _asked(self, question: Question, first: int, outline: Outline) -> list[int]:
        """Return the prompt. A drafter is as often right about the sketch as about the answer's beginning."""
        tokens = len(question.prompt) + self._shape.asking
        acceptance = self._script.request(question.prompt[0]).acceptance
        return [*self._script.add(Request(0.0, tokens, outline.tokens + 1, acceptance), first)]

    def _drawn(self, number: int, request: Request, extent: Extent | None) -> Outline:
        shape = self._shape
        tokens = max(1, request.output_tokens - 1)
        sentences = max(1, round(tokens / shape.sentence))
        random = np.random.Generator(np.random.PCG64([shape.seed, number]))
        expected = max(1, round(tokens * exp(random.normal(0.0, shape.length_error))))
        wanted = round(shape.share * tokens) if extent is None else extent.tokens - HEAD
        written = max(2 * sentences, wanted)
        notes = tuple((HEAD + begin, HEAD + end) for begin, end in _parts(written, sentences))
        return Outline(
            expected, HEAD + written, notes, tuple(end - begin for begin, end in _parts(tokens, sentences))
        )

    def _doubted(self, number: int, outline: Outline) -> set[int]:
        """Return where the sentences begin that the target doubts."""
        drawn = np.random.Generator(np.random.PCG64([self._shape.seed, number, 1])).random(
            len(outline.sentences)
        )
        begins = [0, *accumulate(outline.sentences)]
        return {begin for begin, chance in zip(begins, drawn, strict=False) if chance < self._shape.doubted}

    def sketch_form(self, extent: Extent | None) -> None:
        return None

    def sentence_form(self) -> None:
        return None

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        if not written or written[0] == EOS:
            return Sketch()
        first, count = written[0], len(written)
        outline = self._begun[first]
        if count < (outline.notes[0][0] if outline.notes else outline.tokens):
            return Sketch()
        complete = [(begin, end) for begin, end in outline.notes if end < count or (ended and end <= count)]
        return Sketch(
            outline.expected, tuple(tuple(range(first + begin, first + end)) for begin, end in complete)
        )

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        """Return the expansion prompt of a note. The sentence's note comes last, so that prompts share a prefix."""
        first, outline = self._of[question.prompt[0]]
        written = outline.notes[-1][1] - outline.notes[0][0]
        shared = len(question.prompt) + self._shape.asking + written
        wanted = Request(0.0, shared + len(sketch.notes[note]), outline.sentences[note] + 1)
        begin = sum(outline.sentences[:note])
        return [*self._script.add(wanted, TOKEN + begin, (first, shared))]

    def opening(self, question: Question, note: Sequence[int]) -> list[int]:
        """Return the prompt, which has no other note than this one."""
        _, outline = self._of[question.prompt[0]]
        tokens = len(question.prompt) + self._shape.asking + len(note)
        return [*self._script.add(Request(0.0, tokens, outline.sentences[0] + 1))]

    def clean(
        self, question: Question, sketch: Sketch, note: int, written: Sequence[int], ended: bool
    ) -> list[int]:
        return list(written) if ended else []

    def sentence(self, question: Question, written: Sequence[int], number: int) -> list[int]:
        return [token for token in written if token != EOS]

    def text(self, note: Sequence[int]) -> str:
        return " ".join(map(str, note))

    def line(self, note: Sequence[int]) -> list[int]:
        """Return nothing: the sketch shown before an answer is not evaluated."""
        return []

    def gap(self) -> list[int]:
        return []


def _parts(tokens: int, parts: int) -> list[tuple[int, int]]:
    """Return where each of `parts` about equally long parts begins and ends."""
    ends = [round(tokens * i / parts) for i in range(parts + 1)]
    return list(pairwise(ends))
