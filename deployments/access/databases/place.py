"""Places that a ledger may be in: a file, or a database at a server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tandem.deployments.access.databases.base import Database
from tandem.deployments.access.databases.sqlite import SqliteDatabase

Place = Path | str
"""A file's path, or the address of a PostgreSQL database, see `is_address`."""
SCHEMES = ("postgresql", "postgres")


def is_address(text: str) -> bool:
    """Return whether a text is the address of a database, and no path."""
    return urlsplit(text).scheme in SCHEMES


def has_password(address: str) -> bool:
    """Return whether there is a password in an address."""
    parts = urlsplit(address)
    return bool(parts.password) or "password" in parse_qs(parts.query)


def place_of(text: str) -> Place:
    """Return the place that a text names."""
    return text if is_address(text) else Path(text)


def told(place: Place | None) -> str:
    """Return a place as messages name it: without what follows the address's name of the database."""
    if not isinstance(place, str):
        return str(place or "memory")
    return place.partition("?")[0]


def connected(place: Place | None) -> Database:
    """Return a connection to the database there; None: to one in memory. Raises its errors."""
    if isinstance(place, str):
        from tandem.deployments.access.databases.postgres import PostgresDatabase

        return PostgresDatabase(place)
    return SqliteDatabase(place)


def to_read(place: Place) -> Database:
    """Return a connection to an existing ledger, to be read only. Raises FileNotFoundError, and its errors."""
    if isinstance(place, str):
        from tandem.deployments.access.databases.postgres import PostgresDatabase

        return PostgresDatabase(place, make=False)
    return SqliteDatabase.reading(place)


def to_replace(address: str) -> Database:
    """Return a connection to a ledger that no service has open, or may open meanwhile. Raises its errors."""
    from tandem.deployments.access.databases.postgres import PostgresDatabase

    return PostgresDatabase(address, alone=True)


def errors_at(place: Place | None) -> tuple[type[Exception], ...]:
    """Return the errors of the database there."""
    if isinstance(place, str):
        from tandem.deployments.access.databases.postgres import PostgresDatabase

        return PostgresDatabase.errors
    return SqliteDatabase.errors
