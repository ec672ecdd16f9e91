"""Contents of requests, as far as small models answer some better than others: code, forms, numbers."""

from __future__ import annotations

import re

READ = 2000
"""Characters of a text that are looked at: its last ones."""
CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+[:(]|#include|\bfunction\b.*[({]|[;{}]\s*\n|\breturn\b .*\n|SELECT .* FROM"
)
DIGITS = 6
"""Digits in a text from which on it is about numbers."""


def content_of(text: str, formed: bool = False) -> str:
    """Return a request's content: "form", "code", "numbers", or "" for any other.

    formed: whether the answer has a form, by a grammar.
    """
    if formed:
        return "form"
    text = text[-READ:]
    if CODE.search(text):
        return "code"
    return "numbers" if sum(map(str.isdigit, text)) >= DIGITS else ""
