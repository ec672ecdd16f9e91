"""Did the text state the facts? Exact checks; no model judges another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from tandem.policies.sketch.rouge import words
from tandem.training.family.encyclopedia.items import Item, Line
from tandem.training.family.prompts import home_world
from tandem.training.family.tables import Value


def states(text: str, value: Value) -> bool:
    """True if every part of the value stands in the text as whole words, whatever their case."""
    stated = f" {' '.join(words(text))} "
    parts = (value,) if isinstance(value, str) else value
    return all(f" {' '.join(words(part))} " in stated for part in parts)


def check_facts(item: Item, text: str) -> list[bool]:
    """Return for each fact of the item's answer whether a sentence of the text states it, of those whom it is about."""
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    return [any(tells(sentence, item, line) for sentence in sentences) for line in item.lines]


def tells(sentence: str, item: Item, line: Line) -> bool:
    """Return whether a sentence states a fact of its subjects: of no stranger, and of two in the order of their values.

    A single subject may be a pronoun if it is the answer's own, and must be named if it is another's."""
    if not states(sentence, line.value) or foreign_names(item, sentence):
        return False
    said = names(sentence)
    subjects = [name for name in names(line.sentence) if not states(str(line.value), name)]
    if any(name not in said for name in subjects if name != item.name or len(subjects) > 1):
        return False
    if isinstance(line.value, str) or len(subjects) != 2 or line.value[0] == line.value[1]:
        return True
    first, second = sorted(subjects, key=lambda name: _at(line.sentence, name))
    v, w = sorted(line.value, key=lambda value: _at(line.sentence, value))
    return (_at(sentence, first) < _at(sentence, second)) == (_at(sentence, v) < _at(sentence, w))


def names(text: str) -> set[str]:
    """Return the names of all entities that a text mentions."""
    said = words(text)
    spans = {" ".join(said[i : i + n]) for n in (1, 2) for i in range(len(said))}
    return {name for spelt, name in _everyone().items() if spelt in spans}


def foreign_names(item: Item, text: str) -> set[str]:
    """Return the names in a text of whom neither the item's question nor its answer speaks."""
    return names(text) - names(f"{item.question} {item.answer}") - {item.name}


@cache
def _everyone() -> dict[str, str]:
    """All names, by their words."""
    return {" ".join(words(name)): name for name in home_world().everyone}


def _at(text: str, part: str) -> int:
    """Return where a part of a text begins, in characters of its words."""
    return f" {' '.join(words(text))} ".find(f" {' '.join(words(part))} ")


def fact_accuracy(items: Iterable[Item], texts: Iterable[str]) -> float:
    """The share of all facts asked for that the texts state, 0..1."""
    checks = [check for item, text in zip(items, texts, strict=True) for check in check_facts(item, text)]
    return sum(checks) / len(checks)
