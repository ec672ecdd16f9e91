"""Names of people in a text: words of the lists that the package Faker keeps for 95 countries and languages, and what
stands beside them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from calendar import day_name, month_name
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import available_timezones

_WORD = re.compile(r"\b[^\W\d_]+(?:['’-][^\W\d_]+)*\b")
_LETTERS = re.compile(r"[^\W\d_]+")
_GAP = re.compile(r" (?:[A-Z]\. |(?:van|von|de|der|den|del|della|di|da|dos|la|le|bin|al|zu) ){0,3}|-")
"""Text between two words of a name: a space, initials and particles."""
_CUE = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Miss|Mx|Dr|Prof|Herr|Frau|Mme|Mlle|Monsieur|Madame|Señora?|Sra?|Signora?|Professor|Doctor)\.? "
    r"|\b(?:[Nn]ame is|[Nn]amed|Dear|Hi|Hello|Regards,|[Ss]igned,?|I am|I'm|Ich bin|[Ii]ch heiße|[Jj]e m'appelle"
    r"|[Mm]e llamo|[Mm]i chiamo) )$"
)
"""End of a text that a name follows."""
_NO_NAME = frozenset(("Sir", "Madam", "Customer", "Team", "All", "Everyone", "Friend", "Colleagues", "There"))
"""Words behind a cue that are no names."""
_PEOPLES = (
    "german",
    "roman",
    "christian",
    "muslim",
    "jewish",
    "english",
    "french",
    "spanish",
    "italian",
    "dane",
)
"""Words for peoples and faiths that some list has as names."""
_SENTENCE = re.compile(r"(?:^|[.!?:;…\n\"“”(\[*•>-])[\s\"'“‘(*-]*$")
"""End of a text behind which any word begins with a capital."""
_FIRST, _LAST = ("first_name", "prefix_first"), ("last_name",)
_LONGEST = 3
"""Words of the longest name behind a cue."""


class _Word(NamedTuple):
    begin: int
    end: int
    text: str


class NameLists:
    """Lists of first and last names, with the number of lists that have each.

    common: words that mean something else as well, or places; in lower case.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        """Load the lists. without: countries and languages whose lists are left out, as "pl_PL"."""
        self.first, self.last = Counter[str](), Counter[str]()
        for locale, provider in _providers("person"):
            if locale not in without:
                self.first.update(set(_words(provider, _FIRST)))
                self.last.update(set(_words(provider, _LAST)))
        self.common = _common()

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each word of a name, in order."""
        lower = frozenset(re.findall(r"\b[a-zà-ÿ]+\b", text))
        for run in _runs(text):
            for word in self._names(text, run, lower):
                yield word.begin, word.end

    def _names(self, text: str, run: list[_Word], lower: Collection[str]) -> Iterator[_Word]:
        for at, word in enumerate(run):
            if word.text not in _NO_NAME and _CUE.search(_before(text, word)) and self._may_be(word.text):
                yield from self._unannounced(text, run[:at], lower)
                yield from run[at : at + _LONGEST]
                return
        yield from self._unannounced(text, run, lower)

    def _unannounced(self, text: str, run: list[_Word], lower: Collection[str]) -> Iterator[_Word]:
        initial = bool(run) and bool(_SENTENCE.search(_before(text, run[0])))
        at = 0
        while at < len(run):
            taken = self._taken(run[at:], initial and at == 0, lower)
            yield from run[at : at + taken]
            at += taken or 1

    def _may_be(self, word: str) -> bool:
        return word in self.first or word in self.last or word.lower() not in self.common

    def _taken(self, run: list[_Word], initial: bool, lower: Collection[str]) -> int:
        """Return how many of the first words are a name; 0 if none is.

        initial: whether the first word would have its capital anyway.
        """
        word = _cased(run[0].text)
        following = [_cased(each.text) for each in run[1:_LONGEST]]
        ordinary = word.lower() in self.common or word.lower() in lower
        if following and word in self.first:
            unlisted = not (ordinary and initial) and not self._is_ordinary(following[0], lower)
            if unlisted or following[0] in self.last:
                return 3 if len(following) > 1 and following[1] in self.last else 2
        if ordinary or run[0].text != word or len(word) < 3:
            return 0
        if not initial and following and not self._is_ordinary(following[0], lower):
            return 2  # of no list, and no other words either
        known = self.first[word] + self.last[word]
        return int(known > 1 if initial else known > 0)

    def _is_ordinary(self, word: str, lower: Collection[str]) -> bool:
        return word.lower() in self.common or word.lower() in lower or word.isupper()


@cache
def name_lists() -> NameLists:
    """Return all lists, loaded once."""
    return NameLists()


def _runs(text: str) -> Iterator[list[_Word]]:
    """Yield the words with capitals that stand beside each other."""
    run: list[_Word] = []
    for found in _WORD.finditer(text):
        word = _Word(found.start(), found.end(), found.group())
        if word.text[-2:] in ("'s", "’s"):
            word = _Word(word.begin, word.end - 2, word.text[:-2])
        if len(word.text) < 2 or not word.text[0].isupper():
            continue
        if run and not _GAP.fullmatch(text, run[-1].end, word.begin):
            yield run
            run = []
        run.append(word)
    if run:
        yield run


def _before(text: str, word: _Word) -> str:
    """Return the text before a word, as far as it tells anything."""
    return text[max(0, word.begin - 32) : word.begin]


def _cased(word: str) -> str:
    """Return a word as the lists have it."""
    return word.title() if word.isupper() and len(word) > 2 else word


def _providers(kind: str) -> Iterator[tuple[str, Any]]:
    """Yield (locale, provider) of Faker's data of a kind."""
    package = importlib.import_module(f"faker.providers.{kind}")
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            yield module.name, importlib.import_module(f"{package.__name__}.{module.name}").Provider


def _words(provider: Any, kinds: Iterable[str]) -> Iterator[str]:
    """Yield the words of a provider's lists of these kinds."""
    for attribute in dir(provider):
        if attribute.startswith(tuple(kinds)):
            found = getattr(provider, attribute)
            if isinstance(found, list | tuple | dict):
                for name in found:
                    yield from (word for word in str(name).split() if word[:1].isupper() and len(word) > 1)


@cache
def _common() -> frozenset[str]:
    """Return words that are names at times only: those of Faker's filling texts, occupations, countries and states, of
    the calendar, and cities that time zones are called after."""
    found = {word.lower() for word in (*month_name, *day_name, *_PEOPLES)}
    for kind, attribute in (
        ("lorem", "word_list"),
        ("job", "jobs"),
        ("address", "countries"),
        ("address", "states"),
    ):
        for _, provider in _providers(kind):
            for entry in getattr(provider, attribute, ()):
                found.update(_LETTERS.findall(str(entry).lower()))
    for zone in available_timezones():
        found.update(_LETTERS.findall(zone.lower()))
    return frozenset(found)
