"""The ledger: keys, terms and bills on disk, with one writer, the key service. It survives every crash.

SQLite in WAL mode: each call's writes survive every process (a power cut may lose the last moments), and others may
read concurrently. The calls block: run them in a thread of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

VERSION = 3
"""Version of the tables; older ones are brought up to it, and a younger file is refused."""

_TABLES = """
CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT, role TEXT, hint TEXT, made_s REAL, terms BLOB) STRICT;
CREATE TABLE secrets (digest TEXT PRIMARY KEY, key TEXT, until_s REAL) STRICT;
CREATE TABLE terms (account TEXT PRIMARY KEY, terms BLOB) STRICT;
"""
_TEAMS = """
CREATE TABLE teams (name TEXT PRIMARY KEY, quota BLOB) STRICT;
CREATE TABLE members (account TEXT PRIMARY KEY, team TEXT) STRICT;
"""
"""Members stay when their keys are revoked: their last bills come later."""
_USAGE = """
CREATE TABLE usage (
    account TEXT, day TEXT, mode TEXT, model TEXT, device TEXT, team TEXT, requests INTEGER,
    server_in INTEGER, server_out INTEGER, device_in INTEGER, device_out INTEGER,
    server_usd_in REAL, server_usd_out REAL, joules REAL, device_usd REAL,
    PRIMARY KEY (account, day, mode, model, device, team)
) STRICT, WITHOUT ROWID;
"""
_FROM_1 = f"""{_TEAMS}{_USAGE}
INSERT INTO usage SELECT account, '', '', '', device, '', requests, server_in, server_out, device_in, device_out,
    server_usd_in, server_usd_out, joules, device_usd FROM bills;
DROP TABLE bills;
"""
"""From version 1, which had one row for all of an account's requests with a device."""
_FROM_2 = f"""{_TEAMS}
ALTER TABLE usage RENAME TO before;
{_USAGE}
INSERT INTO usage SELECT account, day, mode, model, device, '', requests, server_in, server_out, device_in, device_out,
    server_usd_in, server_usd_out, joules, device_usd FROM before;
DROP TABLE before;
"""
"""From version 2, which had no teams."""
_COUNTED = (
    "requests",
    "server_in",
    "server_out",
    "device_in",
    "device_out",
    "server_usd_in",
    "server_usd_out",
    "joules",
    "device_usd",
)
_SUMS = ", ".join(f"SUM({name})" for name in _COUNTED)
_CHARGE = (
    "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, IFNULL((SELECT team FROM members WHERE account = ?1), ''), {}) "
    "ON CONFLICT DO UPDATE SET {}"
).format(
    ", ".join(f"?{6 + number}" for number in range(len(_COUNTED))),
    ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED),
)

_BATCHES = "CREATE TABLE IF NOT EXISTS batches (sender TEXT PRIMARY KEY, last INTEGER) STRICT"
_LATER = "INSERT INTO batches VALUES (?, ?) ON CONFLICT DO UPDATE SET last = excluded.last WHERE excluded.last > last"


class BillBatch(NamedTuple):
    """Bills that are booked all or none, and once.

    number: grows from batch to batch of the sender.
    """

    sender: str
    number: int
    charges: Sequence[Charge]


class Books(NamedTuple):
    """Contents of a ledger at one moment.

    bills: of each account with each device, of all days together.
    spent: server's dollars of each account on each recent day.
    teams: all teams.
    team_spent: server's dollars of each team on each recent day.
    last: number of the latest batch, by sender.
    """

    keys: list[Key]
    secrets: list[Secret]
    terms: dict[str, Terms]
    bills: list[Charge]
    spent: list[tuple[str, str, float]]
    teams: list[Team]
    team_spent: list[tuple[str, str, float]]
    last: dict[str, int]


class LedgerError(Exception):
    """The file is no ledger, or cannot be written."""


class Ledger:
    """path: its file, made where there is none, but not its folder: a misspelt path would be an empty ledger. None: in
    memory, gone with this process."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises LedgerError, as every call does that writes."""
        try:
            if path is not None:
                path.touch(mode=0o600)
            self._file = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=10.0)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version in _STEPS:
                self._file.executescript(f"BEGIN; {_STEPS[version]} PRAGMA user_version = {VERSION}; COMMIT;")
            elif version != VERSION:
                raise LedgerError(f"{path} is a ledger of version {version}; this is for version {VERSION}")
            self._file.execute(_BATCHES)  # younger than the version
            self._seen = self._data_version()
            if path is not None:
                _close_to_others(path)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"{path}: {error}") from None

    def read(self, since: str = "") -> Books:
        """Return all that memory needs of the ledger, in one transaction. since: the first recent day."""
        with self._commit():
            self._file.execute("BEGIN")
            last = dict(self._file.execute("SELECT sender, last FROM batches"))
            return Books(
                self.keys(),
                self.secrets(),
                self.terms(),
                self.bills(),
                self.spent("account", since),
                self.teams(),
                self.spent("team", since),
                last,
            )

    def keys(self) -> list[Key]:
        """Return all keys that were not revoked."""
        rows = self._file.execute(
            "SELECT id, name, role, terms, hint, made_s, IFNULL(team, '') FROM keys LEFT JOIN members ON id = account "
            "ORDER BY made_s"
        )
        return [
            Key(id, name, Role(role), msgspec.msgpack.decode(terms, type=Terms), *rest)
            for id, name, role, terms, *rest in rows
        ]

    def secrets(self) -> list[Secret]:
        """Return the keys' secrets."""
        return [Secret(*row) for row in self._file.execute("SELECT digest, key, until_s FROM secrets")]

    def terms(self) -> dict[str, Terms]:
        """Return the limits of accounts without a key."""
        rows = self._file.execute("SELECT account, terms FROM terms")
        return {account: msgspec.msgpack.decode(terms, type=Terms) for account, terms in rows}

    def teams(self) -> list[Team]:
        """Return all teams, by name."""
        rows = self._file.execute("SELECT name, quota FROM teams ORDER BY name")
        return [Team(name, msgspec.msgpack.decode(quota, type=Quota)) for name, quota in rows]

    def bills(self) -> list[Charge]:
        """Return the usage of each account with each device, of all days together."""
        rows = self._file.execute(f"SELECT account, device, {_SUMS} FROM usage GROUP BY account, device")
        return [Charge(account, device, _bill(counted)) for account, device, *counted in rows]

    def spent(self, by: Literal["account", "team"], since: str) -> list[tuple[str, str, float]]:
        """Return (account or team, day, server's dollars) of each day from `since` on."""
        return list(
            self._file.execute(
                f"SELECT {by}, day, SUM(server_usd_in + server_usd_out) FROM usage WHERE day >= ? AND day > '' "
                f"GROUP BY {by}, day",
                (since,),
            )
        )

    def usage(self, query: UsageQuery) -> list[Usage]:
        """Return sums over all that the query does not group by, in the order of its groups."""
        where, given = ["day >= ?", "day <= ?"], [query.start, query.end]
        if query.account is not None:
            where, given = [*where, "account = ?"], [*given, query.account]
        groups = ", ".join(query.by)
        rows = self._file.execute(
            f"SELECT {groups}, {_SUMS} FROM usage WHERE {' AND '.join(where)} "
            f"GROUP BY {groups} ORDER BY {groups}",
            given,
        )
        count = len(query.by)
        return [Usage(tuple(row[:count]), _bill(row[count:])) for row in rows]

    def keep_key(self, key: Key, opens: Iterable[Secret] = ()) -> None:
        """Store a key that is new or has changed, and those of its secrets that have."""
        row = key.id, key.name, str(key.role), key.hint, key.made_s, msgspec.msgpack.encode(key.terms)
        with self._commit() as file:
            file.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
            file.execute("INSERT OR REPLACE INTO members VALUES (?, ?)", (key.id, key.team))
            file.executemany("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?)", opens)

    def drop_key(self, id: str) -> None:
        """Delete a revoked key; its usage stays."""
        with self._commit() as file:
            file.execute("DELETE FROM keys WHERE id = ?", (id,))
            file.execute("DELETE FROM secrets WHERE key = ?", (id,))

    def keep_team(self, team: Team) -> None:
        """Store a team that is new or has changed."""
        with self._commit() as file:
            row = team.name, msgspec.msgpack.encode(team.quota)
            file.execute("INSERT OR REPLACE INTO teams VALUES (?, ?)", row)

    def drop_team(self, name: str) -> None:
        """Delete a team; its usage stays."""
        with self._commit() as file:
            file.execute("DELETE FROM teams WHERE name = ?", (name,))

    def keep_terms(self, account: str, terms: Terms) -> None:
        """Store the limits of an account without a key."""
        row = account, msgspec.msgpack.encode(terms)
        with self._commit() as file:
            file.execute("INSERT OR REPLACE INTO terms VALUES (?, ?)", row)

    def charge(self, batches: Iterable[BillBatch]) -> int:
        """Add those batches that are not there yet, all or none; return how many they are."""
        booked = 0
        with self._commit() as file:
            for sender, number, charges in batches:
                if file.execute(_LATER, (sender, number)).rowcount:
                    file.executemany(_CHARGE, [_row(*charge) for charge in charges])
                    booked += 1
        return booked

    def changed_elsewhere(self) -> bool:
        """Whether another connection has written since this was asked last. Raises LedgerError."""
        before, self._seen = self._seen, self._data_version()
        return self._seen != before

    def close(self) -> None:
        self._file.close()

    def _data_version(self) -> int:
        try:
            (version,) = self._file.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger cannot be read: {error}") from None
        return int(version)

    @contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """Commit a transaction, whole or not at all. Raises LedgerError."""
        try:
            with self._file:
                yield self._file
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger cannot be written: {error}") from None


def _close_to_others(path: Path) -> None:
    """Leave an existing ledger, and what SQLite keeps beside it, to its owner alone. Raises OSError."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


_STEPS = {0: _TABLES + _TEAMS + _USAGE, 1: _FROM_1, 2: _FROM_2}
"""Statements that make the tables of this version, by the version before."""


def _bill(counted: Sequence[Any]) -> Bill:
    requests, *rest = counted
    return Bill(requests, Used(*rest[:4]), *rest[4:])


def _row(account: str, device: str, bill: Bill, mode: str, model: str, day: str) -> tuple[object, ...]:
    used = bill.used
    return (
        account,
        day,
        mode,
        model,
        device,
        bill.requests,
        used.server_in,
        used.server_out,
        used.device_in,
        used.device_out,
        bill.server_usd_in,
        bill.server_usd_out,
        bill.joules,
        bill.device_usd,
    )
