"""Race (DiSCo): which endpoint starts when, when generation migrates, and what that may cost.

A policy of `dispatch` chooses a Start for a DispatchState, one of `migration` decides on a MigrationState.
"""

from tandem.policies.estimators.windows import Latencies, Lengths
from tandem.policies.race.dispatch import DispatchState, Side, Start
from tandem.policies.race.migration import MigrationState

__all__ = ["DispatchState", "Latencies", "Lengths", "MigrationState", "Side", "Start"]
