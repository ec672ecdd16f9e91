"""Did the text state the facts, and how close is it to a reference? Exact checks; no model judges another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from training.family.items import Item
from training.family.tables import Value

WORD = re.compile(r"[a-z0-9]+")


def states(text: str, value: Value) -> bool:
    """True if every part of the value stands in the text as whole words, whatever their case."""
    words = f" {' '.join(_words(text))} "
    parts = (value,) if isinstance(value, str) else value
    return all(f" {' '.join(_words(part))} " in words for part in parts)


def check_facts(item: Item, text: str) -> list[bool]:
    """For each fact of the item's answer, whether the text states it."""
    return [states(text, line.value) for line in item.lines]


def fact_accuracy(items: Iterable[Item], texts: Iterable[str]) -> float:
    """The share of all facts asked for that the texts state, 0..1."""
    checks = [check for item, text in zip(items, texts, strict=True) for check in check_facts(item, text)]
    return sum(checks) / len(checks)


def rouge1(text: str, reference: str) -> float:
    """F1 of the words in common with the reference, 0..1."""
    ours, theirs = Counter(_words(text)), Counter(_words(reference))
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else 0.0


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())
