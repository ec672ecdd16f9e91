"""Registries of policies: one per family, so that a new policy is one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from inspect import signature
from pkgutil import walk_packages
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from tandem import policies

P = TypeVar("P")


class UnknownPolicy(ValueError):
    """No policy of the family has this name."""


class UnknownParameter(ValueError):
    """The policy has no parameter of this name."""


class WrongParameter(ValueError):
    """A parameter of the policy has a value of another type."""


class Registry(Generic[P]):
    """The policies of one family by name; `create` builds one from a settings file's parameters.

    To add a policy, put a module anywhere in this package, with a class that is marked `@FAMILY.register("name")` and
    has the family's methods; its constructor's arguments are the parameters that settings may give. The module need
    not be imported: the first request for a policy imports all modules of the package. The family's contract tests
    (tests/policies/test_contract.py) then run over it; what it does beyond them is tested in a file of its own.

    family: name of the family, by which `family` finds it in any process.
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self._factories: dict[str, Callable[..., P]] = {}
        _families[family] = self

    def register(self, name: str) -> Callable[[type[P]], type[P]]:
        """Register the decorated class as the policy `name`."""

        def add(cls: type[P]) -> type[P]:
            if name in self._factories:
                raise ValueError(f"{self.family} policy {name!r} is registered twice")
            self._factories[name] = cls
            return cls

        return add

    def create(self, name: str, **parameters: object) -> P:
        """Build the policy called `name`. Raises UnknownPolicy or UnknownParameter, which list the known ones,
        WrongParameter, or ValueError."""
        _import_all()
        if name not in self._factories:
            raise UnknownPolicy(
                f"no {self.family} policy {name!r}; there are: {', '.join(sorted(self._factories))}"
            )
        factory = self._factories[name]
        known = signature(factory).parameters
        if unknown := [each for each in parameters if each not in known]:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise UnknownParameter(f"{self.family} policy {name!r} has no parameter {unknown[0]!r}; {there}")
        hints = get_type_hints(factory.__init__) | get_type_hints(factory)
        for each, value in parameters.items():
            try:
                msgspec.convert(value, hints.get(each, Any))
            except msgspec.ValidationError as error:
                raise WrongParameter(f"{self.family} policy {name!r}: {each}: {error}") from None
        return factory(**parameters)

    def __iter__(self) -> Iterator[str]:
        _import_all()
        return iter(sorted(self._factories))

    def __reduce__(self) -> tuple[Callable[[str], Registry[Any]], tuple[str]]:
        """Pickle a reference: every process has its own registry of each family."""
        return family, (self.family,)


_families: dict[str, Registry[Any]] = {}


def family(name: str) -> Registry[Any]:
    """Return the registry of a family; raises KeyError if there is none."""
    _import_all()
    return _families[name]


def families() -> dict[str, list[str]]:
    """Return the names of all policies by family."""
    _import_all()
    return {name: list(registry) for name, registry in sorted(_families.items())}


def policy(family: str, name: str, **parameters: object) -> Any:
    """Build a policy, such as ("window", "awc"); raises UnknownPolicy, which lists the known ones."""
    _import_all()
    if family not in _families:
        raise UnknownPolicy(f"no family of policies {family!r}; there are: {', '.join(sorted(_families))}")
    return _families[family].create(name, **parameters)


@cache
def _import_all() -> None:
    """Import all modules of this package, so that every policy is registered."""
    for module in sorted(found.name for found in walk_packages(policies.__path__, "tandem.policies.")):
        import_module(module)
