"""Ensemble: which of several expansions of a sketch the user gets.

PICE (Zhan et al. 2025), section IV-C. The likelihood that a model gives its own text says more about the model than
about the text, so length and words count as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

from tandem.policies.sketch.rouge import rouge1


@dataclass(frozen=True, slots=True)
class ConfidenceWeights:
    """Weights of the parts of a confidence, which sum to 1. The paper does not give them.

    probability: α1.
    length: α2.
    """

    probability: float = 0.4
    length: float = 0.2

    def __post_init__(self) -> None:
        if min(self.probability, self.length) < 0 or self.probability + self.length > 1:
            raise ValueError(f"needs α1, α2 ≥ 0 and α1 + α2 ≤ 1, not {self.probability} and {self.length}")

    @property
    def closeness(self) -> float:
        """1 − α1 − α2, the weight of ROUGE-1."""
        return 1 - (self.probability + self.length)

    def without_probability(self) -> ConfidenceWeights:
        """Return the other two weights, scaled to sum to 1."""
        rest = 1 - self.probability
        return ConfidenceWeights(0.0, self.length / rest if rest else 0.5)


WEIGHTS = ConfidenceWeights()


class Candidate(NamedTuple):
    """An expansion; one model may give several.

    text: all of it.
    tokens: |y|, in its model's vocabulary.
    log_probability: Σ ln p(w_i) by its model; at most 0.
    """

    text: str
    tokens: int
    log_probability: float


def confidence(
    candidate: Candidate, sketch: str, expected: int, weights: ConfidenceWeights = WEIGHTS
) -> float:
    """Return PICE's equation (3), in [0, 1]: α1 · 2^{(1/N) Σ log2 p(w_i)} + α2 · Norm(|y|) + (1 − α1 − α2) ·
    ROUGE-1(r, y).

    The first part is the geometric mean of the tokens' probabilities, the inverse of the perplexity. The paper leaves
    Norm open; here it is min(1, |y|/l): more detail counts until the answer is as long as the LLM's would be. A
    candidate without tokens has confidence 0.

    expected: l, tokens that the LLM expected of the answer, at least 1.
    """
    if not candidate.tokens:
        return 0.0
    probability = exp(min(0.0, candidate.log_probability / candidate.tokens))
    length = min(1.0, candidate.tokens / expected)
    closeness = rouge1(candidate.text, sketch)
    weighed = weights.probability * probability + weights.length * length + weights.closeness * closeness
    return min(1.0, weighed)  # at most 1 but for rounding


def best(
    candidates: Sequence[Candidate], sketch: str, expected: int, weights: ConfidenceWeights = WEIGHTS
) -> int:
    """Return the index of the candidate with the highest confidence, the first among equals; needs at least one."""
    return max(range(len(candidates)), key=lambda i: confidence(candidates[i], sketch, expected, weights))
