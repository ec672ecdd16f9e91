"""Messages between deployments, pickled by their fields' names: during an update both versions speak to each other.

Python and msgspec pickle most of them by their fields' order, so that another version's would be misread, or read not
at all. By name, fields that the reader does not know are left out, and those that the writer does not know have their
defaults: a field that is added to a message needs one.
"""

from __future__ import annotations

import copyreg
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

PACKAGES = tuple(f"tandem.{floor}." for floor in ("deployments", "cluster", "engine", "policies"))
"""Beginnings of the names of modules whose messages go by name."""


def carry_messages() -> None:
    """Have messages of all modules that this process has loaded go by name from here on, as replicas do at their
    start."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and kind.__module__ == name:
                    carry(kind)


def carry(kind: type[Any]) -> None:
    """Have messages of a kind go by name; nothing for what is no message."""
    if fields := names(kind):
        copyreg.pickle(kind, partial(_reduced, fields))


def names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields that make a message of this kind, and are all of it; none if it is no message."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    if dataclasses.is_dataclass(kind) and "__slots__" in vars(kind):
        fields = dataclasses.fields(kind)
        return tuple(each.name for each in fields) if all(each.init for each in fields) else ()
    return ()


def made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a message of these values by field, as far as it has the fields. Raises TypeError where one without a
    default is missing."""
    return kind(**{name: values[name] for name in names(kind) if name in values})


def _reduced(fields: Sequence[str], message: Any) -> tuple[Any, ...]:
    return made, (type(message), {name: getattr(message, name) for name in fields})
