"""A note in Ray's cluster that keys guard an application's API: it outlives a change of the settings, which say where
the keys are."""

from __future__ import annotations

from ray.exceptions import RayError
from ray.experimental import internal_kv

from tandem.deployments.access.store import LedgerError


class GuardNote:
    """application: its name in Serve. The calls block, and raise LedgerError."""

    def __init__(self, application: str) -> None:
        self._key = f"tandem guarded: {application}".encode()

    def read(self) -> str | None:
        """The ledger whose keys guard the API; None if none do."""
        try:
            noted = internal_kv._internal_kv_get(self._key)
        except RayError as error:
            raise LedgerError(f"cannot read whether keys guard the API: {error}") from None
        return None if noted is None else noted.decode()

    def write(self, ledger: str | None) -> None:
        """Note what `read` says from now on."""
        try:
            if ledger is None:
                internal_kv._internal_kv_del(self._key)
            else:
                internal_kv._internal_kv_put(self._key, ledger.encode())
        except RayError as error:
            raise LedgerError(f"cannot note whether keys guard the API: {error}") from None
