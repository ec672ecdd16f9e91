"""Server-sent events from bytes as they come (WHATWG, HTML, section 9.2)."""

from __future__ import annotations

LONGEST_BYTES = 4 * 2**20
"""Most bytes of an event."""


class BrokenStream(Exception):
    """The bytes are no event stream."""


class EventParser:
    """Splits at line ends alone: JSON may hold characters at which `str.splitlines` would break it."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def push(self, data: bytes) -> list[str]:
        """Return the data of the events that these bytes complete. Raise BrokenStream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(self._event())
        if len(self._rest) + sum(map(len, self._data)) > LONGEST_BYTES:
            raise BrokenStream(f"an event is longer than {LONGEST_BYTES} bytes")
        return events

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._rest.strip() or self._data)

    def _event(self) -> str:
        data, self._data = b"\n".join(self._data), []
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BrokenStream(f"an event is no UTF-8: {error}") from None
