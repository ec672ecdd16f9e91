"""Elements of the encyclopedia's tables: attributes of a kind of entity, and tasks asked about it.

In every template `{n}` is the entity's name and `{v}` the fact's value; a value of two parts (a festival and
its month) is written `{v[0]}` and `{v[1]}`. Held-out questions are never trained on; they use cue words of
their own attribute's training questions and none of another attribute's: they test understanding, not luck.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = str | tuple[str, str]


@dataclass(frozen=True)
class Attribute:
    """One attribute of a kind of entity: how a fact about it is noted, told and asked for."""

    label: str
    """The word in front of the value in a sketch line."""
    sentences: tuple[str, ...]
    asks: tuple[str, ...]
    held: tuple[str, ...]
    first_person: tuple[str, ...] = ()
    """Told by the person itself, for role play."""
    code: tuple[str, ...] = ()
    """Told as a line of a program, for a recipe as code."""


@dataclass(frozen=True)
class Task:
    """A question about a whole entity, answered by a sentence for each of the named attributes."""

    attributes: tuple[str, ...]
    asks: tuple[str, ...]
    held: tuple[str, ...]
    style: str = "sentences"
    """Templates of the attribute to use: sentences, first_person or code."""


@dataclass(frozen=True)
class Kind:
    """A kind of entity with its attributes and the tasks that only it has."""

    attributes: dict[str, Attribute]
    tasks: dict[str, Task]
    related: tuple[tuple[str, tuple[str, ...]], ...]
    """An attribute whose value is another entity, and the attributes of that one to tell, for long answers."""
