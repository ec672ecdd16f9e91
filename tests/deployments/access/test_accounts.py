"""Accounts: what they cost, by device, and that asking opens none."""

from __future__ import annotations

import pytest

from tandem.deployments.access.accounts import Account, Accounts, Terms
from tandem.deployments.access.usage import Period, Spent
from tandem.deployments.config.settings import AccountSettings
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

NOW_S = 1_795_600_000.0  # 2026-11-25, a Wednesday


def test_other_settings_are_for_new_accounts() -> None:
    known = Accounts(AccountSettings(budget=0.25))
    known.of("old")
    known.follow(AccountSettings(budget=0.5))
    assert [known.of(key).terms.budget for key in ("old", "new")] == [0.25, 0.5]


def test_bills_add_up_by_device() -> None:
    account = Accounts().of("a")
    for device, requests in (("", 1), ("phone", 2), ("phone", 3)):
        account.charge(Charge("a", device, Bill(requests, Used(1, 2, 3, 4), 0.5, 0.25, 6.0, 0.125)))
    statement = account.statement(NOW_S)
    assert statement.devices == {"phone": Bill(5, Used(2, 4, 6, 8), 1.0, 0.5, 12.0, 0.25)}
    assert statement.total == Bill(6, Used(3, 6, 9, 12), 1.5, 0.75, 18.0, 0.375)
    assert statement.total.server_usd == 2.25


def test_asking_opens_no_account() -> None:
    known = Accounts()
    assert known.statement("nobody", NOW_S).terms == known.terms
    known.of("somebody").charge(Charge("somebody", "", Bill(1, Used(1, 2, 3, 4), 0.5, 0.0, 6.0, 0.25)))
    statement = known.statement("somebody", NOW_S)
    assert (statement.total.requests, statement.total.joules) == (1, 6.0)
    assert set(known._accounts) == {"somebody"}


@pytest.mark.parametrize(
    ("per", "since", "usd"),
    [("day", "2026-11-25", 4.0), ("week", "2026-11-23", 6.0), ("month", "2026-11-01", 7.0)],
)
def test_dollars_of_a_period(per: Period, since: str, usd: float) -> None:
    account = Account(Terms(0.5, 0.0, usd=1.0, per=per))
    for day, spent in (
        ("2026-10-31", 8.0),
        ("2026-11-22", 1.0),
        ("2026-11-23", 2.0),
        ("2026-11-25", 3.0),
        ("2026-11-25", 1.0),
    ):
        account.charge(Charge("a", "", Bill(1, server_usd_in=spent / 2, server_usd_out=spent / 2), day=day))
    assert account.spent(NOW_S) == account.statement(NOW_S).usd == Spent(since, usd)
