"""Tokens to text as they come: incremental decoding, stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tandem.engine.base import InvalidRequest


class Spelling(Protocol):
    """The bytes of tokens, as `engine.text.tokenizer.Tokenizer` has them."""

    def shown_bytes(self, ids: Iterable[int], /) -> bytes:
        """Return the bytes of these tokens; special tokens have none."""
        ...


class Detokenizer:
    """Decodes output tokens as they come, never half a character. However the tokens are split into pushes, the joined
    pieces are `Tokenizer.decode` of all."""

    def __init__(self, spelling: Spelling) -> None:
        self._shown_bytes = spelling.shown_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(self._shown_bytes(ids))

    def flush(self) -> str:
        """Return U+FFFD if the output ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Cuts text before the first stop string to be completed, whatever the pieces it arrives in.

    Of several completed by the same character, the longest counts. Text that may be the beginning of a stop string is
    held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Return text that is safe to send, and whether a stop string was met. After one, no more text is returned."""
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at + len(s), -len(s)) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            end, minus_length = min(found)
            self._held, self._stopped = "", True
            return text[: end + minus_length], True
        safe = len(text) - unfinished_length(text, self._stops)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """Return the text held back, at the end of an output that met no stop string."""
        held, self._held = self._held, ""
        return held


Watch = Callable[[], tuple[Detokenizer, StopStrings]]
"""Begins to watch an output for its stop strings."""


def watch_for(stop: Sequence[str], spelling: Spelling | None) -> Watch | None:
    """Return what watches an output for these stop strings; None if there are none. Raises InvalidRequest where the
    spelling of tokens is unknown."""
    if not stop:
        return None
    if spelling is None:
        raise InvalidRequest("stop strings need an engine with a tokenizer")
    return lambda: (Detokenizer(spelling), StopStrings(stop))


def unfinished_length(text: str, strings: Iterable[str]) -> int:
    """Return the length of the longest end of `text` that begins one of `strings` without being all of it."""
    ends = (n for s in strings for n in range(min(len(s) - 1, len(text)), 0, -1) if text.endswith(s[:n]))
    return max(ends, default=0)
