"""Numbers and addresses are found by their form and their check digits."""

from __future__ import annotations

import pytest

from tandem.engine.privacy.patterns import find


@pytest.mark.parametrize(
    ("text", "part", "kind"),
    [
        ("mail anna.s+x@mail.example.org.", "anna.s+x@mail.example.org", "email"),
        ("at 192.168.1.17.", "192.168.1.17", "ip"),
        ("at 2001:db8::1 now", "2001:db8::1", "ip"),
        ("to DE89 3704 0044 0532 0130 00 NOW", "DE89 3704 0044 0532 0130 00", "iban"),
        ("card 4111-1111-1111-1111", "4111-1111-1111-1111", "card"),
        ("call +49 30 1234567", "+49 30 1234567", "phone"),
        ("call (555) 123-4567", "(555) 123-4567", "phone"),
        ("call (0141) 4960290", "(0141) 4960290", "phone"),
        ("call 605 985 618", "605 985 618", "phone"),
        ("call 001-406-715-8399x1027", "001-406-715-8399x1027", "number"),
        ("code MLPLSN53D12H829Q", "MLPLSN53D12H829Q", "number"),
        ("ulica Narutowicza 20\n38-868 Zambrów", "ulica Narutowicza 20", "address"),
        ("SSN 123-45-6789.", "123-45-6789", "number"),
        ("passport C01234567", "C01234567", "number"),
        ("at 221B Baker Street, London", "221B Baker Street", "address"),
        ("in London NW1 6XE", "NW1 6XE", "address"),
        ("Springfield, IL 62704", "Springfield, IL 62704", "address"),
        ("Lindenstraße 12a, 10969 Berlin.", "Lindenstraße 12a, 10969 Berlin", "address"),
        ("4 rue de la Paix, 75002 Paris", "4 rue de la Paix, 75002 Paris", "address"),
        ("Calle Mayor 5, 28013 Madrid", "Calle Mayor 5, 28013 Madrid", "address"),
        ("Lindenstraße 12, 10969 Berlin. Write it", "Lindenstraße 12, 10969 Berlin", "address"),
        ("12 Main Rd., 5000 St. Gallen. Write", "12 Main Rd., 5000 St. Gallen", "address"),
        ("Kerkstraat 5-7", "Kerkstraat 5-7", "address"),
    ],
)
def test_parts(text: str, part: str, kind: str) -> None:
    begin, end, found = next(iter(find(text)))
    assert (text[begin:end], found) == (part, kind)


@pytest.mark.parametrize(
    "text",
    [
        "from 1939-1945, on 2024-11-26 or 26/11/2024, at 12:30:45",
        "pi is 3.14159265, of 1,000,000 people and 123456 cats",
        "version 1.2.3.400 and 999.1.1.1",
        "DE00 3704 0044 0532 0130 00"[:7],
        "12 monkeys on the way",
    ],
)
def test_what_is_none(text: str) -> None:
    assert list(find(text)) == []
