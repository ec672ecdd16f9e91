"""Accounts: what they cost, by device, and that asking opens none."""

from __future__ import annotations

from dataclasses import replace

from tandem.deployments.access.accounts import Accounts
from tandem.deployments.learning.experience import Experience
from tandem.deployments.request.bill import Bill
from tandem.policies.cost import Used
from tandem.policies.race.dispatch import Side


def accounts() -> Accounts:
    return Experience().accounts


def test_terms_reach_the_budgets() -> None:
    known = accounts()
    account = known.of("a")
    account.terms = replace(account.terms, budget=0.25)
    assert {budget.share for budget in account.payer.budgets.values()} == {0.25}


def test_bills_add_up_by_device() -> None:
    account = accounts().of("a")
    for device, requests in (("", 1), ("phone", 2), ("phone", 3)):
        account.charge(device, Bill(requests, Used(1, 2, 3, 4), 0.5, 0.25, 6.0, 0.125))
    statement = account.statement()
    assert statement.devices == {"phone": Bill(5, Used(2, 4, 6, 8), 1.0, 0.5, 12.0, 0.25)}
    assert statement.total == Bill(6, Used(3, 6, 9, 12), 1.5, 0.75, 18.0, 0.375)
    assert statement.total.server_usd == 2.25


def test_asking_opens_no_account() -> None:
    known = accounts()
    assert known.statement("nobody").terms == known.terms
    known.of("somebody").charge("", Bill(1, Used(1, 2, 3, 4), 0.5, 0.0, 6.0, 0.25))
    statement = known.statement("somebody")
    assert (statement.total.requests, statement.total.joules) == (1, 6.0)
    assert statement.raced == {Side.DEVICE: (0, 0.0), Side.SERVER: (0, 0.0)}
    assert set(known._accounts) == {"somebody"}
