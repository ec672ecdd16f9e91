"""Migration: when the endpoint that won the race hands the answer over to the cheaper one.

DiSCo (Sun et al. 2025), section 4.3. The source goes on until the reader has B tokens before them, then stops;
the target goes on from exactly there, and the reader notices nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from policies.base import Registry
from policies.cost import PerToken


@dataclass(frozen=True, slots=True)
class MigrationState:
    """known: tokens that the target would have to take in, prompt and answer so far; remaining: tokens that
    the answer probably still gets. source, target: dollars a token.

    migration_s: t_m, how long the target would take to its first token: transfer, queue and prefill.
    reader_rate: r_c, tokens/s; 0: nobody reads along. ahead: tokens that the reader has before them.
    """

    known: int
    remaining: float
    source: PerToken
    target: PerToken
    migration_s: float
    reader_rate: float
    ahead: float


def saved_usd(state: MigrationState) -> float:
    """Equation (4): Δc_decode · l_remaining − overhead, the target's prefill; dollars.

    The transfer, of token ids, is not counted.
    """
    overhead = state.target.prefill * state.known
    return (state.source.decode - state.target.decode) * state.remaining - overhead


def buffer_tokens(reader_rate: float, migration_s: float) -> int:
    """Equation (6): B = r_c · t_m, whole tokens."""
    return math.ceil(reader_rate * migration_s)


class MigrationPolicy(Protocol):
    def wanted(self, state: MigrationState) -> bool:
        """Whether the answer should end at the other endpoint."""
        ...

    def due(self, state: MigrationState) -> bool:
        """Whether it should go there now."""
        ...


migration: Registry[MigrationPolicy] = Registry("migration")


@migration.register("never")
class Never:
    """Whoever gave the first token gives all."""

    def wanted(self, state: MigrationState) -> bool:
        return False

    def due(self, state: MigrationState) -> bool:
        return False


@migration.register("buffered")
class Buffered:
    """The paper's: where it pays, as soon as the buffer covers it.

    caution: what the estimate of t_m is multiplied by before it counts.
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
