"""Sketches expanded to answers: the sentence of every line on its own, or all of a sketch in one sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.training.family.prompts import EOS, expansion_prompt, line_prompt

Write = Callable[[Sequence[str]], list[str]]
"""Function that completes prompts, and returns texts without end token and surrounding spaces."""


def expand(write: Write, questions: Sequence[str], sketches: Sequence[Sequence[str]]) -> list[list[str]]:
    """The sentences of each sketch, each written in sight of the whole sketch and of no other sentence."""
    prompts = [
        expansion_prompt(question, lines, line)
        for question, lines in zip(questions, sketches, strict=True)
        for line in lines
    ]
    sentences = iter(write(prompts))
    return [[next(sentences) for _ in lines] for lines in sketches]


def expand_in_a_row(
    write: Write, questions: Sequence[str], sketches: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Expand in one sequence per sketch, as PICE's groups are: each line after the sentence of the one before."""
    told: list[list[str]] = [[] for _ in sketches]
    sequences = ["" for _ in sketches]
    for row in range(max(map(len, sketches), default=0)):
        active = [i for i, lines in enumerate(sketches) if row < len(lines)]
        for i in active:
            lines = sketches[i]
            sequences[i] += (
                f" {told[i][-1]}{EOS}{line_prompt(lines[row])}"
                if row
                else expansion_prompt(questions[i], lines, lines[0])
            )
        for i, sentence in zip(active, write([sequences[i] for i in active]), strict=True):
            told[i].append(sentence)
    return told
