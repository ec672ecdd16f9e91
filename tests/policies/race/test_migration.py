"""Migration policies: DiSCo's equations by hand."""

from __future__ import annotations

import math

import pytest

from tandem.policies.cost import PerToken
from tandem.policies.race.migration import MigrationState, buffer_tokens, migration, saved_usd


def test_savings_less_overhead():
    dear, cheap = PerToken(1.0, 3.0), PerToken(0.5, 1.0)
    state = MigrationState(20, 6.0, dear, cheap, 1.0, 5.0, 0.0)
    assert saved_usd(state) == pytest.approx(2.0 * 6 - 0.5 * 20)
    assert saved_usd(MigrationState(40, 6.0, dear, cheap, 1.0, 5.0, 0.0)) < 0


def test_the_buffer_covers_the_way():
    assert buffer_tokens(5.0, 1.1) == 6
    assert buffer_tokens(0.0, 10.0) == 0  # nobody reads along
    buffered = migration.create("buffered", caution=2.0)
    dear, cheap = PerToken(0.0, 3.0), PerToken(0.0, 1.0)
    assert buffered.due(MigrationState(1, 100, dear, cheap, 1.0, 5.0, 10.0))
    assert not buffered.due(MigrationState(1, 100, dear, cheap, 1.0, 5.0, 9.0))


def test_where_nobody_knows_how_long_it_takes_no_reader_is_made_to_wait_for_it():
    assert buffer_tokens(5.0, math.inf) == math.inf
    assert buffer_tokens(0.0, math.inf) == 0
    dear, cheap = PerToken(0.0, 3.0), PerToken(0.0, 1.0)
    buffered = migration.create("buffered")
    assert not buffered.due(MigrationState(1, 100, dear, cheap, math.inf, 5.0, 1e6))
    assert buffered.due(MigrationState(1, 100, dear, cheap, math.inf, 0.0, 0.0)), "nobody reads along"


def test_a_prepared_one_counts_parts_of_a_token():
    prepared, buffered = migration.create("prepared"), migration.create("buffered")
    dear, cheap = PerToken(0.0, 3.0), PerToken(0.0, 1.0)
    assert (prepared.prepares, buffered.prepares) == (True, False)
    enough = MigrationState(1, 100, dear, cheap, 0.1, 5.0, 0.5)
    assert prepared.due(enough)
    assert not buffered.due(enough)
    assert not prepared.due(MigrationState(1, 100, dear, cheap, 0.1, 5.0, 0.49))
    assert not prepared.due(MigrationState(1, 100, cheap, dear, 0.1, 5.0, 9.0)), "it does not pay"


def test_caution_is_checked():
    with pytest.raises(ValueError, match="caution"):
        migration.create("buffered", caution=0.0)


def test_what_saves_nothing_is_not_wanted():
    """Three dollars a token in place of one, for 10 tokens, and 20 dollars for the prompt."""
    dear, cheap = PerToken(0.0, 3.0), PerToken(1.0, 1.0)
    for name in ("buffered", "prepared"):
        policy = migration.create(name)
        assert not policy.wanted(MigrationState(20, 10.0, dear, cheap, 0.0, 0.0, 0.0))
        assert policy.wanted(MigrationState(19, 10.0, dear, cheap, 0.0, 0.0, 0.0))


def test_times_are_taken_as_they_are_unless_caution_says_otherwise():
    dear, cheap = PerToken(0.0, 3.0), PerToken(0.0, 1.0)
    buffered = migration.create("buffered")
    assert buffered.due(MigrationState(1, 100, dear, cheap, 1.0, 5.0, 5.0))
    assert not buffered.due(MigrationState(1, 100, dear, cheap, 1.0, 5.0, 4.9))
