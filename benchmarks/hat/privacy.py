"""Privacy: what an attacker reads of names, addresses and numbers in what leaves a device with stand-ins.

    tandem benchmark privacy [--values 200]

Into SpecBench's prompts, in sentences with and without words that announce them, come values of each kind, drawn from
Faker's data of ten countries. What leaves is read by an attacker who knows how such values look: he reads a value if it
is there, and a part of it if any of its words, or four digits of it in a row, are, and not in the prompt anyway. Names
are judged with lists from which the ten countries' are missing (`name`), and with all (`listed_name`); surnames alone,
in sentences that announce nothing, likewise (`surname`, `listed_surname`). What the prompts lose without need is the
share of them, and of their words, that is replaced although nothing was put in: of SpecBench's and of Vicuna's, which
name famous people and places, if any, and of GSM8K's, which name invented people.

read_*, part_*: share of values that are read wholly, and at least partly, by kind.
changed_*, words_*: share of prompts, and of their words, that are replaced without need, by data set.
us_character: CPU microseconds a character.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from faker import Faker

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA
from tandem.engine.privacy.names import NameLists, name_lists
from tandem.engine.privacy.stand_ins import StandIns

COUNTRIES = ("en_AU", "en_CA", "da_DK", "fi_FI", "no_NO", "cs_CZ", "pt_PT", "hu_HU", "ro_RO", "hr_HR")
"""Countries that values are drawn from: none of those whose forms were looked at for the patterns, which are en_US,
en_GB, de_DE, fr_FR, es_ES, it_IT, nl_NL, pl_PL, sv_SE and tr_TR."""
PROMPTS = {
    "specbench": ("spec_bench.jsonl", "turns"),
    "vicuna": ("vicuna_bench.jsonl", "turns"),
    "gsm8k": ("gsm8k_test.jsonl", "question"),
}
LONGEST = 2_000
"""Characters of a prompt: SpecBench has whole articles."""
_WORD = re.compile(r"[^\W_]{4,}")


class Kind(NamedTuple):
    """A kind of values.

    drawn: draws one.
    sentences: in which it may stand.
    """

    drawn: Callable[[Faker], str]
    sentences: tuple[str, ...]


_NAMED = (
    "My name is {}.",
    "I work with {} on this.",
    "Please answer as if you wrote to {}.",
    "{} asked me this yesterday.",
    "(from: {})",
    "Dear {}, thank you for your help with the following.",
    "my neighbour {} wants to know, too",
)
_BARE = ("I asked {} about it.", "That was what {} said.")
_TOLD = (
    "It is {}.",
    "Here it is: {}",
    "Note {} down.",
    "({})",
    "{} is what I was given.",
    "send it to {}, please",
)
KINDS: dict[str, Kind] = {
    "name": Kind(lambda fake: f"{fake.first_name()} {fake.last_name()}", _NAMED),
    "listed_name": Kind(lambda fake: f"{fake.first_name()} {fake.last_name()}", _NAMED),
    "surname": Kind(lambda fake: fake.last_name(), _BARE),
    "listed_surname": Kind(lambda fake: fake.last_name(), _BARE),
    "email": Kind(lambda fake: fake.email(), _TOLD),
    "phone": Kind(lambda fake: fake.phone_number(), _TOLD),
    "iban": Kind(lambda fake: fake.iban(), _TOLD),
    "card": Kind(lambda fake: fake.credit_card_number(), _TOLD),
    "ip": Kind(lambda fake: fake.ipv4(), _TOLD),
    "address": Kind(
        lambda fake: fake.address(), ("I live at {}.", "Send it to {}, please.", "Address:\n{}\n")
    ),
    "id": Kind(lambda fake: fake.ssn(), _TOLD),
}
LEFT_OUT = ("name", "surname")
"""Kinds that are judged without the lists of the countries that they are drawn from."""


class Read(NamedTuple):
    """Shares of values that are read wholly, and at least partly."""

    wholly: float
    partly: float


def attacked(kind: Kind, prompts: Sequence[str], values: int, lists: NameLists) -> Read:
    """Return what is read of that many values."""
    rng, fakes = Random(0), [Faker(country) for country in COUNTRIES]
    wholly = partly = 0
    for number, fake in zip(range(values), _in_turn(fakes), strict=False):
        fake.seed_instance(number)
        value, prompt = kind.drawn(fake), rng.choice(prompts)
        sentence = rng.choice(kind.sentences).format(value)
        text = f"{sentence}\n\n{prompt}" if rng.random() < 0.5 else f"{prompt}\n\n{sentence}"
        left = StandIns([text], lists).hide(text)
        wholly += value in left
        partly += value in left or any(
            part in left and part not in prompt for part in parts(value, sentence.replace(value, ""))
        )
    return Read(wholly / values, partly / values)


def parts(value: str, around: str) -> set[str]:
    """Return the words of a value that tell of it, and its digits, four in a row. around: the sentence without it."""
    words = {word for word in _WORD.findall(value) if not word.isdigit() and word not in around}
    return words | {value[at : at + 4] for at in range(len(value) - 3) if value[at : at + 4].isdigit()}


def changed(prompts: Sequence[str]) -> tuple[float, float]:
    """Return the shares of prompts, and of their words, that are replaced."""
    prompts_changed = words = words_before = 0
    for prompt in prompts:
        left = StandIns([prompt]).hide(prompt)
        prompts_changed += left != prompt
        words += len(re.findall(r"<[A-Z]+_\d+>", left)) - len(re.findall(r"<[A-Z]+_\d+>", prompt))
        words_before += len(prompt.split())
    return prompts_changed / len(prompts), words / words_before


def read_prompts(file: str, field: str) -> list[str]:
    """Return a data set's prompts, their first turns, cut to LONGEST."""
    rows = map(json.loads, (DATA / "prompts" / file).read_text(encoding="utf-8").splitlines())
    said = [row[field] for row in rows]
    return [(each if isinstance(each, str) else each[0])[:LONGEST] for each in said]


def _in_turn(fakes: Sequence[Faker]) -> Iterator[Faker]:
    while True:
        yield from fakes


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = report.parser("privacy", __doc__)
    parser.add_argument("--values", type=int, default=200, help="of each kind (default 200)")
    options = parser.parse_args(arguments)
    prompts = {name: read_prompts(*where) for name, where in PROMPTS.items()}
    others, listed = NameLists(without=COUNTRIES), name_lists()
    found = {
        name: attacked(kind, prompts["specbench"], options.values, others if name in LEFT_OUT else listed)
        for name, kind in report.progress(KINDS.items(), "kinds")
    }
    report.table(
        f"Read of {options.values} values of each kind in what leaves",
        ["kind", "wholly", "partly"],
        [[name, f"{read.wholly:.1%}", f"{read.partly:.1%}"] for name, read in found.items()],
    )
    begin, characters = time.process_time(), sum(len(text) for texts in prompts.values() for text in texts)
    lost = {name: changed(texts) for name, texts in prompts.items()}
    spent_s = time.process_time() - begin
    report.table(
        "Replaced without need",
        ["data set", "prompts", "words"],
        [[name, f"{share:.1%}", f"{words:.2%}"] for name, (share, words) in lost.items()],
    )
    report.figures(
        "privacy",
        {f"read_{name}": round(read.wholly, 4) for name, read in found.items()}
        | {f"part_{name}": round(read.partly, 4) for name, read in found.items()}
        | {f"changed_{name}": round(share, 3) for name, (share, _) in lost.items()}
        | {f"words_{name}": round(words, 4) for name, (_, words) in lost.items()}
        | {"us_character": round(1e6 * spent_s / characters, 2)},
    )


if __name__ == "__main__":
    main()
