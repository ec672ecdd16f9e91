"""Accounts: what they cost, by device, and that asking opens none."""

from __future__ import annotations

from tandem.deployments.access.accounts import Accounts
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.request.bill import Bill
from tandem.policies.cost import Used


def test_other_settings_are_for_new_accounts() -> None:
    known = Accounts(AccountSettings(budget=0.25))
    known.of("old")
    known.follow(AccountSettings(budget=0.5))
    assert [known.of(key).terms.budget for key in ("old", "new")] == [0.25, 0.5]


def test_bills_add_up_by_device() -> None:
    account = Accounts().of("a")
    for device, requests in (("", 1), ("phone", 2), ("phone", 3)):
        account.charge(device, Bill(requests, Used(1, 2, 3, 4), 0.5, 0.25, 6.0, 0.125))
    statement = account.statement()
    assert statement.devices == {"phone": Bill(5, Used(2, 4, 6, 8), 1.0, 0.5, 12.0, 0.25)}
    assert statement.total == Bill(6, Used(3, 6, 9, 12), 1.5, 0.75, 18.0, 0.375)
    assert statement.total.server_usd == 2.25


def test_asking_opens_no_account() -> None:
    known = Accounts()
    assert known.statement("nobody").terms == known.terms
    known.of("somebody").charge("", Bill(1, Used(1, 2, 3, 4), 0.5, 0.0, 6.0, 0.25))
    statement = known.statement("somebody")
    assert (statement.total.requests, statement.total.joules) == (1, 6.0)
    assert set(known._accounts) == {"somebody"}
