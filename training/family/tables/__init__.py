"""The words of the encyclopedia: what can be said about each kind of entity, and how it is asked for."""

from tandem.training.family.tables.base import Attribute, Kind, Task, Value
from tandem.training.family.tables.dish import DISH
from tandem.training.family.tables.machine import MACHINE
from tandem.training.family.tables.person import PERSON
from tandem.training.family.tables.town import TOWN

KINDS: dict[str, Kind] = {"town": TOWN, "person": PERSON, "machine": MACHINE, "dish": DISH}

__all__ = ["KINDS", "Attribute", "Kind", "Task", "Value"]
