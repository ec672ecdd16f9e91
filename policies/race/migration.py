"""Migration: when the winner of a race hands the answer over to the cheaper endpoint.

DiSCo (Sun et al. 2025), section 4.3. The source goes on until the reader's buffer holds B tokens, then stops; the
target goes on from exactly there, so that the reader notices nothing. B covers what the target then takes in: prompt
and answer so far, or that answer alone where the target has prepared by taking in the prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tandem.policies.base import Registry
from tandem.policies.cost import PerToken


@dataclass(frozen=True, slots=True)
class MigrationState:
    """State of an answer that might migrate.

    known: tokens that the target would have to prefill: prompt and answer so far, less what it still holds.
    remaining: expected further tokens of the answer.
    source: costs of the current endpoint, dollars per token.
    target: costs of the other endpoint, dollars per token.
    migration_s: t_m, seconds until the target's first token: transfer, queue and prefill; infinite if unknown.
    reader_rate: r_c, tokens/s; 0 without a reader.
    ahead: unread tokens in the reader's buffer.
    """

    known: int
    remaining: float
    source: PerToken
    target: PerToken
    migration_s: float
    reader_rate: float
    ahead: float


def saved_usd(state: MigrationState) -> float:
    """Return DiSCo's equation (4): Δc_decode · l_remaining − overhead, which is the target's prefill; dollars.

    The cost of transferring token ids is not counted.
    """
    overhead = state.target.prefill * state.known
    return (state.source.decode - state.target.decode) * state.remaining - overhead


def buffer_tokens(reader_rate: float, migration_s: float) -> float:
    """Return DiSCo's equation (6): B = r_c · t_m, rounded up to whole tokens; infinite for a reader if t_m is."""
    tokens = reader_rate * migration_s if reader_rate else 0.0
    return math.ceil(tokens) if tokens < math.inf else tokens


class MigrationPolicy(Protocol):
    """Decides when the answer moves to the other endpoint."""

    @property
    def prepares(self) -> bool:
        """Whether that one takes in the prompt first, while the source gives no more than the reader needs."""
        ...

    def wanted(self, state: MigrationState) -> bool:
        """Return whether a migration pays, which it can only if the other endpoint decodes more cheaply."""
        ...

    def due(self, state: MigrationState) -> bool:
        """Return whether to migrate now, which implies that it is wanted."""
        ...


migration: Registry[MigrationPolicy] = Registry("migration")


@migration.register("never")
class NeverMigrate:
    """Leaves the answer with the winner of the race."""

    prepares = False

    def wanted(self, state: MigrationState) -> bool:
        return False

    def due(self, state: MigrationState) -> bool:
        return False


@migration.register("buffered")
class MigrateBuffered:
    """DiSCo's policy: migrates, if it pays, as soon as the reader's buffer covers the migration time.

    caution: factor on the estimate of t_m. Below 1 answers migrate sooner and cost less, but readers may have to wait.
    """

    prepares = False

    def __init__(self, caution: float = 1.0) -> None:
        if not caution > 0:
            raise ValueError(f"caution must be above 0, not {caution}")
        self._caution = caution

    def wanted(self, state: MigrationState) -> bool:
        return saved_usd(state) > 0.0

    def due(self, state: MigrationState) -> bool:
        return self.wanted(state) and state.ahead >= buffer_tokens(
            state.reader_rate, self._caution * state.migration_s
        )


@migration.register("prepared")
class MigratePrepared:
    """Migrates, if it pays, once the target has the prompt: the reader's buffer covers only what it still takes in.

    Reading is continuous, so that a part of a token counts.
    """

    prepares = True

    def wanted(self, state: MigrationState) -> bool:
        return saved_usd(state) > 0.0

    def due(self, state: MigrationState) -> bool:
        needed = state.reader_rate * state.migration_s if state.reader_rate else 0.0
        return self.wanted(state) and state.ahead >= needed < math.inf
