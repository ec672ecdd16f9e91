"""Interface of a database, for statements that both SQLite and PostgreSQL take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Rows(Protocol):
    """Result of a statement. rowcount: number of rows that it has changed."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection to a database. Its calls block, and belong to one thread at a time.

    errors: exceptions that its calls raise.
    """

    errors: tuple[type[Exception], ...]

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        """Execute one statement, with `?` for each value; outside a transaction it is one of its own."""
        ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values."""
        ...

    def transaction(self, writes: bool) -> AbstractContextManager[None]:
        """Commit all or nothing of what is executed within; one that writes waits until no other one does. All that
        one reads is of one moment."""
        ...

    def has(self, table: str) -> bool:
        """Return whether there is a table of that name."""
        ...

    def version(self) -> int:
        """Return the version of the tables; 0 if there are none."""
        ...

    def upgrade(self, statements: str, version: int) -> None:
        """Execute these statements, which define tables as SQLite has them, and note the version; in a transaction."""
        ...

    def damage(self) -> list[str]:
        """Return what the database finds wrong with its own files, as far as it looks."""
        ...

    def changed_elsewhere(self) -> bool:
        """Return whether another connection has written since this was asked last."""
        ...

    def close(self) -> None: ...
