"""JSON Schema's test suite: a strict grammar accepts nothing invalid, or its schema is refused with the reason.

What a grammar writes has one spelling. So it may refuse valid instances that are spelt in another way, but no others
than SPELLINGS.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.base import Grammar, InvalidRequest
from tandem.engine.text.grammar import Grammars
from tests.engine.text.test_tokenizer import EOS, TOKENIZER

SUITE = Path(__file__).parent / "draft2020-12"
FILES = sorted(path.stem for path in SUITE.glob("*.json"))
DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size)
SPELLINGS = {
    "allOf": {"allOf", "valid"},  # keys in the order of the schema
    "const": {
        "same object with different property order is valid",
        "float zero is valid",
        "float one is valid",
        "float -2.0 is valid",
        "float is valid",
    },
    "enum": {"float zero is valid", "float one is valid", "[0.0] is valid", "[1.0] is valid"},
    "multipleOf": {"-4.5 is multiple of 1.5"},
    "type": {"a float with zero fractional part is an integer"},
}
"""Valid instances that no grammar writes, by file. A format is enforced, where the suite only notes it: ANNOTATION."""
ANNOTATION = re.compile(r"invalid .* string is only an annotation by default")


@cache
def cases(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((SUITE / f"{file}.json").read_text(encoding="utf-8"))
    return found


def grammar(case: dict[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(case["schema"]), strict=True)


def accepts(asked: Grammar, instance: object) -> bool:
    text = json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
    try:
        return GRAMMARS.matcher(asked, frozenset({EOS}), TOKENIZER.encode_bytes(text.encode())).complete
    except InvalidRequest:
        return False


@cache
def refusals(file: str) -> list[str]:
    """Return why schemas of a file are refused; "" for each that is not."""
    found = []
    for case in cases(file):
        try:
            GRAMMARS.matcher(grammar(case), frozenset({EOS}))
        except InvalidRequest as error:
            found.append(str(error))
        else:
            found.append("")
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_strict_grammar_accepts_what_its_schema_does(file: str) -> None:
    for case, refused in zip(cases(file), refusals(file), strict=True):
        if refused:
            assert re.match(r"the json schema cannot be used: \S", refused)
            continue
        for test in case["tests"]:
            if accepts(grammar(case), test["data"]) != test["valid"]:
                what = test["description"]
                assert test["valid"], f"accepts what is invalid: {case['description']}: {what}"
                known = ANNOTATION.fullmatch(what) if file == "format" else what in SPELLINGS.get(file, ())
                assert known, f"refuses what is valid: {case['description']}: {what}"


def table() -> str:
    """Return the table of docs/api.md, by what the suite finds."""
    whys = {file: [why for why in refusals(file) if why] for file in FILES}
    refused = {key for found in whys.values() for why in found for key in keywords(why)}
    others = {f for f, found in whys.items() if any(not keywords(why) and not hopeless(why) for why in found)}
    kept = {f for f in FILES if "" in refusals(f)} & NAMES - refused
    rows = {
        "enforced": kept - others,
        "enforced, or refused": others & kept,
        "refused": refused,
    }
    lines = [
        f"| {what} | {', '.join(f'`{name}`' for name in sorted(names))} |" for what, names in rows.items()
    ]
    return "\n".join(["| with `strict: true` | keywords |", "|---|---|", *lines])


def keywords(why: str) -> list[str]:
    """Return the keywords that a refusal names as not implemented."""
    found = re.search(r"Unimplemented keys: (\[.*?\])", why)
    return json.loads(found[1]) if found else []


def hopeless(why: str) -> bool:
    """Return whether nothing would satisfy the schema, or parts of it are elsewhere."""
    return "Unsatisfiable schema" in why or "is not present in a registry" in why


NAMES = set(FILES) - {
    "anchor",
    "boolean_schema",
    "content",
    "default",
    "defs",
    "infinite-loop-detection",
    "ref",
    "refRemote",
    "vocabulary",
}
"""Files that are named after a keyword."""


def test_the_table_of_keywords_is_what_the_suite_finds() -> None:
    found = re.search(r"<!-- keywords -->\n(.*?)\n<!-- /keywords -->", DOCUMENT.read_text(), re.DOTALL)
    assert found
    assert found[1] == table()
