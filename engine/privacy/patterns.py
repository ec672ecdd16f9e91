"""Private parts by their form: addresses, and numbers of telephones, accounts, cards and machines."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address

from phonenumbers import Leniency, PhoneNumberMatcher
from stdnum import iban, luhn

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,}")
_IP = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7})(?![\w:]|\.\d)"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")
_YEARS = re.compile(r"(?:1\d|20)\d\d ?[-–/] ?(?:(?:1\d|20)\d\d|\d\d)")
_DATE = re.compile(r"\d{4}([-./])\d{1,2}\1\d{1,2}|\d{1,2}([-./])\d{1,2}\2(?:\d{2}|\d{4})")
_NUMBER = re.compile(
    r"(?<![\w.,/-])(?:\d{2,}(?:-\d{2,}){1,4}(?:x\d{1,5})?|[A-Z]{0,3}\d{7,}[A-Z]?|[A-Z]{2}(?: ?\d\d){3} ?[A-Z]"
    r"|(?=(?:[A-Z]*\d){4})(?=\d*[A-Z])[A-Z\d]{8,20})(?![\w/-]|[.,]\d)"
)
_PHONE = re.compile(  # in a country's own form: 01632 960605, (0121) 496 0878, 605 985 618, 22 938 75 58
    r"(?<![\w.,/-])(?:\(?0\d{1,5}\)?(?:[ /-]{0,2}\d{2,8}){1,5}|\d{3} \d{3} \d{3}|\d\d \d{3} \d\d \d\d)"
    r"(?![\w/-]|[.,]\d)"
)
_PHONE_REGION = "US"
"""Region of telephone numbers without a country's code: the matcher takes all that could be one somewhere."""
_PHONE_DIGITS, _NUMBER_DIGITS = range(8, 16), 6
"""Digits of telephone numbers, and the fewest of others."""

_WORD = r"[^\W\d_](?:\w{0,2}\.|[\w'’-]{0,30})"
_STREETS = (
    # 221B Baker Street, 4 rue de la Paix
    r"\d{1,5}[A-Za-z]?(?:[-/]\d+)?,? (?:%(word)s ){1,3}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd"
    r"|Court|Ct|Place|Pl|Square|Sq|Way|Terrace|Close|Crescent|Parkway|Pkwy|Highway|Hwy|Gardens|Grove|Row|Walk|Hill"
    r"|Mews|Trail|Circle|Alley|Plaza|Route)\b\.?(?:,? (?:Apt|Apartment|Suite|Unit|Flat|Floor)\.? ?#?\w+)?",
    r"\d{1,4}(?: ?bis| ?ter)?,? (?:rue|avenue|boulevard|place|chemin|allée|quai|impasse|cours|route)"
    r"(?: (?:d'|de |du |des |de la |de l'|la |le |les ))? ?%(word)s(?:[ -](?:de |du |des )?[A-ZÀ-Ý][\w'’]{0,30}){0,3}",
    # Lindenstraße 12, Am Markt 3, Kerkstraat 5-7, Storgatan 1
    r"[A-ZÀ-Ý][\w-]{0,40}(?:[Ss]tra(?:ß|ss)e|[Ss]tr\.|weg|platz|gasse|allee|ring|damm|ufer|straat|laan|plein|gracht|kade"
    r"|gatan|gata|vägen|veien|vej|gade|katu|tie) \d{1,4} ?[a-zA-Z]?(?:[-/]\d+)?\b",
    r"(?:Am|An der|An den|Im|In der|Auf dem|Zum|Zur|Unter den) [A-ZÄÖÜ][\w-]{1,30} \d{1,4}[a-z]?\b",
    r"(?:[A-ZÄÖÜ][\w.]{0,30}[ -]){1,3}(?:Straße|Str\.|Platz|Allee|Weg|Ring) \d{1,4}[a-z]?\b",
    # Calle Mayor 5, Via Roma, 12, ul. Długa 7
    r"(?:Calle|C/|Avenida|Avda\.|Av\.|Plaza|Paseo|Carrer|Via|Viale|Piazza|Corso|Vicolo|Rua|Travessa|Praça|Largo"
    r"|ul\.|ulica|al\.) (?:(?:de|del|della|dei|di|da|do|dos|la|las|los|el|e|y|i) ){0,2}"
    r"%(word)s(?: (?:de |del |la )?[^\W\d_][\w'’.]{0,30}){0,3},? (?:n\.? ?º? ?)?\d{1,4}(?:[-/]\d+)?\b",
)
_CAPITAL = (
    r"[^\W\d_a-zß-öø-ÿ](?:\w{0,2}\.|[\w'’]{0,30})"  # a full stop is an abbreviation's, or ends the place
)
_MORE = (
    r"(?:[ -](?:(?:de|del|della|di|da|do|dos|la|le|las|los|der|den|am|an|sur|les|lès|aan|i|y|en) ){0,2}"
    rf"{_CAPITAL}){{0,4}}"
)
"""Further words of a place, and particles before them."""
_UK = r"[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}"
_HOUSE = (
    rf"(?:(?:{_CAPITAL}|ul\.|ulica|plac|al\.|rue){_MORE},? \d{{1,4}} ?[a-z]?(?:[-/]\d+)?(?: {_CAPITAL} \w{{1,4}})?"
    rf"|\d{{1,5}}[A-Za-z]?,? {_WORD}{_MORE}(?:,? (?:Apt|Apartment|Suite|Unit|Flat|Floor)\.? ?#?\w+)?)"
)
_TOWN = (
    rf"(?:(?:\d{{5}}|\d\d-\d{{3}}|\d{{4}} ?[A-Z]{{2}}|(?!19|20)\d{{4}}),?\s{_CAPITAL}{_MORE}(?: \([A-Z]{{2}}\))?"
    rf"|{_CAPITAL}{_MORE},? (?:[A-Z]{{2}} )?\d{{5}}(?:-\d{{4}})?)"
)
_ADDRESS = re.compile(
    "|".join(
        [
            rf"\b{_HOUSE} ?[,\n] ?{_TOWN}\b\)?",
            rf"\b(?:[A-Z\d][\w'-]{{0,30}}(?: [A-Z\d][\w'-]{{0,30}}){{0,3}}(?:\n|, ?)){{1,3}}{_UK}\b",
        ]
        + [rf"\b(?:{street % {'word': _WORD}})" for street in _STREETS]
        + [rf"\b{_CAPITAL}{_MORE}, [A-Z]{{2}} \d{{5}}(?:-\d{{4}})?\b", rf"\b{_UK}\b"]
    )
)

_LINE = re.compile(r"[^\n]+")

Span = tuple[int, int, str]
"""(begin, end, kind) of a part of a text."""


def find(text: str) -> Iterator[Span]:
    """Yield parts of a private form; spans may overlap, and then the first counts."""
    yield from _matches(_EMAIL, text, "email")
    for begin, end, kind in _matches(_IP, text, "ip"):
        with suppress(ValueError):
            ip_address(text[begin:end])
            yield begin, end, kind
    for begin, end, kind in _matches(_IBAN, text, "iban"):
        while end > begin and not iban.is_valid(text[begin:end]):  # a word in capitals may follow
            end = max(begin, text.rfind(" ", begin, end))
        if end > begin:
            yield begin, end, kind
    for begin, end, kind in _matches(_CARD, text, "card"):
        if luhn.is_valid(re.sub(r"[ -]", "", text[begin:end])):
            yield begin, end, kind
    for begin, end, kind in _matches(_ADDRESS, text, "address"):
        yield from _matches(_LINE, text, kind, begin, end)
    for begin, end, kind in _matches(_PHONE, text, "phone"):
        if sum(map(str.isdigit, text[begin:end])) in _PHONE_DIGITS and not _harmless(text[begin:end]):
            yield begin, end, kind
    for found in PhoneNumberMatcher(text, _PHONE_REGION, Leniency.POSSIBLE):
        if not _harmless(found.raw_string):
            yield found.start, found.end, "phone"
    for begin, end, kind in _matches(_NUMBER, text, "number"):
        if sum(map(str.isdigit, text[begin:end])) >= _NUMBER_DIGITS and not _harmless(text[begin:end]):
            yield begin, end, kind


def _matches(
    pattern: re.Pattern[str], text: str, kind: str, begin: int = 0, end: int = sys.maxsize
) -> Iterator[Span]:
    for found in pattern.finditer(text, begin, end):
        yield found.start(), found.end(), kind


def _harmless(number: str) -> bool:
    """Return whether a number is a date, or some years."""
    return bool(_YEARS.fullmatch(number) or _DATE.fullmatch(number))
