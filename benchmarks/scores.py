"""Scores of answers about the embedded family's world; no model judges another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.policies.sketch.rouge import rouge1
from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.scoring import check_facts


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores by question.

    stated: facts that the answer states.
    asked: facts that were asked for.
    rouge: ROUGE-1 against the reference.
    """

    stated: np.ndarray
    asked: np.ndarray
    rouge: np.ndarray

    @classmethod
    def of(cls, items: Sequence[Item], texts: Sequence[str]) -> Scores:
        checks = [check_facts(item, text) for item, text in zip(items, texts, strict=True)]
        rouge = [rouge1(text, item.answer) for item, text in zip(items, texts, strict=True)]
        return cls(np.array([sum(c) for c in checks]), np.array([len(c) for c in checks]), np.array(rouge))

    def resampled(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Each metric over the questions of each row of `chosen`."""
        return {
            "facts": self.stated[chosen].sum(1) / self.asked[chosen].sum(1),
            "ROUGE-1": self.rouge[chosen].mean(1),
        }
