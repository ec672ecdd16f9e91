"""Suitability of questions: the classifier beside human labels of questions that it was not fitted on.

    tandem benchmark pice_suitability

The labels are those of Skeleton-of-Thought (Ning et al. 2024, appendix C.2.1): 1 where the answer is a list of points
that can be expanded in parallel, each with enough to tell. The classifier (`policies/sketch/suitability.py`) was fitted
on our own questions, `tests/policies/sketch/questions.csv`, and on those of WizardLM; the wording that it looks for
follows the published meaning of the labels. Vicuna's and LIMA's are none of these; LIMA's come from forums, and their
labels say yes to much that others call one piece.

f1, precision, recall: of "can be sketched" on Vicuna's questions. f1_lima: on LIMA's, where they are at hand.
cost: what is lost a question, of Vicuna's, in losses by a wrong yes; cost_at_even_odds: if a yes needed even odds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA, NO_DATA
from tandem.policies.sketch.suitability import WRONG_NO, sketchable, trained
from tandem.policies.sketch.wording import read
from tandem.training.suitability import labelled

JUDGED = {"vicuna": "Vicuna", "lima": "LIMA"}
"""Sources of labels that the classifier was not fitted on, as they are shown."""


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
    def cost(self) -> float:
        """Loss a question, in losses by a wrong yes."""
        return (WRONG_NO * self.missed + self.misled) / max(1, sum(self))

    @property
    def f1(self) -> float:
        """The harmonic mean of both, in [0, 1]."""
        return 2 * self.sketched / max(1, 2 * self.sketched + self.missed + self.misled)


PUBLISHED = {
    "GPT-4, asked": Confusion(37, 0, 5, 38),
    "RoBERTa, trained on LIMA": Confusion(32, 5, 6, 37),
}
"""The routers of Skeleton-of-Thought on the same questions (its table 3)."""


def labels(source: str) -> Path:
    """Return Skeleton-of-Thought's file of labels of a source."""
    return DATA / "prompts" / f"sot_{source}_router.csv"


LABELLED = labels("vicuna")


def confusion(questions: Iterable[tuple[bool, str]], judge: Callable[[str], bool] = sketchable) -> Confusion:
    """Return a rule's confusion matrix on labelled questions."""
    found = Counter((label, judge(question)) for label, question in questions)
    return Confusion(found[True, True], found[True, False], found[False, True], found[False, False])


def should_sketch() -> Confusion:
    """The classifier on Skeleton-of-Thought's labels of Vicuna's questions."""
    return confusion(labelled(LABELLED))


def should_sketch_f1() -> float:
    """F1 of "can be sketched" there, in [0, 1]."""
    return should_sketch().f1


def by_wording(question: str) -> bool:
    """Return whether a question asks for points and nothing binds, the rule without the classifier."""
    asks, binds = read(question)
    return bool(asks) and not binds


def at_even_odds(question: str) -> bool:
    """Return the classifier's answer if both mistakes cost the same."""
    return sketchable(question) and trained().log_odds(question) > 0


def show() -> None:
    """Print the classifier beside the published routers, and on other sources as far as they are at hand."""
    rows: list[tuple[str, str, Confusion]] = []
    for source, name in JUDGED.items():
        if labels(source).exists():
            questions = labelled(labels(source))
            judges = {"classifier": sketchable, "at even odds": at_even_odds, "wording alone": by_wording}
            rows += [(name, told, confusion(questions, judge)) for told, judge in judges.items()]
    rows += [("Vicuna", told, one) for told, one in PUBLISHED.items()]
    report.table(
        "Can the answer be sketched? Human labels, of questions that it was not fitted on",
        (
            "questions of",
            "",
            "F1",
            "precision",
            "recall",
            "cost",
            "sketched rightly",
            "missed",
            "misled",
            "in full rightly",
        ),
        (
            (
                source,
                told,
                *(f"{x:.3f}" for x in (one.f1, one.precision, one.recall, one.cost)),
                *map(str, one),
            )
            for source, told, one in rows
        ),
    )


def figures() -> dict[str, float]:
    """Return the figures."""
    found, questions = should_sketch(), labelled(LABELLED)
    values = {
        "f1": found.f1,
        "precision": found.precision,
        "recall": found.recall,
        "cost": found.cost,
        "cost_at_even_odds": confusion(questions, at_even_odds).cost,
    }
    if labels("lima").exists():
        values["f1_lima"] = confusion(labelled(labels("lima"))).f1
    return {name: round(value, 4) for name, value in values.items()}


def main(arguments: Sequence[str] = ()) -> None:
    report.parser("pice_suitability", __doc__).parse_args(arguments)
    if not LABELLED.exists():
        raise SystemExit(NO_DATA)
    show()
    report.figures("pice_suitability", figures())


if __name__ == "__main__":
    main()
