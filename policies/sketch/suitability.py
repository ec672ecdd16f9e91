"""Suitability: whether an answer can be sketched and expanded in parallel, by the conversation alone.

A feature that binds the answer together, in the question, in the system prompt, or in the turns that the question
refers back to, rules a sketch out. For the rest a logistic regression weighs features and words of the question
(`python -m tandem.training.suitability` fits it). A wrong yes costs a few tokens, the question for a length, or an
answer that reads worse; a wrong no loses what the expansion would have saved, some times as much: less than even odds
suffice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from tandem.policies.sketch.wording import LOOKED_AT, read

WEIGHTS = Path(__file__).with_name("suitability.json")
WRONG_NO = 5.0
"""Loss by a wrong no, in losses by a wrong yes."""
KNOWN = 0.2
"""Least share of a question's words that must be known where no way of asking is."""
REMEMBERED = 4
"""Turns before the question that are looked at."""
STANDING = frozenset({"brevity", "layout", "voice"})
"""Features that bind all answers of a conversation where its system prompt has them."""
_WORD = re.compile(r"[^\W\d]+(?:'[^\W\d]+)?|\d+|[^\w\s]")
_REFERS = re.compile(
    r"^(?:also|and|but|continue|elaborate|go on|how about|instead|make|now|ok(?:ay)?|so|what about|what if|why)\b"
    r"|\b(?:above|again|before|earlier|it|its|previous|that|them|these|they|this|those|your)\b"
    r"|\b(?:add|give|more|further|provide)\s+(?:\w+\s+){0,2}details?\b|\bday \d"
    r"|\bthe\s+(?:first|former|last|latter|other|same|second|third)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Classifier:
    """A logistic regression over binary features of a question.

    bias: logarithm of the odds without any feature.
    weights: what each feature adds, by name.
    """

    bias: float
    weights: dict[str, float]

    def understands(self, question: str) -> bool:
        """Return whether enough of a question is known to judge it: a way of asking, or some words."""
        names = features(question)
        words = [name for name in names if name.startswith("word ") and name[5].isalpha()]
        known = sum(name in self.weights for name in words)
        return any(name.startswith("asks ") for name in names) or known >= max(2, KNOWN * len(words))

    def log_odds(self, question: str) -> float:
        """Return the logarithm of the odds that the answer can be sketched."""
        return self.bias + sum(self.weights.get(name, 0.0) for name in features(question))


def features(question: str) -> set[str]:
    """Return the names of a question's features: those of its wording, its words, pairs of them, and its length."""
    text = question.strip()[:LOOKED_AT].lower()
    words = ["#" if word.isdigit() else word for word in _WORD.findall(text)]
    asks, binds = read(question)
    return {
        *(f"asks {one.name}" for one in asks),
        *(f"binds {one.name}" for one in binds),
        f"ways of asking {min(3, len(asks))}",
        *(f"word {word}" for word in words),
        *(f"pair {a} {b}" for a, b in pairwise(words)),
        f"first {' '.join(words[:1])}",
        f"first two {' '.join(words[:2])}",
        f"length {int(math.log2(len(words) + 1))}",
    }


@cache
def trained() -> Classifier:
    """Return the classifier that comes with this."""
    found = json.loads(WEIGHTS.read_text())
    return Classifier(found["bias"], found["weights"])


def sketchable(question: str, earlier: Sequence[str] = (), system: str = "") -> bool:
    """Return whether the answer can be sketched. earlier: the user's turns before it; system: the system prompt."""
    if any(_binding(question, earlier, system)) or not trained().understands(question):
        return False
    return trained().log_odds(question) > -math.log(WRONG_NO)


def _binding(question: str, earlier: Sequence[str], system: str) -> Iterator[str]:
    """Yield the names of features that bind the answer."""
    yield from (one.name for one in read(question).binds)
    yield from STANDING & {one.name for one in read(system).binds}
    if earlier and _REFERS.search(question):
        for turn in earlier[-REMEMBERED:]:
            yield from (one.name for one in read(turn).binds)
