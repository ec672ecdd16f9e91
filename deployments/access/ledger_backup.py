"""Copies of the ledger: made while a service writes it, checked, and put back. A copy is an SQLite file, wherever the
ledger is, so that a ledger can move from a file to a server."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.deployments.access.databases.base import Database
from tandem.deployments.access.databases.place import Place, errors_at, to_read, to_replace, told
from tandem.deployments.access.databases.sqlite import SqliteDatabase
from tandem.deployments.access.ledger_schema import COUNTED, SUMS, TABLES, VERSION, upgrade
from tandem.deployments.access.store import LedgerError, failures, opened

ROUNDING = 1e-6
"""Part of a sum that floating-point numbers may differ by, added in another order."""


class Content(NamedTuple):
    """Summary of a ledger: its version, keys, requests, and the server's dollars."""

    version: int
    keys: int
    requests: int
    usd: float


def check(place: Place) -> Content:
    """Return what a ledger has.

    Raises LedgerError where SQLite finds it damaged, its version is not known here, keys and secrets do not belong
    together, or usage is not what was counted beside it.
    """
    where = told(place)
    with _read(place) as ledger:
        if found := ledger.damage():
            raise LedgerError(f"{where} is damaged: {'; '.join(found[:3])}")
        version = ledger.version()
        if not 1 <= version <= VERSION:
            raise LedgerError(f"{where} is a ledger of version {version}; this is for version {VERSION}")
        for what, query in (
            ("secrets of no key", "SELECT key FROM secrets WHERE key NOT IN (SELECT id FROM keys)"),
            ("keys without a secret", "SELECT id FROM keys WHERE id NOT IN (SELECT key FROM secrets)"),
        ):
            if rows := ledger.execute(query).fetchall():
                raise LedgerError(f"{where} has {what}: {', '.join(name for (name,) in rows[:3])}")
        usage = _sums(ledger, "bills" if version == 1 else "usage")
        if ledger.has("totals"):
            for name, counted in _sums(ledger, "totals").items():
                if not math.isclose(
                    usage[name], counted, rel_tol=ROUNDING if "usd" in name else 0.0, abs_tol=1e-9
                ):
                    raise LedgerError(
                        f"{where}: {name} of all usage is {usage[name]:g}, and {counted:g} were counted"
                    )
        (keys,) = ledger.execute("SELECT COUNT(*) FROM keys").fetchone()
        usd = usage["server_usd_in"] + usage["server_usd_out"]
        return Content(version, keys, int(usage["requests"]), usd)


def back_up(ledger: Place, copy: Path) -> Content:
    """Copy a ledger, as it is at one moment, into a new file for its owner alone, and check the copy.

    A server may write it meanwhile. Raises LedgerError.
    """
    with _read(ledger) as source:
        if not isinstance(source, SqliteDatabase) and source.version() != VERSION:
            raise LedgerError(
                f"{told(ledger)} has no ledger of version {VERSION}, to which a server brings it"
            )
        try:
            copy.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            raise LedgerError(f"{copy} is there already, and no file is overwritten") from None
        except OSError as error:
            raise LedgerError(f"{copy}: {error}") from None
        try:
            if isinstance(source, SqliteDatabase):
                _copy(source, copy)
            else:
                _collect(source, copy)
            return check(copy)
        except BaseException:
            copy.unlink()
            raise


def restore(copy: Path, ledger: Place) -> Content:
    """Put a copy in a ledger's place, in one transaction. Raises LedgerError, also while a server has that open."""
    check(copy)
    with _read(copy) as source:
        assert isinstance(source, SqliteDatabase)
        if isinstance(ledger, str):
            _put(source, ledger)
        else:
            try:
                ledger.touch(mode=0o600)
            except OSError as error:
                raise LedgerError(f"{ledger}: {error}") from None
            _copy(source, ledger)
    return check(ledger)


def _put(source: SqliteDatabase, address: str) -> None:
    """Put a copy of any version in the place of a ledger at a server. Raises LedgerError."""
    with closing(SqliteDatabase(None)) as whole:
        source.connection.backup(whole.connection)
        upgrade(whole)
        with failures(told(address), errors_at(address)), closing(to_replace(address)) as target:
            upgrade(target)
            _transfer(whole, target)


def _collect(source: Database, copy: Path) -> None:
    """Copy a ledger at a server into an empty file. Raises LedgerError, and errors of its database."""
    with closing(opened(copy)) as target, source.transaction(writes=False):
        _transfer(source, target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file


def _transfer(source: Database, target: Database) -> None:
    """Have one ledger be as another one, in one transaction."""
    with target.transaction(writes=True):
        for table in ("lease", *TABLES):
            target.execute(f"DELETE FROM {table}")
        for table in TABLES:
            rows = source.execute(f"SELECT * FROM {table}").fetchall()
            if rows:
                values = ", ".join("?" for _ in rows[0])
                target.executemany(f"INSERT INTO {table} VALUES ({values})", rows)


def _copy(source: SqliteDatabase, path: Path) -> None:
    """Copy a ledger into a file that no process has open. Raises LedgerError."""
    try:
        with closing(sqlite3.connect(path, timeout=0.0)) as file:
            try:
                file.execute(
                    "PRAGMA journal_mode = DELETE"
                )  # one file; SQLite refuses if another process is there
            except sqlite3.OperationalError as error:
                raise LedgerError(f"a server has {path} open ({error}): stop it first") from None
            source.connection.backup(file)
            file.execute("PRAGMA journal_mode = DELETE")  # the copy has its source's
            if source.has("lease"):
                with file:
                    file.execute("DELETE FROM lease")
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from None


@contextmanager
def _read(place: Place) -> Iterator[Database]:
    """Open a ledger to be read. Raises LedgerError."""
    if isinstance(place, Path) and not place.is_file():
        raise LedgerError(f"there is no ledger {place}")
    with failures(told(place), errors_at(place)), closing(to_read(place)) as ledger:
        if isinstance(place, str) and not ledger.has("ledger"):
            raise LedgerError(f"there is no ledger {told(place)}")
        yield ledger


def _sums(ledger: Database, table: str) -> dict[str, float]:
    return dict(zip(COUNTED, ledger.execute(f"SELECT {SUMS} FROM {table}").fetchone(), strict=True))
