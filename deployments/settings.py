"""What all settings share: no unknown keys, no changes after the fact, and policies by name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from policies.base import Registry


class Strict(BaseModel):
    """Settings that name what they do not know instead of ignoring it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyChoice(Strict):
    """A policy by its registered name, with its parameters."""

    name: str
    parameters: dict[str, Any] = {}

    def create(self, registry: Registry[Any]) -> Any:
        """Build it; raises ValueError naming the policies there are, or the parameter that is wrong."""
        try:
            return registry.create(self.name, **self.parameters)
        except TypeError as error:
            raise ValueError(f"{registry.family} policy {self.name!r}: {error}") from None
