"""Reads a JSON object as it comes, a few characters at a time."""

from __future__ import annotations

import json

_OUTSIDE = frozenset('{}[],:"+-.0123456789eEtruefalsn \t\n\r')
"""Characters of JSON outside its strings."""


class ObjectScanner:
    """One JSON object. Its values are kept as they are written.

    raw: what it has read.
    values: text of each member's value so far, by key.
    complete: keys whose values are complete.
    done: whether the object is complete.
    failed: whether the text is no object.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.values: dict[str, str] = {}
        self.complete: set[str] = set()
        self.done = self.failed = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._string: list[str] = []
        self._key: str | None = None  # whose value is being read
        self._in_value = False

    def feed(self, text: str) -> str:
        """Read on, and return what is left after the object's end. A character that cannot be JSON fails it."""
        for at, character in enumerate(text):
            if self.done or self.failed:
                return text[at:]
            self.raw += character
            if self._in_string:
                self._read_in_string(character)
            else:
                self._read_outside(character)
        return ""

    def value(self, key: str) -> object:
        """Return a complete value, parsed; None if it is no JSON, is not complete or is not there."""
        try:
            return json.loads(self.values[key]) if key in self.complete else None
        except ValueError:
            return None

    def _read_in_string(self, character: str) -> None:
        self._string.append(character)
        self._keep(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1 and not self._in_value:
                self._take_key("".join(self._string))

    def _take_key(self, written: str) -> None:
        try:
            self._key = json.loads(written)
        except ValueError:
            self.failed = True

    def _read_outside(self, character: str) -> None:
        if character not in _OUTSIDE or (self._depth == 0 and character not in "{ \t\n\r"):
            self.failed = True
        elif self._depth == 1 and character in ",}":
            self._end_value()
            self._depth -= character == "}"
            self.done = character == "}"
        elif self._depth == 1 and character == ":" and not self._in_value:
            self._in_value = True
        else:
            self._keep(character)
            if character == '"':
                self._in_string, self._string = True, ['"']
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1

    def _keep(self, character: str) -> None:
        """Add a character to the value that is being read, without the spaces before it."""
        if self._in_value and self._key is not None:
            so_far = self.values.get(self._key, "")
            if so_far or not character.isspace():
                self.values[self._key] = so_far + character

    def _end_value(self) -> None:
        if self._in_value and self._key is not None:
            self.values[self._key] = self.values.get(self._key, "").rstrip()
            self.complete.add(self._key)
        self._key, self._in_value = None, False
