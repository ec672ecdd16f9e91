"""Migration policies: the contract over all, and the paper's equations by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import PerToken
from policies.migration import MigrationState, buffer_tokens, migration, saved_usd

costs = st.floats(0, 1e-3)
per_token = st.builds(PerToken, costs, costs)
states = st.builds(
    MigrationState,
    known=st.integers(1, 10_000),
    remaining=st.floats(0, 10_000),
    source=per_token,
    target=per_token,
    migration_s=st.floats(0, 20),
    reader_rate=st.floats(0, 100),
    ahead=st.floats(-100, 1000),
)


@pytest.mark.parametrize("name", list(migration))
@given(states)
def test_nothing_is_due_that_is_not_wanted_and_nothing_wanted_that_costs(name, state):
    policy = migration.create(name)
    assert policy.wanted(state) or not policy.due(state)
    if policy.wanted(state):
        assert saved_usd(state) > 0
    if policy.due(state):
        assert state.ahead >= buffer_tokens(state.reader_rate, state.migration_s)


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


def test_caution_is_checked():
    with pytest.raises(ValueError, match="caution"):
        migration.create("buffered", caution=0.0)
