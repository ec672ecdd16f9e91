"""The ledger: what was written is there, whoever dies; amounts add up; a strange file is refused."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.ledger_schema import VERSION
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.store import BillBatch, LeaseLost, Ledger, LedgerError
from tandem.deployments.access.usage import Group, UsageQuery
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used
from tandem.policies.routing.objectives import Objective

TERMS = Terms(0.25, 1e-7, requests_per_minute=60, modes=("cloud",), expires_s=12.5)
KEY = Key("key-1", "app", Role.USER, TERMS, "abcd", 1.0)
counts = st.integers(0, 10**9)
bills = st.builds(
    Bill, counts, st.builds(Used, counts, counts, counts, counts), *[st.floats(0, 1e6) for _ in range(4)]
)
charges = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "phone"]), bills), max_size=20)


def test_everything_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    secrets = [Secret("d1", "key-1"), Secret("d2", "key-1", 5.0)]
    ledger.keep_key(KEY, secrets)
    terms = replace(TERMS, objective=Objective(usd=1e-3))
    ledger.keep_terms("device-phone", terms)
    ledger.charge(
        [BillBatch("api", 1, [Charge("key-1", "phone", Bill(1, Used(1, 2, 3, 4), 0.5, 0.25, 6.0, 0.125))])]
    )
    ledger.close()
    again = Ledger(path)
    assert again.keys() == [KEY]
    assert again.secrets() == secrets
    assert again.terms() == {"device-phone": terms}
    assert again.bills() == [Charge("key-1", "phone", Bill(1, Used(1, 2, 3, 4), 0.5, 0.25, 6.0, 0.125))]
    again.drop_key("key-1")
    assert again.keys() == again.secrets() == []
    assert again.bills(), "what it has cost stays"
    again.close()
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"


BEFORE = """
PRAGMA journal_mode = WAL;
CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT, role TEXT, hint TEXT, made_s REAL, terms BLOB) STRICT;
CREATE TABLE secrets (digest TEXT PRIMARY KEY, key TEXT, until_s REAL) STRICT;
CREATE TABLE terms (account TEXT PRIMARY KEY, terms BLOB) STRICT;
CREATE TABLE bills (
    account TEXT, device TEXT, requests INTEGER,
    server_in INTEGER, server_out INTEGER, device_in INTEGER, device_out INTEGER,
    server_usd_in REAL, server_usd_out REAL, joules REAL, device_usd REAL,
    PRIMARY KEY (account, device)
) STRICT;
INSERT INTO keys VALUES ('key-1', 'app', 'user', 'abcd', 1.0, X'%s');
INSERT INTO secrets VALUES ('d1', 'key-1', NULL);
PRAGMA user_version = 1;
"""
"""Schema from before devices had keys."""


def test_a_ledger_of_the_first_version_keeps_its_usage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript(BEFORE % "00")
        file.execute("INSERT INTO bills VALUES ('key-1', 'phone', 1, 1, 2, 3, 4, 0.5, 0.25, 6.0, 0.125)")
        file.execute("INSERT INTO bills VALUES ('key-1', '', 2, 1, 2, 3, 4, 0.5, 0.25, 6.0, 0.125)")
    file.close()
    for _ in range(2):  # the second time it is of this version already
        ledger = Ledger(path)
        assert {(charge.device, charge.bill.requests) for charge in ledger.bills()} == {("phone", 1), ("", 2)}
        assert ledger.spent("account", "") == [], "no day is known"
        assert [(each.place, each.bill.requests) for each in ledger.usage(UsageQuery())] == [
            (("key-1", "", ""), 3)
        ]
        ledger.close()
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
    file.close()


def test_a_younger_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version = {VERSION + 1}")
    file.close()
    with pytest.raises(LedgerError, match=f"version {VERSION + 1}; this is for version {VERSION}"):
        Ledger(path)


used = st.builds(
    Charge, st.sampled_from("ab"), st.sampled_from(["", "phone"]), bills, st.sampled_from(["cloud", "race"]),
    st.sampled_from(["m", "n"]), st.sampled_from(["", "2026-11-24", "2026-11-25", "2026-12-01"]),
)  # fmt: skip
groups = st.lists(st.sampled_from(get_args(Group)), min_size=1, unique=True).map(tuple)


@given(charges=st.lists(used, max_size=20), by=groups, account=st.sampled_from([None, "a", "c"]))
def test_usage_is_the_sum_of_its_bills(
    charges: list[Charge], by: tuple[Group, ...], account: str | None
) -> None:
    ledger = Ledger()
    ledger.charge([BillBatch("api", 1, charges)])
    query = UsageQuery(account, "2026-11-25", "2026-11-30", by)
    expected: dict[tuple[str, ...], Bill] = {}
    for charge in charges:
        if charge.day == "2026-11-25" and account in (None, charge.account):
            expected.setdefault(
                tuple("" if group == "team" else getattr(charge, group) for group in by), Bill()
            ).add(charge.bill)
    found = ledger.usage(query)
    assert [each.place for each in found] == sorted(expected)
    for place, bill in found:
        assert (bill.requests, bill.used) == (expected[place].requests, expected[place].used)
        assert bill.server_usd == pytest.approx(expected[place].server_usd)
    spent = {(who, day): usd for who, day, usd in ledger.spent("account", "2026-11-25")}
    assert {day for _, day in spent} <= {"2026-11-25", "2026-12-01"}
    assert sum(spent.values()) == pytest.approx(
        sum(charge.bill.server_usd for charge in charges if charge.day >= "2026-11-25")
    )
    ledger.close()


def test_a_ledger_from_before_devices_had_keys_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    terms = {
        "budget": 0.25,
        "exchange_rate": 1e-7,
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "concurrent": None,
        "modes": ["cloud"],
        "devices": None,
        "expires_s": 12.5,
    }
    with sqlite3.connect(path) as file:
        file.executescript(BEFORE % msgspec.msgpack.encode(terms).hex())
    file.close()
    ledger = Ledger(path)
    assert ledger.keys() == [KEY]
    assert ledger.secrets() == [Secret("d1", "key-1")]
    ledger.charge([BillBatch("api", 1, [Charge("key-1", "", Bill(requests=1))])])
    device = Key("key-2", "phone", Role.DEVICE, TERMS, "efgh", 2.0)
    ledger.keep_key(device, [Secret("d2", "key-2")])
    ledger.close()
    again = Ledger(path)
    assert again.keys() == [KEY, device]
    again.close()


@given(charges=charges)
def test_amounts_add_up(charges: list[tuple[str, str, Bill]]) -> None:
    ledger = Ledger()
    expected: dict[tuple[str, str], Bill] = {}
    for number, (account, device, bill) in enumerate(charges, 1):
        for _ in range(2):  # it is booked once
            ledger.charge([BillBatch("api", number, [Charge(account, device, bill)])])
        expected.setdefault((account, device), Bill()).add(bill)
    read = {(account, device): bill for account, device, bill, *_ in ledger.bills()}
    assert read.keys() == expected.keys()
    for place, bill in expected.items():
        assert (read[place].requests, read[place].used) == (bill.requests, bill.used)
        assert read[place].server_usd == pytest.approx(bill.server_usd)
        assert read[place].joules == pytest.approx(bill.joules)
    ledger.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from tandem.deployments.request.bill import Bill, Charge
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.store import BillBatch, Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(1, 101):
    ledger.charge([BillBatch("api", number, [Charge("key-1", "", Bill(requests=1))])])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    ledger = Ledger(path)
    assert [bill.requests for _, _, bill, *_ in ledger.bills()] == [100]
    ledger.close()


def test_a_file_that_is_none_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to be read as one " * 30)
    with pytest.raises(LedgerError, match=r"notes\.txt"):
        Ledger(path)
    assert path.read_text().startswith("no database")


def test_a_ledger_that_others_could_read_is_for_its_owner_alone(tmp_path: Path) -> None:
    """With all that SQLite keeps beside it; and a file that is none stays as it is."""
    path = tmp_path / "ledger.sqlite"
    path.touch(mode=0o644)
    other = Ledger(path)
    for file in (files := list(tmp_path.iterdir())):
        file.chmod(0o644)
    Ledger(path).close()
    assert {file.name for file in files} == {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    assert {S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    other.close()
    notes = tmp_path / "notes.txt"
    notes.write_text("no database, but long enough to be read as one " * 30)
    notes.chmod(0o644)
    with pytest.raises(LedgerError):
        Ledger(notes)
    assert S_IMODE(notes.stat().st_mode) == 0o644


def test_a_ledger_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.close()
    with pytest.raises(LedgerError, match="the ledger cannot be read: "):
        ledger.changed_elsewhere()


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="version 99"):
        Ledger(path)


@pytest.mark.parametrize("folder", ["/dev/null", "/nowhere"])
def test_a_place_that_cannot_be_written_is_named(folder: str) -> None:
    with pytest.raises(LedgerError, match=rf"{folder}/ledger\.sqlite"):
        Ledger(Path(folder, "ledger.sqlite"))
    assert not Path("/nowhere").exists()


SECOND = BEFORE.replace(
    "PRAGMA user_version = 1;",
    """
DROP TABLE bills;
CREATE TABLE usage (
    account TEXT, day TEXT, mode TEXT, model TEXT, device TEXT, requests INTEGER,
    server_in INTEGER, server_out INTEGER, device_in INTEGER, device_out INTEGER,
    server_usd_in REAL, server_usd_out REAL, joules REAL, device_usd REAL,
    PRIMARY KEY (account, day, mode, model, device)
) STRICT, WITHOUT ROWID;
CREATE TABLE batches (sender TEXT PRIMARY KEY, last INTEGER) STRICT;
INSERT INTO usage VALUES ('key-1', '2026-11-25', 'cloud', 'm', '', 3, 1, 2, 3, 4, 0.5, 0.25, 6.0, 0.125);
INSERT INTO batches VALUES ('api', 7);
PRAGMA user_version = 2;
""",
)
"""Schema from before keys had teams."""


def test_a_ledger_of_the_second_version_keeps_its_usage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript(SECOND % msgspec.msgpack.encode(TERMS).hex())
    file.close()
    for _ in range(2):
        ledger = Ledger(path)
        assert ledger.keys() == [KEY]
        assert ledger.teams() == []
        assert ledger.spent("account", "2026-11-25") == [("key-1", "2026-11-25", 0.75)]
        assert [each.place for each in ledger.usage(UsageQuery(by=("account", "team")))] == [("key-1", "")]
        again = BillBatch("api", 7, [Charge("key-1", "", Bill(requests=1))])
        assert ledger.charge([again]) == 0, "it was booked before"
        ledger.close()


def test_an_upgrade_that_fails_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as file:
        file.executescript(SECOND % "00" + "CREATE TABLE members (something TEXT);")
    file.close()
    with pytest.raises(LedgerError, match="members"):
        Ledger(path)
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (2,)
        assert file.execute("SELECT requests FROM usage").fetchall() == [(3,)]
        assert (
            file.execute("SELECT name FROM sqlite_master WHERE name IN ('teams', 'before')").fetchall() == []
        )
    file.close()


def test_usage_is_of_the_team_that_the_key_was_in(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    teams = [Team("blue", Quota()), Team("red", Quota(usd=5.0, per="week"))]
    for team in teams:
        ledger.keep_team(team)

    def book(number: int) -> None:
        bill = Bill(number, server_usd_in=float(number))
        ledger.charge([BillBatch("api", number, [Charge("key-1", "", bill, "cloud", "m", "2026-11-25")])])

    ledger.keep_key(KEY)
    book(1)
    for number, team in ((2, "red"), (4, "blue")):
        ledger.keep_key(replace(KEY, team=team))
        (key,) = ledger.keys()
        assert key.team == team
        book(number)
    ledger.drop_key("key-1")
    book(8)  # an answer that was under way
    ledger.close()
    again = Ledger(path)
    assert again.teams() == teams
    by_team = again.usage(UsageQuery(by=("team",)))
    assert [(*each.place, each.bill.requests) for each in by_team] == [("", 1), ("blue", 12), ("red", 2)]
    assert again.spent("team", "2026-11-01") == [
        ("", "2026-11-25", 1.0),
        ("blue", "2026-11-25", 12.0),
        ("red", "2026-11-25", 2.0),
    ]
    again.drop_team("red")
    assert again.teams() == teams[:1]
    again.close()


def test_a_successor_takes_over_and_late_writes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old = Ledger(path)
    old.take_lease(until_s=5.0)
    old.keep_key(KEY, [Secret("d1", "key-1")])
    new = Ledger(path)
    assert not new.take_lease(until_s=9.0, free_s=4.0), "the old one holds it"
    new.take_lease(until_s=9.0)
    new.drop_key("key-1")
    batch = BillBatch("api", 1, [Charge("key-1", "", Bill(requests=1))])
    for late in (
        lambda: old.keep_key(replace(KEY, name="other")),
        lambda: old.charge([batch]),
        lambda: old.keep_terms("a", TERMS),
        lambda: old.keep_team(Team("red", Quota())),
    ):
        with pytest.raises(LeaseLost):
            late()
    assert old.keys() == new.keys() == old.secrets() == old.bills() == []
    assert not old.take_lease(until_s=12.0, free_s=8.0)
    new.charge([batch])
    new.free_lease()
    assert old.take_lease(until_s=12.0, free_s=8.0)
    assert old.charge([batch]) == 0, "it was booked by the other one"
    with pytest.raises(LeaseLost):
        new.charge([batch])
    for ledger in (old, new):
        ledger.close()
