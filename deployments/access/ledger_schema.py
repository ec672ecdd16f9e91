"""Tables of the ledger, and how older ones become them."""

from __future__ import annotations

import sqlite3

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
COUNTED = (
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
"""Columns that are summed."""
_TOTALS = f"""
CREATE TABLE IF NOT EXISTS batches (sender TEXT PRIMARY KEY, last INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS lease (one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT, until_s REAL) STRICT;
CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY CHECK (one = 1), {
    ", ".join(f"{name} REAL" if "usd" in name or name == "joules" else f"{name} INTEGER" for name in COUNTED)
}) STRICT;
INSERT OR IGNORE INTO totals SELECT 1, {", ".join(f"IFNULL(SUM({name}), 0)" for name in COUNTED)} FROM usage;
"""
"""Tables younger than the version. Totals are counted beside usage, so that what is missing there is noticed."""
_STEPS = {0: _TABLES + _TEAMS + _USAGE, 1: _FROM_1, 2: _FROM_2}
"""Statements that make the tables of this version, by the version before."""


class WrongVersion(Exception):
    """The ledger is of a version that is not known here."""


def upgrade(file: sqlite3.Connection) -> None:
    """Bring the tables up to this version, in one transaction. Raises WrongVersion, sqlite3.Error."""
    version = version_of(file)
    if version not in (*_STEPS, VERSION):
        raise WrongVersion(f"is a ledger of version {version}; this is for version {VERSION}")
    file.executescript(
        f"BEGIN IMMEDIATE; {_STEPS.get(version, '')} {_TOTALS} PRAGMA user_version = {VERSION}; COMMIT;"
    )


def version_of(file: sqlite3.Connection) -> int:
    """Return the version of a file's tables; 0 if there are none."""
    (version,) = file.execute("PRAGMA user_version").fetchone()
    return int(version)
