"""Sketch first, expand in parallel: PICE (Zhan et al. 2025).

The LLM writes a sketch, short sentences that are complete in content, and small models on devices expand them in
parallel. `sketching` decides whether and how long, a `job_queue` which job is next, `ModelSelection` with which of a
device's models, `merge` and `reading_order` how its sentences share the device, `best` which expansion the user gets.
"""

from tandem.policies.sketch.confidence import Candidate, ConfidenceWeights, best, confidence
from tandem.policies.sketch.dispatch import JobQueue, SketchJob, job_queue
from tandem.policies.sketch.merging import Groups, merge, merge_for_reader
from tandem.policies.sketch.objectives import Metric, Objective, Outlook, preferred, ranked
from tandem.policies.sketch.order import Schedule, list_schedule, reading_order, token_times, wait_s
from tandem.policies.sketch.rouge import rouge1
from tandem.policies.sketch.selection import ModelSelection
from tandem.policies.sketch.sketch_length import (
    Coming,
    Reason,
    SketchDecision,
    SketchPolicy,
    SketchState,
    SmallModel,
    sketching,
)
from tandem.policies.sketch.suitability import sketchable

__all__ = [
    "Candidate",
    "Coming",
    "ConfidenceWeights",
    "Groups",
    "JobQueue",
    "Metric",
    "ModelSelection",
    "Objective",
    "Outlook",
    "Reason",
    "Schedule",
    "SketchDecision",
    "SketchJob",
    "SketchPolicy",
    "SketchState",
    "SmallModel",
    "best",
    "confidence",
    "job_queue",
    "list_schedule",
    "merge",
    "merge_for_reader",
    "preferred",
    "ranked",
    "reading_order",
    "rouge1",
    "sketchable",
    "sketching",
    "token_times",
    "wait_s",
]
