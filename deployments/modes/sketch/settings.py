"""Settings and request options of mode sketch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tandem.engine.config import PolicyChoice, Strict
from tandem.engine.sketch.base import Question
from tandem.policies.sketch.dispatch import JobQueue, job_queue
from tandem.policies.sketch.sketch_length import SketchPolicy, sketching
from tandem.policies.sketch.suitability import sketchable

SYSTEM_ROLES = ("system", "developer")
"""Roles whose messages hold for all of a conversation."""


def said(question: Question, *roles: str) -> list[str]:
    """Return the texts of a chat's messages by some roles."""
    texts = (message.get("content") for message in question.chat if message.get("role") in roles)
    return [text for text in texts if isinstance(text, str)]


class SketchingChoice(PolicyChoice[SketchPolicy]):
    """A sketching policy."""

    family = sketching


class QueueChoice(PolicyChoice[JobQueue]):
    """A job queue."""

    family = job_queue


class ExpandingModel(Strict):
    """A small model that expands sketches.

    capability: quality of its answers relative to the target's, 0 to 1.
    least_share: least sketch that it needs for that, as a share of the answer's length.
    """

    capability: float = Field(ge=0, le=1)
    least_share: float = Field(0.3, gt=0, lt=1)


def _family() -> dict[str, ExpandingModel]:
    """The embedded one, by the facts in what its models expand, as its model card has them."""
    capability = {"medium": 1.0, "small": 0.93, "other": 0.86, "tiny": 0.77}
    return {name: ExpandingModel(capability=share) for name, share in capability.items()}


class SketchSettings(Strict):
    """Sketches, and who expands them.

    questions: questions whose answers may be sketched: those whose text asks for independent points, or all, for a
        target that was trained for its questions.
    sketching: policy that decides whether an answer is sketched, and how long the sketch may be.
    queue: policy that orders waiting expansions.
    models: models that expand, by name, in order of preference.
    candidates: competing expansions of a sentence, while enough devices are idle.
    batch: most expansions that a device computes at once.
    sequences: most sequences that an expander's replica computes at once.
    parallelism: p, sentences that a device is assumed to expand in the time of one, until it is measured.
    within: greatest duration of an expansion with merged sentences, relative to the target's own answer; 1 is PICE's.
    wait_s: least timeout of an expansion's wait for a place, or the target's time for the answer if that is longer.
        After it the target finishes the answer.
    profiles: file on the router's machine that keeps the measured speeds of target and devices; null: a new router
        measures them anew.
    """

    questions: Literal["points", "all"] = "points"
    sketching: SketchingChoice = SketchingChoice(name="latency")
    queue: QueueChoice = QueueChoice(name="multi_list")
    models: dict[str, ExpandingModel] = Field(default_factory=_family)
    candidates: int = Field(1, ge=1, le=8)
    batch: int = Field(1, ge=1, le=64)
    sequences: int = Field(8, ge=1, le=1024)
    parallelism: float = Field(1.0, ge=1)
    within: float = Field(0.25, ge=0, le=1)
    wait_s: float = Field(10.0, gt=0)
    profiles: Path | None = None

    def suitable(self, question: Question) -> bool:
        """Whether its answer may be sketched, by its text and its conversation."""
        if self.questions == "all" or not question.text:
            return True
        return sketchable(
            question.text, said(question, "user")[:-1], "\n".join(said(question, *SYSTEM_ROLES))
        )


class SketchOptions(Strict):
    """Wishes of a request.

    min_quality: in mode sketch, least quality of what small models write, relative to the target's own answer.
    show_sketch: in mode sketch, whether to begin the answer with the sketch.
    """

    min_quality: float = Field(default=0.0, ge=0, le=1)
    show_sketch: bool = False
