"""The settings of mode race."""

from __future__ import annotations

from tandem.engine.config import PolicyChoice, Strict
from tandem.policies.race.dispatch import DispatchPolicy, dispatch
from tandem.policies.race.migration import MigrationPolicy, migration


class DispatchChoice(PolicyChoice[DispatchPolicy]):
    """A dispatch policy."""

    family = dispatch


class MigrationChoice(PolicyChoice[MigrationPolicy]):
    """A migration policy."""

    family = migration


class RaceSettings(Strict):
    """Races between a server and a device.

    dispatch: policy that decides when each endpoint starts.
    migration: policy that decides when an answer moves to the other endpoint.
    """

    dispatch: DispatchChoice = DispatchChoice(name="disco")
    migration: MigrationChoice = MigrationChoice(name="prepared")
