"""Copies of the ledger: made while a service writes it, checked, and put back."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.deployments.access.ledger_schema import COUNTED, VERSION, version_of
from tandem.deployments.access.store import LedgerError

ROUNDING = 1e-6
"""Part of a sum that floating-point numbers may differ by, added in another order."""


class Content(NamedTuple):
    """Summary of a ledger: its version, keys, requests, and the server's dollars."""

    version: int
    keys: int
    requests: int
    usd: float


def check(path: Path) -> Content:
    """Return what a ledger has.

    Raises LedgerError where SQLite finds it damaged, its version is not known here, keys and secrets do not belong
    together, or usage is not what was counted beside it.
    """
    with _opened(path) as file:
        found = [text for (text,) in file.execute("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise LedgerError(f"{path} is damaged: {'; '.join(found[:3])}")
        version = version_of(file)
        if not 1 <= version <= VERSION:
            raise LedgerError(f"{path} is a ledger of version {version}; this is for version {VERSION}")
        for what, query in (
            ("secrets of no key", "SELECT key FROM secrets WHERE key NOT IN (SELECT id FROM keys)"),
            ("keys without a secret", "SELECT id FROM keys WHERE id NOT IN (SELECT key FROM secrets)"),
        ):
            if rows := file.execute(query).fetchall():
                raise LedgerError(f"{path} has {what}: {', '.join(name for (name,) in rows[:3])}")
        usage = _sums(file, "bills" if version == 1 else "usage")
        if _has(file, "totals"):
            for name, counted in _sums(file, "totals").items():
                if not math.isclose(
                    usage[name], counted, rel_tol=ROUNDING if "usd" in name else 0.0, abs_tol=1e-9
                ):
                    raise LedgerError(
                        f"{path}: {name} of all usage is {usage[name]:g}, and {counted:g} were counted"
                    )
        (keys,) = file.execute("SELECT COUNT(*) FROM keys").fetchone()
        usd = usage["server_usd_in"] + usage["server_usd_out"]
        return Content(version, keys, int(usage["requests"]), usd)


def back_up(ledger: Path, copy: Path) -> Content:
    """Copy a ledger, as it is at one moment, into a new file for its owner alone, and check the copy.

    A server may write it meanwhile. Raises LedgerError.
    """
    with _opened(ledger) as source:
        try:
            copy.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            raise LedgerError(f"{copy} is there already, and no file is overwritten") from None
        except OSError as error:
            raise LedgerError(f"{copy}: {error}") from None
        try:
            _copy(source, copy)
            return check(copy)
        except BaseException:
            copy.unlink()
            raise


def restore(copy: Path, ledger: Path) -> Content:
    """Put a copy in a ledger's place, in one transaction. Raises LedgerError, also while a server has that open."""
    check(copy)
    with _opened(copy) as source:
        try:
            ledger.touch(mode=0o600)
        except OSError as error:
            raise LedgerError(f"{ledger}: {error}") from None
        _copy(source, ledger)
    return check(ledger)


def _copy(source: sqlite3.Connection, path: Path) -> None:
    """Copy a ledger into a file that nobody has open. Raises LedgerError."""
    try:
        with closing(sqlite3.connect(path, timeout=0.0)) as file:
            try:
                file.execute(
                    "PRAGMA journal_mode = DELETE"
                )  # one file; SQLite refuses if another process is there
            except sqlite3.OperationalError as error:
                raise LedgerError(f"a server has {path} open ({error}): stop it first") from None
            source.backup(file)
            file.execute("PRAGMA journal_mode = DELETE")  # the copy has its source's
            if _has(file, "lease"):
                with file:
                    file.execute("DELETE FROM lease")
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger to be read. Raises LedgerError."""
    if not path.is_file():
        raise LedgerError(f"there is no ledger {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            yield file
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from None


def _has(file: sqlite3.Connection, table: str) -> bool:
    return file.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None


def _sums(file: sqlite3.Connection, table: str) -> dict[str, float]:
    sums = ", ".join(f"IFNULL(SUM({name}), 0)" for name in COUNTED)
    return dict(zip(COUNTED, file.execute(f"SELECT {sums} FROM {table}").fetchone(), strict=True))
