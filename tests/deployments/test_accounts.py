"""Accounts: what their owners settle, and how replicas of the API come to know the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.accounts import Accounts, Statement, Terms
from deployments.racing import Racing, RacingSettings

changes = st.lists(
    st.tuples(st.none() | st.floats(0, 1), st.none() | st.floats(0, 1e6), st.integers(1, 9)), max_size=6
)


def accounts() -> Accounts:
    return Racing(RacingSettings()).accounts


def test_a_change_leaves_the_rest_as_it_is() -> None:
    account = accounts().of("a")
    account.change(0.25, None, now_s=7.0)
    account.change(None, 2e-7, now_s=8.0)
    account.change(None, None, now_s=9.0)
    assert account.terms == Terms(0.25, 2e-7, 8.0)


@given(here=changes, there=changes)
def test_the_later_change_holds_whoever_asks_whom(
    here: list[tuple[float | None, float | None, int]], there: list[tuple[float | None, float | None, int]]
) -> None:
    replicas = accounts(), accounts()
    for replica, made in zip(replicas, (here, there), strict=True):
        for budget, exchange_rate, at in made:
            replica.of("a").change(budget, exchange_rate, now_s=float(at))
    one, other = replicas
    newest = max((r.of("a").terms for r in replicas), key=lambda terms: terms.changed_at)
    assert Statement.total([r.of("a").statement() for r in replicas]).terms == newest
    one.adopt(other.changed())
    assert one.of("a").terms == newest
    other.adopt(one.changed())
    assert other.of("a").terms.changed_at == newest.changed_at


def test_only_what_was_settled_is_told() -> None:
    first = accounts()
    first.of("asked for")
    first.of("settled").change(0.1, None, now_s=5.0)
    assert set(first.changed()) == {"settled"}
