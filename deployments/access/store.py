"""The ledger: keys, terms and bills on disk, with one writer at a time, the key service. It survives every crash.

SQLite in WAL mode: each call's writes survive every process (a power cut may lose the last moments), and others may
read concurrently. The calls block: run them in a thread of their own.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.ledger_schema import COUNTED, WrongVersion, upgrade
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

_SUMS = ", ".join(f"SUM({name})" for name in COUNTED)
_CHARGE = (
    "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, IFNULL((SELECT team FROM members WHERE account = ?1), ''), {}) "
    "ON CONFLICT DO UPDATE SET {}"
).format(
    ", ".join(f"?{6 + number}" for number in range(len(COUNTED))),
    ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTED),
)

_ADD = f"UPDATE totals SET {', '.join(f'{name} = {name} + ?' for name in COUNTED)}"
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


class LeaseLost(LedgerError):
    """Another service writes this ledger now."""


class Ledger:
    """path: its file, made where there is none, but not its folder: a misspelt path would be an empty ledger. None: in
    memory, gone with this process."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises LedgerError, as every call does that writes."""
        try:
            if path is not None:
                path.touch(mode=0o600)
            self._name, self._leased = secrets.token_hex(8), False
            self._file = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=10.0)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            upgrade(self._file)
            self._seen = self._data_version()
            if path is not None:
                _close_to_others(path)
        except WrongVersion as error:
            raise LedgerError(f"{path} {error}") from None
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"{path}: {error}") from None

    def read(self, since: str = "") -> Books:
        """Return all that memory needs of the ledger, in one transaction. since: the first recent day."""
        with self._transaction("DEFERRED"):
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
                    total = Bill()
                    for charge in charges:
                        total.add(charge.bill)
                    file.execute(_ADD, _counts(total))
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

    def take_lease(self, until_s: float, free_s: float | None = None) -> bool:
        """Have no other service write from now on; return whether that is so.

        until_s: how long the lease holds unless it is taken again, seconds since the epoch.
        free_s: where given, the lease is taken only if it is this service's, or held until then at the longest.
        """
        with self._transaction("IMMEDIATE") as file:
            held = _lease(file)
            if free_s is not None and held.holder not in ("", self._name) and held.until_s > free_s:
                return False
            file.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?)", (self._name, until_s))
        self._leased = True
        return True

    def free_lease(self) -> None:
        """Let any other service write from now on."""
        with self._transaction("IMMEDIATE") as file:
            file.execute("DELETE FROM lease WHERE holder = ?", (self._name,))

    @contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """Commit a transaction, whole or not at all, under the lease where one was taken. Raises LedgerError."""
        with self._transaction("IMMEDIATE") as file:
            if self._leased and _lease(file).holder != self._name:
                raise LeaseLost("another service has taken over the ledger")
            yield file

    @contextmanager
    def _transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[sqlite3.Connection]:
        try:
            with self._file:
                self._file.execute(f"BEGIN {kind}")
                yield self._file
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger cannot be written: {error}") from None


def _close_to_others(path: Path) -> None:
    """Leave an existing ledger, and what SQLite keeps beside it, to its owner alone. Raises OSError."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


class Lease(NamedTuple):
    """Permission to write. holder: service that has it, "" for none; until_s: seconds since the epoch."""

    holder: str
    until_s: float


def _lease(file: sqlite3.Connection) -> Lease:
    found = file.execute("SELECT holder, until_s FROM lease").fetchone()
    return Lease("", 0.0) if found is None else Lease(*found)


def _bill(counted: Sequence[Any]) -> Bill:
    requests, *rest = counted
    return Bill(requests, Used(*rest[:4]), *rest[4:])


def _row(account: str, device: str, bill: Bill, mode: str, model: str, day: str) -> tuple[object, ...]:
    return account, day, mode, model, device, *_counts(bill)


def _counts(bill: Bill) -> tuple[float, ...]:
    """Return a bill's COUNTED."""
    used = bill.used
    return (
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
