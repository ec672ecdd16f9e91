"""ROUGE-1 (Lin 2004): overlap of two texts in words."""

from __future__ import annotations

import re
from collections import Counter

WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Return the runs of letters and digits, in lower case."""
    return WORD.findall(text.lower())


def rouge1(text: str, reference: str) -> float:
    """Return F1 of the words in common with the reference, 0..1; a word counts as often as it stands in both."""
    ours, theirs = Counter(words(text)), Counter(words(reference))
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else 0.0
