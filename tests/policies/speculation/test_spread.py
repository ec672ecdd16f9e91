"""Spread of acceptance: how much the average counts beside a pair's own recent rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tandem.policies.speculation.history import PairHistory, TargetHistory
from tandem.policies.speculation.spread import FIRST_WEIGHT, LEAST, MOST, Spread
from tandem.policies.speculation.window import StaticWindow

ROUNDS = 800


def _weight(alphas: Sequence[float], pairs: int) -> float:
    """Return how much the average counts after rounds of answers with these acceptances, of so many pairs in turn."""
    random, target = np.random.default_rng(5), TargetHistory()
    histories = [PairHistory(StaticWindow(4), target=target) for _ in range(pairs)]
    for at in range(ROUNDS):
        alpha = alphas[at % len(alphas)]
        accepted = next((n for n in range(4) if random.random() >= alpha), 4)
        histories[at % pairs].note(4, accepted, accepted + 1, 0.1, 0.02)
    return histories[0].state().prior_weight


def test_until_rounds_show_more_the_average_counts_as_few_tokens() -> None:
    assert Spread().weight(0.7) == FIRST_WEIGHT
    assert PairHistory(StaticWindow(4)).state().prior_weight == FIRST_WEIGHT


def test_where_drafts_are_alike_the_average_counts() -> None:
    assert _weight([0.7], pairs=4) > 100


def test_where_pairs_differ_their_own_rounds_count() -> None:
    """Half of the pairs have 0.9, half 0.4: the variance is 0.25²."""
    assert _weight([0.9, 0.4], pairs=4) < 8


def test_where_answers_share_a_pair_the_average_counts() -> None:
    """A round and those before it are of different answers."""
    assert _weight([0.9, 0.4, 0.4, 0.9, 0.4, 0.9, 0.9, 0.4], pairs=1) > 50


def test_weights_are_bounded_and_remembered() -> None:
    spread, other = Spread(), Spread()
    for accepted in (0, 3) * 1000:
        spread.note(accepted, 3, (72 - accepted * 24, 72), 0.5)
    assert spread.weight(0.5) == MOST
    other.state = spread.state
    assert other.weight(0.5) == spread.weight(0.5)
    for _ in range(4000):
        spread.note(3, 3, (72, 72), 0.5)
    assert spread.weight(0.5) == LEAST
    assert spread.weight(0.0) == spread.weight(1.0) == FIRST_WEIGHT
    before = spread.state
    spread.note(3, 3, (0, 0), 0.5)
    assert spread.state == before


def test_another_process_knows_the_spread() -> None:
    target, other = TargetHistory(), TargetHistory()
    pair = PairHistory(StaticWindow(4), target=target)
    for accepted in (4, 4, 0, 0) * 40:
        pair.note(4, accepted, accepted + 1, 0.1, 0.02)
    other.adopt(target.snapshot())
    assert other.prior_weight == pytest.approx(target.prior_weight)
    assert other.new_pair(0.01).prior_weight == target.prior_weight != FIRST_WEIGHT


def test_one_round_by_hand() -> None:
    """3 of 4, after 3 of 5, where half are accepted on average."""
    spread = Spread()
    spread.note(3, 4, (3, 5), 0.5)
    assert spread.state == (20.0, (3 - 2) * (3 - 2.5))
    assert spread.weight(0.5) == pytest.approx(0.25 * (4000 + 20) / (4000 * 0.25 / 12 + 0.5))


def test_the_average_counts_as_four_tokens_at_least() -> None:
    spread = Spread()
    spread.state = (1e6, 1e6)
    assert spread.weight(0.5) == 4.0
    spread.state = (1e6, -1e6)
    assert spread.weight(0.5) == 1000.0
