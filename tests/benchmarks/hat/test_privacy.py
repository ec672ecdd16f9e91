"""The attacker reads what is left, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faker import Faker

from tandem.benchmarks.hat.privacy import Kind, Read, attacked, changed, parts
from tandem.engine.privacy.names import name_lists


@pytest.mark.parametrize(
    ("drawn", "read"),
    [
        (lambda fake: fake.email(), Read(0, 0)),
        (lambda fake: f"zzqx{fake.random_digit()}", Read(1, 1)),
        (lambda fake: f"the fourth of {fake.email()}", Read(0, 1)),
    ],
)
def test_shares(drawn: Callable[[Faker], str], read: Read) -> None:
    assert attacked(Kind(drawn, ("Here: {}.",)), ["Say it."], 4, name_lists()) == read


def test_parts_of_a_value() -> None:
    assert parts("Anna Lee, 12345", "my friend") == {"Anna", "1234", "2345"}
    assert parts("Main Street", "in Main") == {"Street"}


def test_words_without_need() -> None:
    assert changed(["ask Anna", "ask me"]) == (0.5, 0.25)
