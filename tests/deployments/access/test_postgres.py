"""A ledger at a real PostgreSQL server: as one in a file, also over the server's end, and from one to the other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import psycopg
import pytest

from tandem.deployments.access.accounts import Accounts
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.keys import KeyRefused, Role, Secret, digest
from tandem.deployments.access.ledger_backup import Content, back_up, check, restore
from tandem.deployments.access.ledger_schema import VERSION
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.store import BillBatch, LeaseLost, Ledger, LedgerError
from tandem.deployments.access.usage import Group, UsageQuery
from tandem.deployments.config.settings import LedgerSettings
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used
from tests.deployments.access.test_store import KEY, SECOND, TERMS
from tests.postgres import Server, running

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("postgres")]

BILL = Bill(1, Used(10**10, 2, 3, 4), 0.5, 0.25, 6.0, 0.125)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def address(server: Server) -> str:
    return server.database()


def batch(number: int, bill: Bill = BILL, account: str = "key-1") -> BillBatch:
    return BillBatch("api", number, [Charge(account, "phone", bill, "cloud", "m", "2026-11-25")])


def fill(ledger: Ledger) -> None:
    """Write something of everything."""
    ledger.keep_team(Team("red", Quota(usd=5.0, per="week")))
    ledger.keep_key(replace(KEY, team="red"), [Secret("d1", "key-1"), Secret("d2", "key-1", 5.0)])
    ledger.keep_terms("device-phone", TERMS)
    ledger.charge([batch(1), batch(2), BillBatch("gateway", 1, [Charge("key-2", "", Bill(2))])])


@pytest.mark.slow
def test_everything_is_read_as_from_a_file(address: str, tmp_path: Path) -> None:
    found = []
    for place in (address, tmp_path / "ledger.sqlite"):
        ledger = Ledger(place)
        fill(ledger)
        assert ledger.charge([batch(2)]) == 0, "it was booked before"
        ledger.keep_key(replace(KEY, team="red", name="other"))
        ledger.close()
        again = Ledger(place)
        queries = [UsageQuery(by=by) for by in (("account",), ("team", "day"), get_args(Group))]
        found.append((again.read(), [again.usage(query) for query in queries]))
        assert again.usage(UsageQuery("key-2", "2026-11-25", "2026-11-30")) == []
        again.drop_key("key-1")
        again.drop_team("red")
        assert again.keys() == again.secrets() == again.teams() == []
        again.close()
    assert found[0] == found[1]
    assert found[0][0].bills[0].bill.used.server_in == 2 * 10**10


@pytest.mark.slow
def test_a_successor_takes_over_and_late_writes_are_refused(address: str) -> None:
    old, new = Ledger(address), Ledger(address)
    old.take_lease(until_s=5.0)
    old.keep_key(KEY)
    assert new.changed_elsewhere()
    assert not new.take_lease(until_s=9.0, free_s=4.0), "the old one holds it"
    new.take_lease(until_s=9.0)
    new.changed_elsewhere()
    new.drop_key("key-1")
    assert not new.changed_elsewhere(), "it was this one"
    assert old.changed_elsewhere()
    with pytest.raises(LeaseLost):
        old.charge([batch(1)])
    assert old.bills() == []
    new.free_lease()
    assert old.take_lease(until_s=12.0, free_s=8.0)
    old.charge([batch(1)])
    for ledger in (old, new):
        ledger.close()


@pytest.mark.slow
def test_a_transaction_is_whole_or_not_at_all(address: str, server: Server) -> None:
    ledger = Ledger(address)
    ledger.charge([batch(1)])
    with pytest.raises(LedgerError, match="cannot be written"):
        ledger.charge([batch(2), batch(3, Bill(1, server_usd_in="much"))])  # type: ignore[arg-type]
    assert [each.bill.requests for each in ledger.bills()] == [1]
    assert not ledger.changed_elsewhere()
    ledger.close()
    assert check(address).requests == 1


@pytest.mark.slow
def test_what_was_written_outlives_the_server_and_connections_come_back() -> None:
    with running() as server:
        ledger = Ledger(server.database())
        ledger.take_lease(until_s=5.0)
        ledger.charge([batch(1)])
        server.stop()
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.charge([batch(2)])
        with pytest.raises(LedgerError, match="cannot be read"):
            ledger.changed_elsewhere()
        server.start()
        assert ledger.charge([batch(1), batch(2)]) == 1
        assert [each.bill.requests for each in ledger.bills()] == [2]
        ledger.close()


@pytest.mark.slow
async def test_the_key_service_works_on_one(address: str) -> None:
    settings = LedgerSettings(database=address)
    for number, name in enumerate(("ada", "bob"), 1):
        service = KeyService(settings, Accounts(), now_s=lambda: 1000.0)
        await service.open()
        key, secret = await service.make(name, Role.OPERATOR, {})
        service.charge(batch(number, account=key.id))
        await service.written()
        caller = service.caller(digest(secret))
        assert caller is not None
        assert caller.account == key.id
        with pytest.raises(KeyRefused):
            await service.make(name, Role.DEVICE, {"usd": -1.0}, "no such team")
        await service.close()
    assert check(address).keys == 2


@pytest.mark.slow
def test_a_ledger_moves_to_a_server_and_back(address: str, server: Server, tmp_path: Path) -> None:
    file, copy, back = (tmp_path / f"{name}.sqlite" for name in ("ledger", "copy", "back"))
    ledger = Ledger(file)
    fill(ledger)
    ledger.take_lease(until_s=9.0)
    ledger.close()
    back_up(file, copy)
    with pytest.raises(LedgerError, match="there is no ledger postgresql://tandem@/"):
        check(address)
    found = restore(copy, address)
    assert found == check(file) == Content(VERSION, 1, 4, 1.5)
    there = Ledger(address)
    assert there.take_lease(until_s=1.0, free_s=0.0), "a copy has no lease"
    with pytest.raises(LedgerError, match="stop it first"):
        restore(copy, address)
    assert back_up(address, back) == found
    assert [each.name for each in tmp_path.glob("back*")] == ["back.sqlite"], "all of it in one file"
    assert back.stat().st_mode & 0o077 == 0
    again = Ledger(back)
    assert again.read() == there.read()
    there.charge([batch(3)])
    there.close()
    again.close()
    assert restore(back, address) == found, "in place of what was there"


@pytest.mark.slow
def test_an_old_copy_becomes_a_ledger_of_this_version(address: str, tmp_path: Path) -> None:
    with sqlite3.connect(copy := tmp_path / "copy.sqlite") as file:
        file.executescript(SECOND % msgspec.msgpack.encode(TERMS).hex())
    file.close()
    assert restore(copy, address).requests == 3
    ledger = Ledger(address)
    assert ledger.keys() == [KEY]
    ledger.close()


@pytest.mark.slow
def test_a_ledger_of_an_older_version_is_upgraded_whole_or_not_at_all(address: str, server: Server) -> None:
    Ledger(address).close()
    name = psycopg.conninfo.conninfo_to_dict(address)["dbname"]
    server.sql(
        str(name),
        """
        DROP TABLE usage, teams, members, totals;
        CREATE TABLE usage (
            account TEXT, day TEXT, mode TEXT, model TEXT, device TEXT, requests BIGINT,
            server_in BIGINT, server_out BIGINT, device_in BIGINT, device_out BIGINT,
            server_usd_in FLOAT8, server_usd_out FLOAT8, joules FLOAT8, device_usd FLOAT8,
            PRIMARY KEY (account, day, mode, model, device)
        );
        INSERT INTO usage VALUES ('key-1', '2026-11-25', 'cloud', 'm', '', 3, 1, 2, 3, 4, 0.5, 0.25, 6.0, 0.125);
        UPDATE ledger SET version = 2;
        CREATE TABLE members (something TEXT)
        """,
    )
    with pytest.raises(LedgerError, match="members"):
        Ledger(address)
    server.sql(str(name), "DROP TABLE members")
    for _ in range(2):
        ledger = Ledger(address)
        assert ledger.spent("account", "2026-11-25") == [("key-1", "2026-11-25", 0.75)]
        ledger.close()
    assert check(address) == Content(VERSION, 0, 3, 0.75)
    server.sql(str(name), "UPDATE ledger SET version = 99")
    with pytest.raises(LedgerError, match="version 99; this is for version"):
        Ledger(address)


@pytest.mark.slow
def test_a_damaged_ledger_is_found(address: str, server: Server) -> None:
    ledger = Ledger(address)
    fill(ledger)
    ledger.close()
    name = str(psycopg.conninfo.conninfo_to_dict(address)["dbname"])
    server.sql(name, "DELETE FROM usage WHERE account = 'key-2'")
    with pytest.raises(LedgerError, match="requests of all usage is 2, and 4 were counted"):
        check(address)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"database": "ledger.sqlite"}, "it is no address"),
        ({"database": "postgresql://ada:secret@host/ledger"}, "leave the password to PGPASSFILE"),
        ({"database": "postgresql://host/ledger?password=secret"}, "leave the password to PGPASSFILE"),
        ({"database": "postgresql://host/ledger", "path": "ledger.sqlite"}, "not in both"),
    ],
)
def test_settings_that_say_it_wrong_are_refused(settings: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LedgerSettings.model_validate(settings)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(LedgerError, match="^postgresql://tandem@/ledger: .*/nowhere"):
        Ledger("postgresql://tandem@/ledger?host=/nowhere")
