"""Tokens to text where a notation's special tokens are part of the text."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.engine.base import InvalidRequest
from tandem.engine.text.tokenizer import Tokenizer


class MarkedSpelling:
    """A tokenizer's spelling that shows some special tokens by their names."""

    def __init__(self, tokenizer: Tokenizer, marks: Iterable[str]) -> None:
        """marks: names; those that the vocabulary lacks are left out."""
        self._tokenizer = tokenizer
        self._marks = {}
        for name in marks:
            try:
                self._marks[tokenizer.special_id(name)] = name.encode()
            except InvalidRequest:
                continue

    def shown_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of these tokens."""
        return b"".join(self._marks.get(i) or self._tokenizer.shown_bytes([i]) for i in ids)
