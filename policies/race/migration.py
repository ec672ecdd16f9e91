"""Migration: when the endpoint that won the race hands the answer over to the cheaper one.

DiSCo (Sun et al. 2025), section 4.3. The source goes on until the reader has B tokens before them, then stops;
the target goes on from exactly there, and the reader notices nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tandem.policies.base import Registry
from tandem.policies.cost import PerToken


@dataclass(frozen=True, slots=True)
class MigrationState:
    """What is known when an answer might move on.

    known: tokens that the target would have to take in: prompt and answer so far, but for what it still holds.
    remaining: tokens that the answer probably still gets.
    source: dollars a token where the answer comes from.
    target: dollars a token where it might go on.
    migration_s: t_m, seconds until the target's first token: transfer, queue and prefill; infinite where it is unknown.
    reader_rate: r_c, tokens/s; 0: nobody reads along.
    ahead: tokens that the reader has before them.
    """

    known: int
    remaining: float
    source: PerToken
    target: PerToken
    migration_s: float
    reader_rate: float
    ahead: float


def saved_usd(state: MigrationState) -> float:
    """DiSCo's equation (4): Δc_decode · l_remaining − overhead, which is the target's prefill; dollars.

    What it costs to transfer the token ids is not counted.
    """
    overhead = state.target.prefill * state.known
    return (state.source.decode - state.target.decode) * state.remaining - overhead


def buffer_tokens(reader_rate: float, migration_s: float) -> float:
    """DiSCo's equation (6): B = r_c · t_m, rounded up to whole tokens.

    Where t_m is infinite, so is B for whoever reads along: no buffer is known to be enough.
    """
    tokens = reader_rate * migration_s if reader_rate else 0.0
    return math.ceil(tokens) if tokens < math.inf else tokens


class MigrationPolicy(Protocol):
    def wanted(self, state: MigrationState) -> bool:
        """Whether it pays that the answer ends at the other endpoint; only if that decodes more cheaply."""
        ...

    def due(self, state: MigrationState) -> bool:
        """Whether it should go there now; only if it is wanted there."""
        ...


migration: Registry[MigrationPolicy] = Registry("migration")


@migration.register("never")
class NeverMigrate:
    """Whoever gives the first token gives all."""

    def wanted(self, state: MigrationState) -> bool:
        return False

    def due(self, state: MigrationState) -> bool:
        return False


@migration.register("buffered")
class MigrateBuffered:
    """DiSCo's own: where it pays, as soon as the reader's buffer covers the time that it takes.

    caution: factor on the estimate of t_m. Below 1 answers move sooner and cost less, but readers may have to wait.
    """

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
