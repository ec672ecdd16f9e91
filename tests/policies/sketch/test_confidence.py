"""Confidence: PICE's equation (3), between 0 and 1, and higher with each of its parts."""

from __future__ import annotations

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.sketch.confidence import Candidate, ConfidenceWeights, best, confidence
from tandem.policies.sketch.rouge import rouge1

SKETCH = "plants take in light; make sugar"

texts = st.lists(st.sampled_from([*SKETCH.split(), "so", "and"]), max_size=12).map(" ".join)
candidates = st.builds(
    Candidate, texts, st.integers(0, 2000), st.floats(-1e4, 0) | st.sampled_from([-inf, 0.0])
)
weights_ = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(
    lambda w: ConfidenceWeights(w[0], w[1] * (1 - w[0]) * 0.999)
)
lengths = st.integers(1, 1000)


def test_the_equation_by_hand() -> None:
    """Probabilities of ½ and ⅛: 2^{(−1 − 3)/2} = ¼. Two tokens of eight. F1 of 2 common words of 4 and 4."""
    candidate = Candidate("light and sugar come", 2, log(1 / 2) + log(1 / 8))
    value = confidence(candidate, "light makes sugar sweet", 8, ConfidenceWeights(0.5, 0.2))
    assert value == pytest.approx(0.5 / 4 + 0.2 * 2 / 8 + 0.3 * 0.5)


@given(candidates, texts, lengths, weights_)
def test_between_0_and_1(
    candidate: Candidate, sketch: str, expected: int, weights: ConfidenceWeights
) -> None:
    assert 0 <= confidence(candidate, sketch, expected, weights) <= 1


@given(candidates, st.floats(0, 100), st.integers(0, 500), texts, lengths, weights_)
def test_monotone_in_its_parts(
    candidate: Candidate, more: float, longer: int, other: str, expected: int, weights: ConfidenceWeights
) -> None:
    value = confidence(candidate, SKETCH, expected, weights)
    likelier = candidate._replace(log_probability=min(0.0, candidate.log_probability + more))
    assert confidence(likelier, SKETCH, expected, weights) >= value
    if candidate.tokens:  # each of the further tokens as likely as those before
        mean = candidate.log_probability / candidate.tokens
        tokens = candidate.tokens + longer
        detailed = candidate._replace(tokens=tokens, log_probability=mean * tokens)
        assert confidence(detailed, SKETCH, expected, weights) >= value - 1e-9
    rewritten = candidate._replace(text=other)
    if rouge1(other, SKETCH) >= rouge1(candidate.text, SKETCH):
        assert confidence(rewritten, SKETCH, expected, weights) >= value


def test_each_part_alone() -> None:
    sure, long, close = Candidate("no", 2, 0.0), Candidate("no", 90, -900.0), Candidate(SKETCH, 2, -20.0)
    three = [sure, long, close]
    for weights, winner in (
        (ConfidenceWeights(1, 0), 0),
        (ConfidenceWeights(0, 1), 1),
        (ConfidenceWeights(0, 0), 2),
    ):
        assert best(three, SKETCH, 100, weights) == winner
        assert confidence(three[winner], SKETCH, 90, weights) == 1.0


def test_more_than_was_expected_counts_no_more() -> None:
    a, b = Candidate("x", 100, -10.0), Candidate("x", 400, -40.0)
    assert confidence(a, SKETCH, 100) == confidence(b, SKETCH, 100)
    assert confidence(a, SKETCH, 400) < confidence(b, SKETCH, 400)


def test_ties_go_to_the_first_and_nothing_has_no_confidence() -> None:
    empty, good = Candidate(SKETCH, 0, 0.0), Candidate(SKETCH, 9, -1.0)
    assert confidence(empty, SKETCH, 10) == 0.0
    assert best([empty, good, good], SKETCH, 10) == 1


@pytest.mark.parametrize("weights", [(-0.1, 0.5), (0.5, -0.1), (0.6, 0.5)])
def test_weights_are_shares(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="needs α1"):
        ConfidenceWeights(*weights)
    assert ConfidenceWeights(0.9, 0.1).closeness == 0.0


def test_where_probabilities_are_not_known_the_other_weights_keep_their_proportion() -> None:
    assert ConfidenceWeights() == ConfidenceWeights(0.4, 0.2)
    assert ConfidenceWeights().closeness == pytest.approx(0.4)
    without = ConfidenceWeights(0.4, 0.15).without_probability()
    assert (without.probability, without.length, without.closeness) == (0.0, 0.25, 0.75)
    assert ConfidenceWeights(1.0, 0.0).without_probability() == ConfidenceWeights(0.0, 0.5)
