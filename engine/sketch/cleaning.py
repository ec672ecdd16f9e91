"""Cleaning of what ordinary chat models write when they are asked for one sentence, or for a sketch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SHORTEST_REPEATED = 8
"""Characters of a sentence that is not said twice."""
_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_PREAMBLE = re.compile(
    r"\A\s*(?:(?:sure|certainly|of course|absolutely|ok(?:ay)?|great question)\b[^\n:.!]{0,80}(?:[:.!]|\n)\s*"
    r"|i(?:'m| am) sorry\b[^\n.!]{0,80}[.!]\s*|i apologi[sz]e\b[^\n.!]{0,80}[.!]\s*"
    r"|(?:here(?:'s| is| are)|below is|the (?:completed?|full|short) (?:sentence|answer)|(?:completed?|short) sentence"
    r"|sentence|answer)\b[^\n:]{0,80}:\s*)+",
    re.IGNORECASE,
)
_MARK = re.compile(r"\A\s*(?:[-*•]\s+|\(?\d{1,3}\s*[.):、．]\s*|#{1,6}\s+)")
_SENTENCE = re.compile(r".+?(?:[.!?]+[\"'”’)]*(?:\s+|\Z)|[。！？]+[”’」）]*\s*|\Z)", re.DOTALL)
_QUOTES = {'"': '"', "“": "”", "'": "'", "`": "`"}


def without_thoughts(text: str) -> str:
    """Return text without what a model thought between tags, also where the end tag is missing."""
    return _THOUGHTS.sub("", text)


def unmarked(line: str) -> str:
    """Return a line without its bullet, number or heading mark, and without bold."""
    return _MARK.sub("", line).replace("**", "").replace("__", "").strip()


def same(text: str) -> str:
    """Return what two texts have in common if they differ in case, space and punctuation alone."""
    return " ".join(re.findall(r"\w+", text.lower()))


def sentence_of(text: str, others: Iterable[str]) -> str:
    """Return one point's text of an answer: no thoughts, preamble, list mark or enclosing quotes, nothing twice, and
    none of the `others`, the notes of other points, which small models like to recite; nothing if it recites most."""
    recited = {same(other) for other in others} - {""}
    text = _PREAMBLE.sub("", without_thoughts(text).strip())
    lines = [line for line in text.split("\n\n")[0].splitlines() if same(unmarked(line)) not in recited]
    text = " ".join(unmarked(line) for line in lines).strip()
    text = _PREAMBLE.sub("", text)
    if sum(other in same(text) for other in recited) > max(1, len(recited) / 2):
        return ""
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    return "".join(_once(text)).strip()


def whole(text: str) -> str:
    """Return the whole sentences of a text that was broken off; empty if there is none."""
    ends = list(re.finditer(r"[.!?][\"'”’)]*(?=\s|\Z)|[。！？][”’」）]*", text))
    return text[: ends[-1].end()] if ends else ""


def _once(text: str) -> Iterator[str]:
    """Yield the sentences of a text, the repeated ones once. Abbreviations look like sentences, but are short."""
    seen = set[str]()
    for found in _SENTENCE.findall(text):
        key = same(found)
        if key in seen and len(key) >= SHORTEST_REPEATED:
            continue
        seen.add(key)
        yield found
