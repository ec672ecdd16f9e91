"""Tables of the ledger, and how older ones become them."""

from __future__ import annotations

from tandem.deployments.access.databases.base import Database

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
"""Upgrade from version 1, which had one row for all of an account's requests with a device."""
_FROM_2 = f"""{_TEAMS}
ALTER TABLE usage RENAME TO before;
{_USAGE}
INSERT INTO usage SELECT account, day, mode, model, device, '', requests, server_in, server_out, device_in, device_out,
    server_usd_in, server_usd_out, joules, device_usd FROM before;
DROP TABLE before;
"""
"""Upgrade from version 2, which had no teams."""
COUNTED = {
    "requests": "INTEGER",
    "server_in": "INTEGER",
    "server_out": "INTEGER",
    "device_in": "INTEGER",
    "device_out": "INTEGER",
    "server_usd_in": "REAL",
    "server_usd_out": "REAL",
    "joules": "REAL",
    "device_usd": "REAL",
}
"""Columns that are summed, and their types."""
_TOTALS = f"""
CREATE TABLE IF NOT EXISTS batches (sender TEXT PRIMARY KEY, last INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS lease (one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT, until_s REAL) STRICT;
CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY CHECK (one = 1), {
    ", ".join(f"{name} {kind}" for name, kind in COUNTED.items())
}) STRICT;
INSERT INTO totals SELECT 1, {
    ", ".join(f"COALESCE(SUM({name}), 0)" for name in COUNTED)
} FROM usage WHERE true
ON CONFLICT DO NOTHING;
"""
"""Tables younger than the version. Totals are counted beside usage, so that what is missing there is noticed."""
TABLES = ("keys", "secrets", "terms", "teams", "members", "usage", "batches", "totals")
"""Tables of which a copy has all rows."""
SUMS = ", ".join(
    f"CAST(COALESCE(SUM({name}), 0) AS BIGINT)" if kind == "INTEGER" else f"COALESCE(SUM({name}), 0.0)"
    for name, kind in COUNTED.items()
)
"""Sums of these columns. (PostgreSQL adds whole numbers up to a decimal one.)"""
_STEPS = {0: _TABLES + _TEAMS + _USAGE, 1: _FROM_1, 2: _FROM_2}
"""Statements that make the tables of this version, by the version before."""


class WrongVersion(Exception):
    """The ledger is of a version that is not known here."""


def upgrade(database: Database) -> None:
    """Bring the tables up to this version, in one transaction. Raises WrongVersion, and the database's errors."""
    with database.transaction(writes=True):
        version = database.version()
        if version not in (*_STEPS, VERSION):
            raise WrongVersion(f"is a ledger of version {version}; this is for version {VERSION}")
        database.upgrade(_STEPS.get(version, "") + _TOTALS, VERSION)
