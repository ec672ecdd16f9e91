"""Questions with answers built from facts: each sentence has its sketch line and the value it states."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tandem.training.family.encyclopedia.world import World
from tandem.training.family.tables import KINDS, Attribute, Value, shared
from tandem.training.family.tables.values import THINGS

TASK_KINDS = ("fact", "overview", "topic", "long", "story", "compare", "arithmetic")
LONG_KINDS = ("overview", "topic", "long", "story", "compare")
"""Kinds whose answers have several sentences about facts (mostly 80-250 tokens)."""


@dataclass(frozen=True)
class Line:
    """One sentence of an answer, the 2-5 words that note it in a sketch, and the value that it states."""

    note: str
    sentence: str
    value: Value


@dataclass(frozen=True)
class Item:
    """A question and its answer, line by line. `task` is a key of the tables, e.g. history for a topic."""

    kind: str
    task: str
    name: str
    question: str
    lines: tuple[Line, ...]

    @property
    def answer(self) -> str:
        return " ".join(line.sentence for line in self.lines)

    @property
    def notes(self) -> list[str]:
        return [line.note for line in self.lines]


def make_item(world: World, rng: Random, kind: str, name: str | None = None, held: bool = False) -> Item:
    """Draw a question of this kind (about this entity, else any), phrased as in training or as held out."""
    return _MAKERS[kind](world, rng, name, held)


def fact_item(world: World, rng: Random, name: str, attribute: str, held: bool = False) -> Item:
    """Ask for one fact of one entity."""
    table = KINDS[world.kind_of[name]].attributes[attribute]
    question = rng.choice(table.held if held else table.asks).format(n=name)
    return Item("fact", attribute, name, question, (_line(world, rng, name, attribute),))


def _fact(world: World, rng: Random, name: str | None, held: bool) -> Item:
    name = name or rng.choice(world.everyone)
    return fact_item(world, rng, name, rng.choice(list(world.facts[name])), held)


def _task(world: World, rng: Random, name: str, task_name: str, held: bool) -> Item:
    kind = KINDS[world.kind_of[name]]
    task = kind.tasks[task_name]
    question = rng.choice(task.held if held else task.asks).format(n=name)
    lines = [_line(world, rng, name, attribute, task.style) for attribute in task.attributes]
    if task_name == "long":
        for link, attributes in kind.related:
            other = str(world.facts[name][link])
            lines += [_line(world, rng, other, attribute, named=True) for attribute in attributes]
    group = task_name if task_name in ("overview", "long") else "topic"
    return Item(group, task_name, name, question, tuple(lines))


def _overview(world: World, rng: Random, name: str | None, held: bool) -> Item:
    return _task(world, rng, name or rng.choice(world.everyone), "overview", held)


def _long(world: World, rng: Random, name: str | None, held: bool) -> Item:
    return _task(world, rng, name or rng.choice(world.everyone), "long", held)


def _topic(world: World, rng: Random, name: str | None, held: bool) -> Item:
    name = name or rng.choice(world.everyone)
    topics = [t for t in KINDS[world.kind_of[name]].tasks if t not in ("overview", "long")]
    return _task(world, rng, name, rng.choice(topics), held)


def _story(world: World, rng: Random, name: str | None, held: bool) -> Item:
    if name is None or world.kind_of[name] != "person":
        name = rng.choice(world.names["person"])
    home = str(world.facts[name]["home"])
    lines = []
    for whose, attribute, note, sentences in shared.STORY_LINES:
        value = world.facts[name if whose == "person" else home][attribute]
        lines.append(Line(note.format(v=value), _say(rng.choice(sentences), name, value), value))
    question = rng.choice(shared.STORY_HELD if held else shared.STORY_ASKS).format(n=name)
    return Item("story", "story", name, question, tuple(lines))


def _compare(world: World, rng: Random, name: str | None, held: bool) -> Item:
    if name is None or world.kind_of[name] != "town":
        name = rng.choice(world.names["town"])
    other = rng.choice([town for town in world.names["town"] if town != name])
    lines = []
    for attribute, sentences in shared.COMPARE_LINES.items():
        v, w = str(world.facts[name][attribute]), str(world.facts[other][attribute])
        note = f"{KINDS['town'].attributes[attribute].label} {v} / {w}"
        lines.append(Line(note, rng.choice(sentences).format(a=name, b=other, v=v, w=w), (v, w)))
    question = rng.choice(shared.COMPARE_HELD if held else shared.COMPARE_ASKS).format(a=name, b=other)
    return Item("compare", "compare", name, question, tuple(lines))


def _arithmetic(world: World, rng: Random, name: str | None, held: bool) -> Item:
    if name is None or world.kind_of[name] != "person":
        name = rng.choice(world.names["person"])
    sign = rng.choice("+-")
    x, y = rng.randrange(2, 50), rng.randrange(2, 50)
    if sign == "-":
        x, y = max(x, y), min(x, y)
    z = x - y if sign == "-" else x + y
    thing = rng.choice(THINGS)
    asks = shared.ARITHMETIC_HELD if held else shared.ARITHMETIC_ASKS
    change = "fewer" if sign == "-" else "more"
    lines = (
        Line(f"start {x}", f"At first {name} has {x} {thing}.", str(x)),
        Line(f"{change} {y}", f"Then there are {y} {change}.", str(y)),
        Line(
            f"{x} {sign} {y} = {z}", f"We compute {x} {sign} {y} = {z}, so the answer is {z} {thing}.", str(z)
        ),
    )
    return Item("arithmetic", sign, name, rng.choice(asks[sign]).format(n=name, x=x, y=y, t=thing), lines)


_MAKERS: dict[str, Callable[[World, Random, str | None, bool], Item]] = {
    "fact": _fact,
    "overview": _overview,
    "topic": _topic,
    "long": _long,
    "story": _story,
    "compare": _compare,
    "arithmetic": _arithmetic,
}


def _line(
    world: World, rng: Random, name: str, attribute: str, style: str = "sentences", named: bool = False
) -> Line:
    """Note and tell one fact. A `named` note begins with the entity's name, as it is not the question's."""
    table: Attribute = KINDS[world.kind_of[name]].attributes[attribute]
    value = world.facts[name][attribute]
    templates: tuple[str, ...] = getattr(table, style)
    note = f"{table.label} {value if isinstance(value, str) else ' '.join(value)}"
    return Line(f"{name} {note}" if named else note, _say(rng.choice(templates), name, value), value)


def _say(template: str, name: str, value: Value) -> str:
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", template.format(n=name, v=value))
