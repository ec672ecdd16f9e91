"""The invented encyclopedia: 240 named entities with 8 facts each, the same everywhere for a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tandem.training.family.tables import KINDS, Value
from tandem.training.family.tables.values import ENDINGS, FIRST_NAMES, FIRST_SYLLABLES, POOLS

COUNTS = {"town": 80, "person": 80, "machine": 40, "dish": 40}
NUMBERED = {"founded", "born", "year"}
ENTITY_VALUED = {
    "founder": "person",
    "mentor": "person",
    "inventor": "person",
    "cook": "person",
    "home": "town",
    "museum": "town",
    "origin": "town",
    "dish": "dish",
}
"""Attributes whose value is another entity of the world, and of which kind."""


@dataclass
class World:
    """Entities and their facts. World 0 is what the family knows; others teach it to copy from a sketch."""

    seed: int = 0
    facts_seed: int | None = None
    """Seed with which the same entities have other facts."""
    names: dict[str, tuple[str, ...]] = field(init=False)
    """Entity names by kind."""
    kind_of: dict[str, str] = field(init=False)
    facts: dict[str, dict[str, Value]] = field(init=False)
    """Values by attribute, of each entity."""

    def __post_init__(self) -> None:
        rng = Random(self.seed)
        taken: set[str] = set()
        self.names = {
            kind: tuple(_new_name(rng, kind, taken) for _ in range(n)) for kind, n in COUNTS.items()
        }
        if self.facts_seed is not None:
            rng = Random(self.facts_seed)
        self.kind_of = {name: kind for kind, names in self.names.items() for name in names}
        self.facts = {
            name: {attribute: self._draw(rng, name, attribute) for attribute in KINDS[kind].attributes}
            for name, kind in self.kind_of.items()
        }
        self.everyone = tuple(self.kind_of)

    def _draw(self, rng: Random, name: str, attribute: str) -> Value:
        if attribute in NUMBERED:
            return str(rng.randrange(1100, 1900))
        if attribute in ENTITY_VALUED:
            return rng.choice([n for n in self.names[ENTITY_VALUED[attribute]] if n != name])
        if attribute == "festival":
            return rng.choice(POOLS["festival"]), rng.choice(POOLS["month"])
        if attribute == "method":
            return rng.choice(POOLS["method"]), str(rng.randrange(5, 95, 5))
        return rng.choice(POOLS[attribute])


def _new_name(rng: Random, kind: str, taken: set[str]) -> str:
    while True:
        name = rng.choice(FIRST_SYLLABLES) + rng.choice(ENDINGS[kind])
        if kind == "person":
            name = f"{rng.choice(FIRST_NAMES)} {name}"
        if name not in taken:
            taken.add(name)
            return name
