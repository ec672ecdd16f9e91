"""Stand-ins: what is put in the place of private parts of a text, and taken out of an answer again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tandem.engine.privacy import patterns
from tandem.engine.privacy.names import NameLists, name_lists
from tandem.engine.privacy.patterns import Span

NAME = "name"
_BREAK = re.compile(r"[\n\r\t\"\\<>]")
"""Characters that no stand-in stands for: what it stands for may be written into JSON as it is."""


def find(text: str, names: NameLists) -> list[Span]:
    """Return the private parts of a text, in order; none overlaps another."""
    found, taken = list[Span](), bytearray(len(text))
    for begin, end, kind in (*patterns.find(text), *((*word, NAME) for word in names.find(text))):
        if not any(taken[begin:end]) and not _BREAK.search(text, begin, end):
            taken[begin:end] = b"\1" * (end - begin)
            found.append((begin, end, kind))
    return sorted(found)


class StandIns:
    """Stand-ins of one request, the same for the same part wherever it is: `<NAME_1>`, `<EMAIL_1>` and so on, numbered
    as the parts come, so that the next request of a chat, which begins with the same text, has the same."""

    def __init__(self, texts: Iterable[str], names: NameLists | None = None) -> None:
        """Look through the request's texts. names: lists of names; None: all there are."""
        self._stand_ins: dict[str, str] = {}
        kinds = Counter[str]()
        texts = list(texts)
        names = names or name_lists()
        written = set[str]().union(*(_STAND_IN.findall(text) for text in texts))
        for text in texts:
            for begin, end, kind in find(text, names):
                part = text[begin:end]
                while part not in self._stand_ins:
                    kinds[kind] += 1
                    stand_in = f"<{kind.upper()}_{kinds[kind]}>"
                    if stand_in not in written:
                        self._stand_ins[part] = stand_in
        self._parts = {stand_in: part for part, stand_in in self._stand_ins.items()}
        self._hidden = _any_of(self._stand_ins)
        self._shown = _any_of(self._parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of different parts that are replaced, by kind."""
        return Counter(stand_in[1:].split("_")[0].lower() for stand_in in self._parts)

    def hide(self, text: str) -> str:
        """Return a text of the request with stand-ins."""
        return self._hidden.sub(lambda found: self._stand_ins[found.group()], text)

    def show(self, text: str) -> str:
        """Return a text with what its stand-ins stand for."""
        return self._shown.sub(lambda found: self._parts[found.group()], text)

    def unfinished(self, text: str) -> int:
        """Return how many of a text's last characters may be the beginning of a stand-in."""
        begin = text.rfind("<")
        end = text[begin:] if begin >= 0 else ""
        return len(end) if end and any(part.startswith(end) and part != end for part in self._parts) else 0


class Restorer:
    """Puts back what stand-ins stand for, in one text that comes piece by piece."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins, self._held = stand_ins, ""

    def push(self, text: str) -> str:
        """Take in the next piece; return what is certain of the text so far, and was not returned before."""
        text = self._held + text
        certain = len(text) - self._stand_ins.unfinished(text)
        self._held = text[certain:]
        return self._stand_ins.show(text[:certain])

    def flush(self) -> str:
        """Return the rest, as the text has ended."""
        held, self._held = self._held, ""
        return held


_STAND_IN = re.compile(r"<[A-Z]+_\d+>")
_NEVER = re.compile(r"(?!)")


def _any_of(parts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of these parts where they are no part of a longer word, the longest first."""
    escaped = list(_bounded(sorted(parts, key=len, reverse=True)))
    return re.compile("|".join(escaped)) if escaped else _NEVER


def _bounded(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        before = r"(?<!\w)" if part[0].isalnum() else ""
        after = r"(?!\w)" if part[-1].isalnum() else ""
        yield before + re.escape(part) + after
