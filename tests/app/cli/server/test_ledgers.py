"""Another ledger does not open what keys have guarded, also over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.app.cli.server.ledgers import check_ledgers, note_ledgers
from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.databases.place import Place, place_of
from tandem.deployments.access.keys import Key, Role, Secret
from tandem.deployments.access.store import Ledger
from tests.postgres import running

TERMS = Terms(0.5, 1e-7)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ledger(path: Place, role: Role | None = None) -> str:
    """Write a ledger with a key of this role."""
    file = Ledger(path)
    if role is not None:
        key = Key("key-1", "boss", role, TERMS, "abcd", 1.0)
        file.keep_key(key, [Secret("digest", "key-1", 1e12)])
    file.close()
    return str(path)


def deployment(path: str | None, **settings: Any) -> dict[str, Any]:
    other = {"name": "other", "import_path": "other:app", "args": {}}
    ours = {"name": "tandem", "import_path": "ours", "args": {"ledger": {"path": path, **settings}}}
    return {"applications": [other, ours]}


def test_it_stays_locked_unless_told_aloud(folder: Path) -> None:
    guarding, empty = ledger(folder / "keys.sqlite", Role.OPERATOR), ledger(folder / "empty.sqlite")
    check_ledgers(deployment(empty))  # nothing was before
    note_ledgers(deployment(guarding))
    check_ledgers(deployment(guarding))
    for other in (empty, str(folder / "none.sqlite"), None):
        with pytest.raises(
            ValueError, match=f"keys in {guarding} have guarded .*{other or 'memory'}: .*ledger.open"
        ):
            check_ledgers(deployment(other))
        check_ledgers(deployment(other, open=True))
    assert not (folder / "none.sqlite").exists()
    check_ledgers(deployment(ledger(folder / "others.sqlite", Role.OPERATOR)))


def test_what_was_open_may_stay_so(folder: Path) -> None:
    note_ledgers(deployment(ledger(folder / "device.sqlite", Role.DEVICE)))
    check_ledgers(deployment(None))
    note_ledgers(deployment(None))
    check_ledgers(deployment(str(folder / "new.sqlite")))


def test_a_ledger_that_is_none_is_named(folder: Path) -> None:
    note_ledgers(deployment(ledger(folder / "keys.sqlite", Role.OPERATOR)))
    (folder / "notes.txt").write_text("no database, but long enough to be read as one " * 30)
    with pytest.raises(ValueError, match=r"^ledger\.path: .*notes\.txt"):
        check_ledgers(deployment(str(folder / "notes.txt")))


@pytest.mark.slow
def test_a_ledger_at_a_server_guards_as_one_in_a_file(folder: Path) -> None:
    with running() as server:
        guarding, empty = server.database(), server.database()
        ledger(place_of(guarding), Role.OPERATOR)
        note_ledgers(deployment(None, database=guarding))
        check_ledgers(deployment(None, database=guarding))
        for place in ({"path": "none.sqlite"}, {"path": None, "database": empty}):
            with pytest.raises(ValueError, match="keys in postgresql://.* have guarded"):
                check_ledgers(deployment(**place))
    with pytest.raises(ValueError, match=r"^ledger\.database: postgresql://"):
        check_ledgers(deployment(None, database=empty))
