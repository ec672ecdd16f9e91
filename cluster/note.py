"""A note in Ray's cluster: bytes under a name, which outlive every process."""

from __future__ import annotations

from ray.exceptions import RayError
from ray.experimental import internal_kv


class NoteError(Exception):
    """Raised where Ray's store does not answer."""


class Note:
    """The calls block, for as long as Ray's store is away, and raise NoteError."""

    def __init__(self, name: str) -> None:
        self._key = name.encode()

    def read(self) -> bytes | None:
        """Return what was written last; None: nothing, or it was cleared."""
        try:
            found: bytes | None = internal_kv._internal_kv_get(self._key)
        except RayError as error:
            raise NoteError(str(error)) from None
        return found

    def write(self, data: bytes) -> None:
        """Replace what is there."""
        try:
            internal_kv._internal_kv_put(self._key, data)
        except RayError as error:
            raise NoteError(str(error)) from None

    def clear(self) -> None:
        """Remove what is there."""
        try:
            internal_kv._internal_kv_del(self._key)
        except RayError as error:
            raise NoteError(str(error)) from None
