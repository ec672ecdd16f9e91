"""A ledger in a PostgreSQL database, where services on any machine reach it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import psycopg

LOCK = int.from_bytes(b"tandem")
"""Advisory lock that services share, and that who restores a ledger has for itself."""
LIMITS: dict[str, Any] = {
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 10_000,  # milliseconds
    "options": "-c statement_timeout=10s -c idle_in_transaction_session_timeout=10s",
}
"""Time limits, after which a server that says nothing counts as away."""
_WORDS = {
    r"\bBLOB\b": "BYTEA",
    r"\bREAL\b": "DOUBLE PRECISION",
    r"\bINTEGER\b": "BIGINT",
    r"\bTEXT\b": 'TEXT COLLATE "C"',
    r"\) STRICT(, WITHOUT ROWID)?": ")",
}
"""Words in definitions of tables, in place of SQLite's."""
_NOTE = """
CREATE TABLE IF NOT EXISTS ledger (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER, changes BIGINT);
INSERT INTO ledger VALUES (1, 0, 0) ON CONFLICT DO NOTHING;
"""
"""Version of the tables, and the number of transactions that have written; each locks the row to add itself."""


class InUse(psycopg.OperationalError):
    """A service has the ledger open, or somebody restores it."""


class PostgresDatabase:
    """See `Database`. A connection that breaks is made anew by the next call."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, address: str, make: bool = True, alone: bool = False) -> None:
        """make: have a ledger there. alone: refuse one that a service has open, and let none open it."""
        self._address, self._alone = address, alone
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = self._within = self._others = False
        self._seen = 0
        if make:
            with self._begun() as connection:
                self.execute("SELECT pg_advisory_xact_lock(?)", (LOCK + 1,))  # one at a time makes tables
                connection.execute(_NOTE)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return self._alive().execute(_in_its_words(statement), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._alive().cursor().executemany(_in_its_words(statement), rows)

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[None]:
        with self._begun():
            if not writes:
                self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                yield
                return
            (changes,) = self._row("UPDATE ledger SET changes = changes + 1 RETURNING changes")
            yield
        self._others |= changes != self._seen + 1
        self._seen = changes

    @contextmanager
    def _begun(self) -> Iterator[psycopg.Connection[Any]]:
        """Begin a transaction, whose connection is not replaced if it breaks."""
        connection = self._alive()
        with connection.transaction():
            self._within = True
            try:
                yield connection
            finally:
                self._within = False

    def has(self, table: str) -> bool:
        return self.execute("SELECT to_regclass(?)", (table,)).fetchone() != (None,)

    def version(self) -> int:
        return int(self._row("SELECT version FROM ledger")[0]) if self.has("ledger") else 0

    def upgrade(self, statements: str, version: int) -> None:
        for word, its in _WORDS.items():
            statements = re.sub(word, its, statements)
        self._alive().execute(statements)
        self.execute("UPDATE ledger SET version = ?", (version,))

    def damage(self) -> list[str]:
        return []

    def changed_elsewhere(self) -> bool:
        now = self._changes()
        others, self._others = self._others or now != self._seen, False
        self._seen = now
        return others

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            # The server ends the session, and its locks, only some time after it was closed.
            with suppress(psycopg.Error):
                self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._connection.close()

    def _changes(self) -> int:
        return int(self._row("SELECT changes FROM ledger")[0])

    def _row(self, statement: str) -> Any:
        return self.execute(statement).fetchone()

    def _alive(self) -> psycopg.Connection[Any]:
        """Return the connection, or a new one. Raises psycopg.Error."""
        if self._closed:
            raise psycopg.InterfaceError("the connection was closed")
        if self._connection is None or (self._connection.closed and not self._within):
            self._connection = psycopg.connect(self._address, autocommit=True, **LIMITS)
            lock = "pg_try_advisory_lock" if self._alone else "pg_try_advisory_lock_shared"
            (free,) = self._connection.execute(f"SELECT {lock}(%s)", (LOCK,)).fetchone() or (False,)
            if not free:
                self._connection.close()
                raise InUse("a server has it open: stop it first" if self._alone else "it is being restored")
        return self._connection


@cache
def _in_its_words(statement: str) -> Any:
    """Return a statement with placeholders as psycopg has them."""
    return statement.replace("?", "%s")
