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

    dispatch: who starts when.
    migration: who goes on.
    """

    dispatch: DispatchChoice = DispatchChoice(name="disco")
    migration: MigrationChoice = MigrationChoice(name="buffered")
