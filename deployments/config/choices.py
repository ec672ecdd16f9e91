"""Settings that choose a policy, one class per family."""

from __future__ import annotations

from tandem.engine.config import PolicyChoice
from tandem.policies.race.dispatch import DispatchPolicy, dispatch
from tandem.policies.race.migration import MigrationPolicy, migration
from tandem.policies.routing.collaboration import CollaborationPolicy, collaboration
from tandem.policies.routing.replica import RoutingPolicy, routing
from tandem.policies.sketch.dispatch import JobQueue, job_queue
from tandem.policies.sketch.sketch_length import SketchPolicy, sketching
from tandem.policies.speculation.window import WindowPolicy, window
from tandem.policies.split.chunking import ChunkingPolicy, chunking
from tandem.policies.split.drafting import DraftingPolicy, drafting
from tandem.policies.split.parallel_drafting import ParallelDraftingPolicy, parallel_drafting


class CollaborationChoice(PolicyChoice[CollaborationPolicy]):
    """A collaboration policy."""

    family = collaboration


class RoutingChoice(PolicyChoice[RoutingPolicy]):
    """A routing policy."""

    family = routing


class DispatchChoice(PolicyChoice[DispatchPolicy]):
    """A dispatch policy."""

    family = dispatch


class MigrationChoice(PolicyChoice[MigrationPolicy]):
    """A migration policy."""

    family = migration


class SketchingChoice(PolicyChoice[SketchPolicy]):
    """A sketching policy."""

    family = sketching


class QueueChoice(PolicyChoice[JobQueue]):
    """A job queue."""

    family = job_queue


class WindowChoice(PolicyChoice[WindowPolicy]):
    """A window policy."""

    family = window


class ChunkingChoice(PolicyChoice[ChunkingPolicy]):
    """A chunking policy."""

    family = chunking


class DraftingChoice(PolicyChoice[DraftingPolicy]):
    """A drafting policy."""

    family = drafting


class ParallelDraftingChoice(PolicyChoice[ParallelDraftingPolicy]):
    """A parallel drafting policy."""

    family = parallel_drafting
