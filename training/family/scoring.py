"""Did the text state the facts? Exact checks; no model judges another."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.policies.sketch.rouge import words
from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.tables import Value


def states(text: str, value: Value) -> bool:
    """True if every part of the value stands in the text as whole words, whatever their case."""
    stated = f" {' '.join(words(text))} "
    parts = (value,) if isinstance(value, str) else value
    return all(f" {' '.join(words(part))} " in stated for part in parts)


def check_facts(item: Item, text: str) -> list[bool]:
    """Return for each fact of the item's answer whether the text states it."""
    return [states(text, line.value) for line in item.lines]


def fact_accuracy(items: Iterable[Item], texts: Iterable[str]) -> float:
    """The share of all facts asked for that the texts state, 0..1."""
    checks = [check for item, text in zip(items, texts, strict=True) for check in check_facts(item, text)]
    return sum(checks) / len(checks)
