"""Sketches in virtual time: what the target would write of one, and small models from it, as a script has it.

An answer's sentences are about equally long, and so are a sketch's notes. The target tells the answer's length as well
as models do, not as the trace has it. What somebody writes of an answer's sentence are the answer's own tokens, so that
one that is lost, said twice or out of its place shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from engine.sketch.base import Question, Sketch
from simulator.script import EOS, TOKEN, Script
from simulator.workload import Request

HEAD = 4
"""Tokens of a sketch that say how long the answer will be."""
SKETCHES = 2**28
"""The first token of the first sketch; those of the others follow."""


@dataclass(frozen=True, slots=True)
class SketchShape:
    """Of all sketches.

    share: of the answer's tokens that its sketch has.
    sentence: tokens of a sentence of the answer.
    length_error: standard deviation of the logarithm of the length that is told over the true one.
    asking: tokens that are asked in beside the question.
    seed: of what is drawn.
    """

    share: float = 0.3
    sentence: int = 20
    length_error: float = 0.1
    asking: int = 16
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Planned:
    """A sketch that may be written.

    request: whose.
    first: its first token.
    expected: of the answer, as told.
    answer, notes: where sentences and notes end, in tokens of the answer and of the sketch.
    """

    request: Request
    first: int
    expected: int
    answer: tuple[int, ...]
    notes: tuple[int, ...]


class ScriptedFormat:
    """As `engine.sketch.base.SketchFormat`."""

    end = EOS

    def __init__(self, script: Script, shape: SketchShape) -> None:
        self._script, self._shape = script, shape
        self._planned: dict[int, _Planned] = {}  # by first token
        self._of: dict[int, _Planned] = {}  # by the question's number
        self._next = SKETCHES

    def sketch(self, question: Question) -> list[int]:
        number = question.prompt[0]
        planned = self._of.get(number)
        if planned is None:
            planned = self._of[number] = self._plan(number)
            self._planned[planned.first] = planned
            self._next += planned.notes[-1]
        tokens = len(question.prompt) + self._shape.asking
        return [*self._script.add(Request(0.0, tokens, planned.notes[-1] + 1), planned.first)]

    def _plan(self, number: int) -> _Planned:
        shape, request = self._shape, self._script.request(number)
        tokens = max(1, request.output_tokens - 1)
        sentences = max(1, round(tokens / shape.sentence))
        random = np.random.Generator(np.random.PCG64([shape.seed, number]))
        expected = max(1, round(tokens * exp(random.normal(0.0, shape.length_error))))
        written = max(2 * sentences, round(shape.share * tokens))
        return _Planned(
            request,
            self._next,
            expected,
            tuple(round(tokens * i / sentences) for i in range(1, sentences + 1)),
            tuple(HEAD + round(written * i / sentences) for i in range(1, sentences + 1)),
        )

    def read(self, written: Sequence[int], ended: bool) -> Sketch:
        if len(written) < HEAD:
            return Sketch()
        planned = self._planned[written[0]]
        begins = (HEAD, *planned.notes)
        complete = [end for end in planned.notes if end < len(written) or (ended and end <= len(written))]
        notes = tuple(
            tuple(range(planned.first + begins[i], planned.first + end)) for i, end in enumerate(complete)
        )
        return Sketch(planned.expected, notes)

    def expand(self, question: Question, sketch: Sketch, note: int) -> list[int]:
        planned = self._of[question.prompt[0]]
        begin = planned.answer[note - 1] if note else 0
        written = sum(map(len, sketch.notes)) + len(sketch.notes[note])
        tokens = len(question.prompt) + self._shape.asking + written
        length = planned.answer[note] - begin
        return [*self._script.add(Request(0.0, tokens, length + 1), TOKEN + begin)]

    def sentence(self, written: Sequence[int], first: bool) -> list[int]:
        return [token for token in written if token != EOS]

    def text(self, note: Sequence[int]) -> str:
        return " ".join(map(str, note))

    def line(self, note: Sequence[int]) -> list[int]:
        """Nothing: what is shown before an answer is no part of it, and nobody looks."""
        return []

    def gap(self) -> list[int]:
        return []
