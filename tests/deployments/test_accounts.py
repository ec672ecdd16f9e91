"""Accounts: what their owners settle, what survives a router, and who is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments import accounts as module
from deployments.accounts import Accounts, Terms
from deployments.experience import Experience
from policies.cost import Used
from policies.dispatch import Side

changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 1), st.none() | st.floats(0, 1e6)), max_size=9
)


def accounts() -> Accounts:
    return Experience().accounts


def test_a_change_leaves_the_rest_as_it_is() -> None:
    known = accounts()
    known.settle("a", 0.25, None)
    known.settle("a", None, 2e-7)
    assert known.settle("a", None, None).terms == Terms(0.25, 2e-7)
    assert {budget.share for budget in known.of("a").payer.budgets.values()} == {0.25}


@given(before=changes, after=changes)
def test_what_was_settled_survives_the_router(
    before: list[tuple[str, float | None, float | None]], after: list[tuple[str, float | None, float | None]]
) -> None:
    """The successor may have heard of later changes before it is told of the earlier ones."""
    first, expected = accounts(), dict[str, Terms]()
    for key, budget, rate in before:
        first.settle(key, budget, rate)
    expected.update(first.settled())
    second = accounts()
    for key, budget, rate in after:
        second.settle(key, budget, rate)
    expected.update(second.settled())
    second.restore(first.settled())
    assert second.settled() == expected


def test_only_what_was_settled_is_told() -> None:
    known = accounts()
    known.of("asked for")
    known.settle("settled", 0.1, None)
    assert set(known.settled()) == {"settled"}


def test_asking_opens_no_account() -> None:
    known = accounts()
    assert known.statement("nobody").terms == accounts().of("x").terms
    known.of("somebody").ledger.add(Used(1, 2, 3, 4), 0.5, 6.0, 0.25)
    statement = known.statement("somebody")
    assert (statement.ledger.requests, statement.ledger.joules) == (1, 6.0)
    assert statement.raced == {Side.DEVICE: (0, 0.0), Side.SERVER: (0, 0.0)}
    assert set(known._accounts) == {"somebody"}


def test_invented_keys_drive_no_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    known = accounts()
    known.settle("owner", 0.1, None)
    known.of("owner").ledger.add(Used(1, 0, 0, 0), 1.0, 0.0, 0.0)
    for n in range(100):
        known.of(f"invented {n}")
    assert known.of("owner").terms.budget == 0.1
    assert known.of("owner").ledger.requests == 1
    assert (len(known._settled), len(known._accounts)) == (1, 10)
