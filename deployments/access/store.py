"""The ledger: keys, terms and bills on disk, with one writer at a time, the key service. It survives every crash.

The calls block: run them in a thread of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.databases.base import Database
from tandem.deployments.access.databases.place import Place, connected, errors_at, told
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.ledger_schema import COUNTED, SUMS, WrongVersion, upgrade
from tandem.deployments.access.quota import Quota, Team
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

_CHARGE = (
    "INSERT INTO usage VALUES (?, ?, ?, ?, ?, COALESCE((SELECT team FROM members WHERE account = ?), ''), {}) "
    "ON CONFLICT (account, day, mode, model, device, team) DO UPDATE SET {}"
).format(
    ", ".join("?" for _ in COUNTED), ", ".join(f"{name} = usage.{name} + excluded.{name}" for name in COUNTED)
)
_ADD = f"UPDATE totals SET {', '.join(f'{name} = {name} + ?' for name in COUNTED)}"
_LATER = (
    "INSERT INTO batches VALUES (?, ?) ON CONFLICT (sender) DO UPDATE SET last = excluded.last "
    "WHERE excluded.last > batches.last"
)


def _put(table: str, key: str, *others: str) -> str:
    """Return the statement that stores a row, in place of one with the same key."""
    columns = key, *others
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' for _ in columns)}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}"
    )


_KEY = _put("keys", "id", "name", "role", "hint", "made_s", "terms")
_MEMBER = _put("members", "account", "team")
_SECRET = _put("secrets", "digest", "key", "until_s")
_TEAM = _put("teams", "name", "quota")
_TERMS = _put("terms", "account", "terms")
_LEASE = _put("lease", "one", "holder", "until_s")


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
    """place: of its database; None: in memory, gone with this process."""

    def __init__(self, place: Place | None = None) -> None:
        """Raises LedgerError, as every call does."""
        self._name, self._leased = secrets.token_hex(8), False
        self._file = opened(place)

    def read(self, since: str = "") -> Books:
        """Return all that memory needs of the ledger, in one transaction. since: the first recent day."""
        with self._transaction(writes=False):
            last = dict(self._read("SELECT sender, last FROM batches"))
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
        rows = self._read(
            "SELECT id, name, role, terms, hint, made_s, COALESCE(team, '') FROM keys "
            "LEFT JOIN members ON id = account ORDER BY made_s"
        )
        return [
            Key(id, name, Role(role), msgspec.msgpack.decode(terms, type=Terms), *rest)
            for id, name, role, terms, *rest in rows
        ]

    def secrets(self) -> list[Secret]:
        """Return the keys' secrets."""
        return [
            Secret(*row) for row in self._read("SELECT digest, key, until_s FROM secrets ORDER BY digest")
        ]

    def terms(self) -> dict[str, Terms]:
        """Return the limits of accounts without a key."""
        rows = self._read("SELECT account, terms FROM terms")
        return {account: msgspec.msgpack.decode(terms, type=Terms) for account, terms in rows}

    def teams(self) -> list[Team]:
        """Return all teams, by name."""
        rows = self._read("SELECT name, quota FROM teams ORDER BY name")
        return [Team(name, msgspec.msgpack.decode(quota, type=Quota)) for name, quota in rows]

    def bills(self) -> list[Charge]:
        """Return the usage of each account with each device, of all days together."""
        rows = self._read(f"SELECT account, device, {SUMS} FROM usage GROUP BY account, device ORDER BY 1, 2")
        return [Charge(account, device, _bill(counted)) for account, device, *counted in rows]

    def spent(self, by: Literal["account", "team"], since: str) -> list[tuple[str, str, float]]:
        """Return (account or team, day, server's dollars) of each day from `since` on."""
        return list(
            self._read(
                f"SELECT {by}, day, SUM(server_usd_in + server_usd_out) FROM usage WHERE day >= ? AND day > '' "
                f"GROUP BY {by}, day ORDER BY 1, 2",
                (since,),
            )
        )

    def usage(self, query: UsageQuery) -> list[Usage]:
        """Return sums over all that the query does not group by, in the order of its groups."""
        where, given = ["day >= ?", "day <= ?"], [query.start, query.end]
        if query.account is not None:
            where, given = [*where, "account = ?"], [*given, query.account]
        groups = ", ".join(query.by)
        rows = self._read(
            f"SELECT {groups}, {SUMS} FROM usage WHERE {' AND '.join(where)} "
            f"GROUP BY {groups} ORDER BY {groups}",
            given,
        )
        count = len(query.by)
        return [Usage(tuple(row[:count]), _bill(row[count:])) for row in rows]

    def keep_key(self, key: Key, opens: Iterable[Secret] = ()) -> None:
        """Store a key that is new or has changed, and those of its secrets that have."""
        row = key.id, key.name, str(key.role), key.hint, key.made_s, msgspec.msgpack.encode(key.terms)
        with self._commit() as file:
            file.execute(_KEY, row)
            file.execute(_MEMBER, (key.id, key.team))
            file.executemany(_SECRET, opens)

    def drop_key(self, id: str) -> None:
        """Delete a revoked key; its usage stays."""
        with self._commit() as file:
            file.execute("DELETE FROM keys WHERE id = ?", (id,))
            file.execute("DELETE FROM secrets WHERE key = ?", (id,))

    def keep_team(self, team: Team) -> None:
        """Store a team that is new or has changed."""
        with self._commit() as file:
            row = team.name, msgspec.msgpack.encode(team.quota)
            file.execute(_TEAM, row)

    def drop_team(self, name: str) -> None:
        """Delete a team; its usage stays."""
        with self._commit() as file:
            file.execute("DELETE FROM teams WHERE name = ?", (name,))

    def keep_terms(self, account: str, terms: Terms) -> None:
        """Store the limits of an account without a key."""
        row = account, msgspec.msgpack.encode(terms)
        with self._commit() as file:
            file.execute(_TERMS, row)

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
        """Return whether another connection has written since this was asked last. Raises LedgerError."""
        with failures("the ledger cannot be read", self._file.errors):
            return self._file.changed_elsewhere()

    def close(self) -> None:
        self._file.close()

    def take_lease(self, until_s: float, free_s: float | None = None) -> bool:
        """Have no other service write from now on; return whether that is so.

        until_s: how long the lease holds unless it is taken again, seconds since the epoch.
        free_s: where given, the lease is taken only if it is this service's, or held until then at the longest.
        """
        with self._transaction(writes=True) as file:
            held = _lease(file)
            if free_s is not None and held.holder not in ("", self._name) and held.until_s > free_s:
                return False
            file.execute(_LEASE, (1, self._name, until_s))
        self._leased = True
        return True

    def free_lease(self) -> None:
        """Let any other service write from now on."""
        with self._transaction(writes=True) as file:
            file.execute("DELETE FROM lease WHERE holder = ?", (self._name,))

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a statement finds. Raises LedgerError."""
        with failures("the ledger cannot be read", self._file.errors):
            return self._file.execute(statement, values).fetchall()

    @contextmanager
    def _commit(self) -> Iterator[Database]:
        """Commit a transaction, whole or not at all, under the lease where one was taken. Raises LedgerError."""
        with self._transaction(writes=True) as file:
            if self._leased and _lease(file).holder != self._name:
                raise LeaseLost("another service has taken over the ledger")
            yield file

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Database]:
        what = "the ledger cannot be written" if writes else "the ledger cannot be read"
        with failures(what, self._file.errors), self._file.transaction(writes):
            yield self._file


def opened(place: Place | None) -> Database:
    """Return the database of a ledger, brought up to date. Raises LedgerError."""
    with failures(told(place), errors_at(place)):
        file = connected(place)
        try:
            upgrade(file)
            file.changed_elsewhere()
        except WrongVersion as error:
            file.close()
            raise LedgerError(f"{told(place)} {error}") from None
        except BaseException:
            file.close()
            raise
    return file


@contextmanager
def failures(what: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise LedgerError, which says what has failed, in place of a database's errors."""
    try:
        yield
    except errors as error:
        raise LedgerError(f"{what}: {str(error).strip()}") from None


class Lease(NamedTuple):
    """Permission to write. holder: service that has it, "" for none; until_s: seconds since the epoch."""

    holder: str
    until_s: float


def _lease(file: Database) -> Lease:
    found = file.execute("SELECT holder, until_s FROM lease").fetchone()
    return Lease("", 0.0) if found is None else Lease(*found)


def _bill(counted: Sequence[Any]) -> Bill:
    requests, *rest = counted
    return Bill(requests, Used(*rest[:4]), *rest[4:])


def _row(account: str, device: str, bill: Bill, mode: str, model: str, day: str) -> tuple[object, ...]:
    return account, day, mode, model, device, account, *_counts(bill)


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
