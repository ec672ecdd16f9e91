"""The text formats of the family, and prompts that it was never trained on.

answer     `<bos><|q|> Q<|a|> answer<eos>`
sketch     `<bos><|q|> Q<|s|><|len|> N<|;|> line<|;|> line<eos>`; N: tokens of the answer, rounded to 10
expansion  `<bos><|q|> Q<|s|> line<|;|> line<|x|> line<|e|> sentence<eos>`, and on with `<|x|> line<|e|> sentence<eos>`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from tandem.training.family.encyclopedia.items import LONG_KINDS, Item, make_item
from tandem.training.family.encyclopedia.world import World

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
QUESTION, ANSWER, SKETCH, LENGTH, NEXT, EXPAND, SENTENCE = (
    "<|q|>",
    "<|a|>",
    "<|s|>",
    "<|len|>",
    "<|;|>",
    "<|x|>",
    "<|e|>",
)
SPECIAL_TOKENS = (PAD, BOS, EOS, QUESTION, ANSWER, SKETCH, LENGTH, NEXT, EXPAND, SENTENCE)


@dataclass(frozen=True)
class Sketch:
    """A parsed sketch: the expected length of the answer in tokens (None if unreadable) and its lines."""

    length: int | None
    lines: tuple[str, ...]


def answer_prompt(question: str) -> str:
    return f"{BOS}{QUESTION} {question}{ANSWER}"


def sketch_prompt(question: str) -> str:
    return f"{BOS}{QUESTION} {question}{SKETCH}{LENGTH}"


def expansion_prompt(question: str, notes: Sequence[str], note: str) -> str:
    """Ask for the sentence that tells `note`, in sight of the whole sketch."""
    return f"{BOS}{QUESTION} {question}{SKETCH}{lines_text(notes)}{line_prompt(note)}"


def line_prompt(note: str) -> str:
    """Ask for the sentence that tells `note`, behind a sketch or behind the sentence (with <eos>) of another line."""
    return f"{EXPAND} {note}{SENTENCE}"


def answer_text(item: Item) -> str:
    """Return the text after the answer prompt of this item."""
    return f" {item.answer}{EOS}"


def sketch_text(item: Item, answer_tokens: int) -> str:
    """Return the text after the sketch prompt of this item, whose answer has this many tokens."""
    return f" {round(answer_tokens / 10) * 10}{NEXT}{lines_text(item.notes)}{EOS}"


def expansion_text(item: Item, index: int) -> str:
    """Return the text after the expansion prompt for the note of this index."""
    return f" {item.lines[index].sentence}{EOS}"


def parse_sketch(text: str) -> Sketch:
    """Read what a model wrote after a sketch prompt; never fails on malformed text."""
    length, _, rest = text.partition(EOS)[0].partition(NEXT)
    number = re.fullmatch(r"\s*(\d+)\s*", length)
    lines = tuple(line.strip() for line in rest.split(NEXT) if line.strip())
    return Sketch(int(number[1]) if number else None, lines)


@cache
def home_world() -> World:
    """The world that the family was trained on."""
    return World(0)


def heldout(n: int, kinds: Sequence[str] = LONG_KINDS, seed: int = 0) -> list[Item]:
    """Draw n items in phrasings that were never trained on, of kinds drawn evenly from these."""
    rng = Random(f"held-out {seed}")
    return [make_item(home_world(), rng, rng.choice(kinds), held=True) for _ in range(n)]


def heldout_questions(n: int, kinds: Sequence[str] = LONG_KINDS, seed: int = 0) -> list[str]:
    """Return held-out questions as plain text (all different), for benchmarks and tests of other parts."""
    rng = Random(f"held-out {seed}")
    questions: dict[str, None] = {}
    while len(questions) < n:
        questions[make_item(home_world(), rng, rng.choice(kinds), held=True).question] = None
    return list(questions)


def lines_text(notes: Sequence[str]) -> str:
    """The lines of a sketch."""
    return NEXT.join(f" {note}" for note in notes)
