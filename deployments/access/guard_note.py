"""A note in Ray's cluster that keys guard an application's API: it outlives a change of the settings, which say where
the keys are."""

from __future__ import annotations

from tandem.cluster.note import Note, NoteError
from tandem.deployments.access.store import LedgerError


class GuardNote:
    """application: its name in Serve. The calls block, and raise LedgerError."""

    def __init__(self, application: str) -> None:
        self._note = Note(f"tandem guarded: {application}")

    def read(self) -> str | None:
        """The ledger whose keys guard the API; None if none do."""
        try:
            noted = self._note.read()
        except NoteError as error:
            raise LedgerError(f"cannot read whether keys guard the API: {error}") from None
        return None if noted is None else noted.decode()

    def write(self, ledger: str | None) -> None:
        """Note what `read` says from now on."""
        try:
            if ledger is None:
                self._note.clear()
            else:
                self._note.write(ledger.encode())
        except NoteError as error:
            raise LedgerError(f"cannot note whether keys guard the API: {error}") from None
