"""The words of the encyclopedia: what can be said about each kind of entity, and how it is asked for."""

from engine.family.tables.base import Attribute, Kind, Task, Value
from engine.family.tables.dish import DISH
from engine.family.tables.machine import MACHINE
from engine.family.tables.person import PERSON
from engine.family.tables.town import TOWN

KINDS: dict[str, Kind] = {"town": TOWN, "person": PERSON, "machine": MACHINE, "dish": DISH}

__all__ = ["KINDS", "Attribute", "Kind", "Task", "Value"]
