"""Memory of the ledgers of a folder's applications: another `ledger.path` does not open what keys have guarded.

While an application runs, its cluster remembers that (`deployments.access.guard_note`); a file does over its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tandem.deployments.access.databases.place import place_of
from tandem.deployments.access.keys import Keyring
from tandem.deployments.access.store import Ledger, LedgerError

DEFAULT_NAME = "default"
"""Serve's name for an application without one."""
NOTE = Path(".tandem") / "ledgers.json"
"""The ledger of each application that was started in this folder, by its name."""


def check_ledgers(deployment: Mapping[str, Any]) -> None:
    """Raise ValueError if keys have guarded an application of this Serve YAML, and would not guard it any more."""
    known = _known()
    for name, ledger in _ledgers(deployment):
        before = known.get(name)
        now = _place(ledger)
        if before in (None, now) or ledger.get("open") or not _guards(before):
            continue
        if not _guards(now):
            raise ValueError(
                f"ledger.path: keys in {before} have guarded the API, and there are none in "
                f"{now or 'memory'}: if everybody on this machine shall be an operator again, set "
                "ledger.open to true"
            )


def note_ledgers(deployment: Mapping[str, Any]) -> None:
    """Remember the ledgers of this Serve YAML."""
    NOTE.parent.mkdir(exist_ok=True)
    NOTE.write_text(json.dumps(_known() | {name: _place(ledger) for name, ledger in _ledgers(deployment)}))


def _known() -> dict[str, str | None]:
    return json.loads(NOTE.read_text()) if NOTE.exists() else {}


def _ledgers(deployment: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for each in deployment["applications"]:
        if ledger := each.get("args", {}).get("ledger"):  # `read` gives every Tandem one
            yield each.get("name", DEFAULT_NAME), ledger


def _place(ledger: Mapping[str, Any]) -> str | None:
    """Return where settings have a ledger."""
    return ledger.get("database") or ledger.get("path")


def _guards(text: str | None) -> bool:
    """Whether a ledger has keys that the API asks for. Raises ValueError if it cannot be read."""
    if text is None:
        return False
    place = place_of(text)
    if isinstance(place, Path):
        place = place.expanduser()
        if not place.exists():
            return False
    try:
        ledger = Ledger(place)
        try:
            return Keyring(ledger.keys(), ledger.secrets()).guards_api
        finally:
            ledger.close()
    except LedgerError as error:
        field = "path" if isinstance(place, Path) else "database"
        raise ValueError(f"ledger.{field}: {error}") from None
