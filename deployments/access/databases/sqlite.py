"""A ledger in an SQLite file, in WAL mode: each call's writes survive every process (a power cut may lose the last
moments), and others may read concurrently."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class SqliteDatabase:
    """See `Database`."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def __init__(self, path: Path | None) -> None:
        """path: its file, made where there is none, but not its folder: a misspelt path would be an empty ledger.
        None: in memory, gone with this process."""
        if path is not None:
            path.touch(mode=0o600)
        self.connection = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=10.0)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self._path, self._seen = path, self._data_version()

    @classmethod
    def reading(cls, path: Path) -> SqliteDatabase:
        """Return the database in an existing file, to be read only."""
        database = cls.__new__(cls)
        database.connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        database._path, database._seen = path, 0
        return database

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(statement, rows)

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[None]:
        with self.connection:
            self.connection.execute(f"BEGIN {'IMMEDIATE' if writes else 'DEFERRED'}")
            yield

    def has(self, table: str) -> bool:
        return self.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None

    def version(self) -> int:
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def upgrade(self, statements: str, version: int) -> None:
        for statement in statements.split(";"):
            self.execute(statement)
        self.execute(f"PRAGMA user_version = {version}")
        if self._path is not None:
            _close_to_others(self._path)

    def damage(self) -> list[str]:
        found = [str(text) for (text,) in self.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def changed_elsewhere(self) -> bool:
        before, self._seen = self._seen, self._data_version()
        return self._seen != before

    def close(self) -> None:
        self.connection.close()

    def _data_version(self) -> int:
        return int(self.execute("PRAGMA data_version").fetchone()[0])


def _close_to_others(path: Path) -> None:
    """Leave an existing ledger, and what SQLite keeps beside it, to its owner alone. Raises OSError."""
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)
