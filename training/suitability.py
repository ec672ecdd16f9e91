"""Fit the classifier of questions whose answers can be sketched:

    python -m tandem.training.suitability LABELS [--l2 3] [--features 200]

LABELS is Skeleton-of-Thought's file of WizardLM's questions, which `tandem benchmark data --fetch` has as
`prompts/sot_wizardlm_router.csv`; our own (`tests/policies/sketch/questions.csv`) are the other source. Its labels of
Vicuna's and LIMA's questions are left for `tandem benchmark pice_suitability`. Writes
`policies/sketch/suitability.json`; the same options give the same file.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandem.policies.sketch.suitability import WEIGHTS, Classifier, features

OURS = Path(__file__).resolve().parents[1] / "tests" / "policies" / "sketch" / "questions.csv"
LEAST_SEEN = 4
"""Questions in which a feature must occur to be kept."""
ITERATIONS = 400
RATE = 0.05


class Labelled(NamedTuple):
    """A question, and whether its answer can be sketched."""

    sketchable: bool
    text: str


def labelled(file: Path) -> list[Labelled]:
    """Return the questions of a file like ours, or of one of Skeleton-of-Thought's."""
    with file.open(newline="") as lines:
        ours = lines.readline().startswith("sketchable,")
        lines.seek(0)
        rows = csv.DictReader(lines, delimiter="," if ours else ";")
        label, text = ("sketchable", "question") if ours else ("label", "request")
        return [Labelled(row[label] == "1", row[text]) for row in rows]


def fit(questions: Sequence[Labelled], l2: float, most: int) -> Classifier:
    """Return a logistic regression with squared weights penalised, then fitted again on the `most` strongest."""
    seen = [features(each.text) for each in questions]
    counts = Counter(name for each in seen for name in each)
    names = sorted(name for name, count in counts.items() if count >= LEAST_SEEN)
    wanted = np.array([each.sketchable for each in questions], float)
    bias, weights = _fitted(_matrix(seen, names), wanted, l2)
    strongest = np.sort(np.argsort(-np.abs(weights), kind="stable")[:most])
    names = [names[i] for i in strongest]
    bias, weights = _fitted(_matrix(seen, names), wanted, l2)
    return Classifier(
        round(bias, 3), {name: round(float(w), 3) for name, w in zip(names, weights, strict=True)}
    )


def _matrix(seen: Sequence[set[str]], names: Sequence[str]) -> np.ndarray:
    column = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(seen), len(names)))
    for row, each in enumerate(seen):
        matrix[row, [column[name] for name in each if name in column]] = 1
    return matrix


def _fitted(matrix: np.ndarray, wanted: np.ndarray, l2: float) -> tuple[float, np.ndarray]:
    """Return bias and weights after Adam's steps over all rows at once."""
    x = np.hstack([matrix, np.ones((len(matrix), 1))])
    penalty = np.full(x.shape[1], l2)
    penalty[-1] = 0.0
    theta, mean, square = (np.zeros(x.shape[1]) for _ in range(3))
    for step in range(1, ITERATIONS + 1):
        gradient = x.T @ (1 / (1 + np.exp(-x @ theta)) - wanted) + penalty * theta
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        theta -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return float(theta[-1]), theta[:-1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=Path, help="Skeleton-of-Thought's file of WizardLM's questions")
    parser.add_argument("--l2", type=float, default=3.0, help="penalty of squared weights")
    parser.add_argument("--features", type=int, default=200, help="most features that are kept")
    options = parser.parse_args(arguments)
    try:
        questions = [*labelled(OURS), *labelled(options.labels)]
    except OSError as error:
        raise SystemExit(str(error)) from None
    found = fit(questions, options.l2, options.features)
    WEIGHTS.write_text(json.dumps({"bias": found.bias, "weights": found.weights}, indent=0) + "\n")
    print(f"{WEIGHTS}: {len(found.weights)} features of {len(questions)} questions")


if __name__ == "__main__":
    main()
