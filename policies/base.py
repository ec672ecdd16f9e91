"""What all policies share: a registry per family, so that a new policy is one file and one entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar

P = TypeVar("P")


class UnknownPolicy(ValueError):
    """A name that no policy of the family carries."""


class Registry(Generic[P]):
    """The policies of one family by name; `create` builds one from a settings file's parameters.

    also: modules that register further ones, imported when the registry is first asked.
    """

    def __init__(self, family: str, also: tuple[str, ...] = ()) -> None:
        self.family = family
        self._also = also
        self._factories: dict[str, Callable[..., P]] = {}

    def register(self, name: str) -> Callable[[type[P]], type[P]]:
        """Class decorator: make the policy available under `name`."""

        def add(cls: type[P]) -> type[P]:
            if name in self._factories:
                raise ValueError(f"{self.family} policy {name!r} is registered twice")
            self._factories[name] = cls
            return cls

        return add

    def create(self, name: str, **parameters: object) -> P:
        """Build the policy called `name`; raises UnknownPolicy naming what there is."""
        self._complete()
        if name not in self._factories:
            raise UnknownPolicy(
                f"no {self.family} policy {name!r}; there are: {', '.join(sorted(self._factories))}"
            )
        return self._factories[name](**parameters)

    def __reduce__(self) -> tuple[Callable[[str], Registry[P]], tuple[str]]:
        """Another process has its own: a family lies in the module of its name, under that name."""
        return _family, (self.family,)

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return iter(sorted(self._factories))

    def _complete(self) -> None:
        modules, self._also = self._also, ()
        for module in modules:
            import_module(module)


def _family(name: str) -> Registry[Any]:
    found: Registry[Any] = getattr(import_module(f"policies.{name}"), name)
    return found
