"""Copies of the ledger: whole, for their owner alone, and put back only where nobody writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.ledger_backup import Content, back_up, check, restore
from tandem.deployments.access.ledger_schema import VERSION
from tandem.deployments.access.store import BillBatch, Ledger, LedgerError
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

KEY = Key("key-1", "app", Role.USER, Terms(0.25, 1e-7), "abcd", 1.0)


def bills(number: int, requests: int = 1) -> BillBatch:
    bill = Bill(requests, Used(1, 2, 3, 4), 0.1, 0.25, 6.0, 0.125)
    return BillBatch("api", number, [Charge("key-1", "", bill, "cloud", "m", "2026-11-25")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """Yield a ledger that a service writes."""
    ledger = Ledger(path)
    ledger.take_lease(until_s=100.0)
    ledger.keep_key(KEY, [Secret("d1", "key-1")])
    ledger.charge([bills(1), bills(2, 4)])
    yield ledger
    ledger.close()


def test_a_copy_is_of_one_moment_and_can_be_put_back(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    found = back_up(path, copy)
    assert found == check(copy) == Content(VERSION, 1, 5, pytest.approx(0.7))
    assert copy.stat().st_mode & 0o077 == 0
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy.sqlite"], "all of it in one file"
    ledger.charge([bills(3)])
    ledger.drop_key("key-1")
    with pytest.raises(LedgerError, match="a server has .* open .*: stop it first"):
        restore(copy, path)
    assert check(path).requests == 6
    ledger.close()
    assert restore(copy, path) == found
    again = Ledger(path)
    assert again.keys() == [KEY]
    assert again.charge([bills(2, 4)]) == 0, "what is sent again is known"
    again.close()
    with pytest.raises(LedgerError, match="no file is overwritten"):
        back_up(path, copy)


def test_a_copy_is_put_where_no_ledger_was(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    back_up(path, tmp_path / "copy.sqlite")
    new = tmp_path / "new.sqlite"
    assert restore(tmp_path / "copy.sqlite", new).requests == 5
    assert new.stat().st_mode & 0o077 == 0


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096])


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as file:
            file.execute(statement)
        file.close()

    return change


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (cut, "sqlite"),
        (lambda path: path.write_text("no database"), "sqlite"),
        (lambda path: path.unlink(), "there is no ledger"),
        (changed("DELETE FROM usage"), "requests of all usage is 0, and 5 were counted"),
        (changed("UPDATE usage SET server_usd_in = 3.0"), "server_usd_in of all usage"),
        (changed("DELETE FROM secrets"), "keys without a secret: key-1"),
        (changed("DELETE FROM keys"), "secrets of no key: key-1"),
        (changed(f"PRAGMA user_version = {VERSION + 1}"), f"version {VERSION + 1}"),
    ],
    ids=["cut", "text", "none", "usage", "dollars", "secrets", "keys", "version"],
)
@pytest.mark.usefixtures("ledger")
def test_a_damaged_copy_is_not_put_back(
    harm: Callable[[Path], None], told: str, path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    harm(copy)
    with pytest.raises(LedgerError, match=told):
        check(copy)
    with pytest.raises(LedgerError, match=told):
        restore(copy, path)
    assert check(path).requests == 5, "the ledger is as it was"


@given(amounts=st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e6)), max_size=20))
def test_totals_are_those_of_all_usage(
    amounts: list[tuple[int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger(path)
    for number, (count, usd) in enumerate(amounts, 1):
        bill = Bill(count, Used(count, 1, 2, 3), usd, usd / 3, usd / 7, usd / 11)
        ledger.charge([BillBatch("api", number, [Charge(f"key-{number % 3}", "", bill)] * 2)])
    ledger.close()
    assert check(path).requests == 2 * sum(count for count, _ in amounts)
