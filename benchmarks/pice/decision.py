"""Sketch decision: PICE's beside human labels of 80 questions.

The labels are those of Skeleton-of-Thought (Ning et al. 2024, appendix C.2.1) for the Vicuna benchmark: 1 where the
answer is a list of points that can be expanded in parallel, each with enough to tell. The rule
(`policies/sketch/suitability.py`) follows the published meaning of the labels and was tuned on questions of our own,
`tests/policies/sketch/questions.csv`. It was evaluated here once, the file unopened until then, and has not been
changed since. The questions are short and plain: Skeleton-of-Thought's labels for WizardLM and LIMA, which are not
among our data, it meets much less well.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA
from tandem.policies.sketch.suitability import sketchable

LABELLED = DATA / "prompts" / "sot_vicuna_router.csv"


class Confusion(NamedTuple):
    """Decisions beside labels, counts.

    sketched: rightly; missed: could have been.
    misled: sketched, and should not have been; full: rightly answered in full.
    """

    sketched: int
    missed: int
    misled: int
    full: int

    @property
    def precision(self) -> float:
        """Share of the sketched that can be, in [0, 1]; 0 if none was sketched."""
        return self.sketched / max(1, self.sketched + self.misled)

    @property
    def recall(self) -> float:
        """Share of those that can be sketched that are, in [0, 1]; 0 if none can be."""
        return self.sketched / max(1, self.sketched + self.missed)

    @property
    def f1(self) -> float:
        """The harmonic mean of both, in [0, 1]."""
        return 2 * self.sketched / max(1, 2 * self.sketched + self.missed + self.misled)


PUBLISHED = {
    "GPT-4, asked": Confusion(37, 0, 5, 38),
    "RoBERTa, trained on LIMA": Confusion(32, 5, 6, 37),
}
"""The routers of Skeleton-of-Thought on the same questions (its table 3)."""


def labelled() -> list[tuple[bool, str]]:
    """Whether the answer can be sketched, and the question; FileNotFoundError where the data is not at hand."""
    with LABELLED.open(newline="") as rows:
        return [(row["label"] == "1", row["request"]) for row in csv.DictReader(rows, delimiter=";")]


def confusion(questions: Iterable[tuple[bool, str]]) -> Confusion:
    """Return the rule's confusion matrix on labelled questions."""
    found = Counter((label, sketchable(question)) for label, question in questions)
    return Confusion(found[True, True], found[True, False], found[False, True], found[False, False])


def should_sketch() -> Confusion:
    """The rule on Skeleton-of-Thought's questions."""
    return confusion(labelled())


def should_sketch_f1() -> float:
    """F1 of "can be sketched" there, in [0, 1]."""
    return should_sketch().f1


def show() -> None:
    """Print the rule beside the published routers."""
    report.table(
        "Can the answer be sketched? 80 questions with human labels",
        ("", "F1", "precision", "recall", "sketched rightly", "missed", "misled", "in full rightly"),
        (
            (name, f"{one.f1:.3f}", f"{one.precision:.3f}", f"{one.recall:.3f}", *map(str, one))
            for name, one in ({"this rule": should_sketch()} | PUBLISHED).items()
        ),
    )
