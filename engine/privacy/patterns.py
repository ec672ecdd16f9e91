"""Private parts by their form: addresses, and numbers of telephones, accounts, cards and machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address

from phonenumbers import Leniency, PhoneNumberMatcher
from stdnum import iban, luhn

_EMAIL = re.compile(r"[\w.+%-]+@(?:[\w-]+\.)+[^\W\d_]{2,}")
_IP = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7})(?![\w:]|\.\d)"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")
_YEARS = re.compile(r"(?:1\d|20)\d\d ?[-–/] ?(?:(?:1\d|20)\d\d|\d\d)")
_DATE = re.compile(r"\d{4}([-./])\d{1,2}\1\d{1,2}|\d{1,2}([-./])\d{1,2}\2(?:\d{2}|\d{4})")
_NUMBER = re.compile(r"(?<![\w.,/-])(?:\d{2,}(?:-\d{2,}){1,4}|[A-Z]{0,3}\d{7,}[A-Z]?)(?![\w/-]|[.,]\d)")
_PHONE_REGION = "US"
"""Region of telephone numbers without a country's code: the matcher takes all that could be one somewhere."""

_WORD = r"[^\W\d_][\w'’.-]*"
_STREETS = (
    # 221B Baker Street, 4 rue de la Paix
    r"\d{1,5}[A-Za-z]?(?:[-/]\d+)?,? (?:%(word)s ){1,3}(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Boulevard|Blvd"
    r"|Court|Ct|Place|Pl|Square|Sq|Way|Terrace|Close|Crescent|Parkway|Pkwy|Highway|Hwy|Gardens|Grove|Row|Walk|Hill"
    r"|Mews|Trail|Circle|Alley|Plaza|Route)\b\.?(?:,? (?:Apt|Apartment|Suite|Unit|Flat|Floor)\.? ?#?\w+)?",
    r"\d{1,4}(?: ?bis| ?ter)?,? (?:rue|avenue|boulevard|place|chemin|allée|quai|impasse|cours|route)"
    r"(?: (?:d'|de |du |des |de la |de l'|la |le |les ))? ?%(word)s(?:[ -](?:de |du |des )?[A-ZÀ-Ý][\w'’-]*){0,3}",
    # Lindenstraße 12, Am Markt 3, Kerkstraat 5-7, Storgatan 1
    r"[A-ZÀ-Ý][\w-]*(?:[Ss]tra(?:ß|ss)e|[Ss]tr\.|weg|platz|gasse|allee|ring|damm|ufer|straat|laan|plein|gracht|kade"
    r"|gatan|gata|vägen|veien|vej|gade|katu|tie) \d{1,4} ?[a-zA-Z]?(?:[-/]\d+)?\b",
    r"(?:Am|An der|An den|Im|In der|Auf dem|Zum|Zur|Unter den) [A-ZÄÖÜ][\w-]+ \d{1,4}[a-z]?\b",
    r"(?:[A-ZÄÖÜ][\w.-]*[ -]){1,3}(?:Straße|Str\.|Platz|Allee|Weg|Ring) \d{1,4}[a-z]?\b",
    # Calle Mayor 5, Via Roma, 12, ul. Długa 7
    r"(?:Calle|C/|Avenida|Avda\.|Av\.|Plaza|Paseo|Carrer|Via|Viale|Piazza|Corso|Vicolo|Rua|Travessa|Praça|Largo"
    r"|ul\.|ulica|al\.) (?:(?:de|del|della|dei|di|da|do|dos|das|la|las|los|el|e|y|i) ){0,2}"
    r"%(word)s(?: (?:de |del |la )?[^\W\d_][\w'’.-]*){0,3},? (?:n\.? ?º? ?)?\d{1,4}(?:[-/]\d+)?\b",
)
_TOWNS = (
    r"(?:%(word)s ){0,2}%(word)s, [A-Z]{2} \d{5}(?:-\d{4})?",  # Springfield, IL 62704
    r"[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}",  # NW1 6XE
)
_TOWN = r"(?:,? \d{4,5}(?: ?[A-Z]{2})? [A-ZÀ-Ý][\w-]+(?: (?:am|an der|sur|la|le|del) [A-ZÀ-Ý]?[\w-]+)?)?"
"""Town that may follow a street."""
_ADDRESS = re.compile(
    "|".join(
        [rf"\b(?:{street % {'word': _WORD}}){_TOWN}" for street in _STREETS]
        + [rf"\b(?:{town % {'word': _WORD}})\b" for town in _TOWNS]
    )
)

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
    yield from _matches(_ADDRESS, text, "address")
    for found in PhoneNumberMatcher(text, _PHONE_REGION, Leniency.POSSIBLE):
        if not _harmless(found.raw_string):
            yield found.start, found.end, "phone"
    for begin, end, kind in _matches(_NUMBER, text, "number"):
        if sum(character.isdigit() for character in text[begin:end]) >= 7 and not _harmless(text[begin:end]):
            yield begin, end, kind


def _matches(pattern: re.Pattern[str], text: str, kind: str) -> Iterator[Span]:
    for found in pattern.finditer(text):
        yield found.start(), found.end(), kind


def _harmless(number: str) -> bool:
    """Return whether a number is a date, or some years."""
    return bool(_YEARS.fullmatch(number) or _DATE.fullmatch(number))
