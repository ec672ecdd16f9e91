"""Between vocabularies through text: no byte is lost, wherever the tokens are cut."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.engine import family
from tandem.engine.base import InvalidRequest
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Retokeniser, translate, unfinished_bytes
from tandem.training.family.prompts import heldout
from tests.engine.text.test_tokenizer import BOS, EOS, TOKENIZER, A, Q
from tests.simulator.data import DATA, needs_data

TARGET, OTHER = (Tokenizer.load(family.path(name)) for name in ("target", "other"))
DIRECTIONS = {
    "target to other": (TARGET, OTHER),
    "other to target": (OTHER, TARGET),
    "target to one without its special tokens": (TARGET, TOKENIZER),
}
TEXTS = [
    "Zürich’s Straßenbahn — “naïve” façade… 3,50 €;  two  spaces\r\n\tand tabs\n",
    "東京タワーは高い。北京很大，人很多。서울은 큰 도시입니다",
    "e\u0301a\u0308o\u0302u\u0327 combining, Z\u0351a\u0350l\u034cg\u0352o\u0353",
    "👩‍👩‍👧‍👦 and 🇨🇭, 🏳️‍🌈; 🗼🗼🗼",
    "Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย",
    "def f(x):\n    return {'a': x[0] ** 2}  # <eos> <|q|> are only text",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \x00\x7f\ufeff\ufffd\U0010ffff",
    "abcdefghijklmnopqrstuvwxyz" * 3,
    "a" + "достопримечательность" * 2,
]
both_ways = pytest.mark.parametrize(("source", "target"), DIRECTIONS.values(), ids=DIRECTIONS)


def pushed(ids: Sequence[int], source: Tokenizer, target: Tokenizer) -> list[list[int]]:
    """Return a new Retokeniser's output for each token by itself, and at the end."""
    retokeniser = Retokeniser(source, target)
    return [retokeniser.push([token]) for token in ids] + [retokeniser.flush()]


def check_every_cut(ids: Sequence[int], source: Tokenizer, target: Tokenizer) -> None:
    """Wherever the tokens are cut, the part before it as a log and the part after it as it comes hold the same
    bytes there, and when they have come back."""
    data = source.shown_bytes(ids)
    later = 0
    for cut in range(len(ids) + 1):
        log = translate(ids[:cut], source, target)
        pieces = pushed(ids[cut:], source, target)
        new = list(itertools.chain(*pieces))
        before, after = target.shown_bytes(log), target.shown_bytes(new)
        assert before + after == data
        assert before == source.shown_bytes(ids[:cut])
        assert source.shown_bytes(translate([*log, *new], target, source)) == data
        later += len(pieces[-1]) > 0
    assert later > 0 or not data  # something was held back to the end


@both_ways
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_bytes_are_conserved_at_every_cut_of_a_text(source: Tokenizer, target: Tokenizer, text: str) -> None:
    check_every_cut(source.encode_bytes(text.encode()), source, target)


def prompt_sets() -> list[str]:
    """Return 12 texts spread over each set of prompts, up to 200 characters each."""
    assert DATA is not None
    chosen = []
    files = sorted([*(DATA / "prompts").iterdir(), *(DATA / "dsd_traces/prompts").iterdir()])
    for file in files:
        with file.open(encoding="utf-8") as lines:
            rows = csv.DictReader(lines) if file.suffix == ".csv" else map(json.loads, lines)
            texts = ["\n".join(_strings(row)) for row in rows]
        chosen += [text[-200:] for text in texts[:: max(1, len(texts) // 12)]]
    return chosen


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    return [s for v in value for s in _strings(v)] if isinstance(value, list) else [str(value)]


@pytest.mark.slow
@needs_data
@both_ways
def test_bytes_are_conserved_at_every_cut_of_the_prompt_sets(source: Tokenizer, target: Tokenizer) -> None:
    texts = prompt_sets()
    assert len(texts) > 80
    assert any(not text.isascii() for text in texts)
    for text in texts:
        check_every_cut(source.encode_bytes(text.encode()), source, target)


@both_ways
@given(data=st.data())
def test_bytes_are_conserved_whatever_a_model_says(
    source: Tokenizer, target: Tokenizer, data: st.DataObject
) -> None:
    """Any ordinary tokens, among them halves of characters that nothing completes."""
    ordinary = st.integers(10, source.vocab_size - 1)
    check_every_cut(data.draw(st.lists(ordinary, max_size=25)), source, target)


@both_ways
@given(data=st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
@example(b"\xf0\x9f")
@example(b"\xe2\x82 \xe2\x82\xac")
@example(b"\x80\x80\x80\x80\xc3")
def test_bytes_that_are_no_text_are_conserved(source: Tokenizer, target: Tokenizer, data: bytes) -> None:
    check_every_cut([source.encode_bytes(bytes([b]))[0] for b in data], source, target)


@both_ways
@given(text=st.text(max_size=40) | st.sampled_from(TEXTS))
def test_characters_come_whole_and_no_later_than_a_word(
    source: Tokenizer, target: Tokenizer, text: str
) -> None:
    data = text.encode()
    ids = [source.encode_bytes(bytes([b]))[0] for b in data]  # each byte by itself
    said = b""
    for count, piece in enumerate(pushed(ids, source, target)[:-1], 1):
        said += target.shown_bytes(piece)
        assert text.startswith(said.decode())  # which would fail inside a character
        assert count - 32 <= len(said) <= count


words = st.lists(st.text("abcdefghinorstu", min_size=1, max_size=12), max_size=12).map(" ".join)


@both_ways
@given(text=words | st.sampled_from([item.answer for item in heldout(20)]), data=st.data())
def test_words_arrive_in_the_tokens_that_their_text_has(
    source: Tokenizer, target: Tokenizer, text: str, data: st.DataObject
) -> None:
    """Also where the source says them in pieces that it would not have chosen."""
    cut = data.draw(st.integers(0, len(text)))
    ids = [token for part in (text[:cut], text[cut:]) for token in source.encode_bytes(part.encode())]
    assert list(itertools.chain(*pushed(ids, source, target))) == target.encode_bytes(text.encode())


def test_tokens_that_merge_across_a_cut() -> None:
    """ " town" is one token of the target's; its halves must not be joined by a cut between them."""
    ids = [*TARGET.encode_bytes(b" to"), *TARGET.encode_bytes(b"wn")]
    assert TARGET.encode_bytes(b" town") != ids
    assert translate(TARGET.encode_bytes(b" town"), TARGET, OTHER) == translate(ids, TARGET, OTHER)
    split = [*translate(ids[:1], TARGET, OTHER), *translate(ids[1:], TARGET, OTHER)]
    assert split != translate(ids, TARGET, OTHER)
    assert OTHER.shown_bytes(split) == b" town"


def test_special_tokens_are_translated_by_name() -> None:
    hi = TOKENIZER.encode_bytes(b" hi")
    there = [TARGET.special_id("<bos>"), TARGET.special_id("<|q|>"), *TARGET.encode_bytes(b" hi")]
    assert translate([BOS, Q, *hi], TOKENIZER, TARGET) == there
    assert translate(there, TARGET, TOKENIZER) == [BOS, Q, *hi]
    assert translate([*hi, BOS, Q, *hi], TOKENIZER, TARGET) == [*TARGET.encode_bytes(b" hi"), *there]
    assert list(itertools.chain(*pushed([*hi, A, *hi, EOS], TOKENIZER, TARGET))) == [
        *TARGET.encode_bytes(b" hi"), TARGET.special_id("<|a|>"),
        *TARGET.encode_bytes(b" hi"), TARGET.eos,
    ]  # fmt: skip


def test_special_tokens_that_the_other_side_lacks() -> None:
    """A prompt must not lose one; what a model says beyond the other's vocabulary is left out."""
    sketch = TARGET.special_id("<|s|>")
    with pytest.raises(InvalidRequest, match=r"<\|s\|>"):
        translate([5 + sketch, sketch], TARGET, TOKENIZER)
    said = [*TARGET.encode_bytes(b"one"), sketch, *TARGET.encode_bytes(b"two")]
    assert TOKENIZER.shown_bytes(itertools.chain(*pushed(said, TARGET, TOKENIZER))) == b"onetwo"


@given(st.text(min_size=1, max_size=9), st.data())
def test_unfinished_bytes(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cut = data.draw(st.integers(0, len(encoded)))
    whole = encoded[:cut].decode("utf-8", "ignore").encode()
    assert unfinished_bytes(encoded[:cut]) == cut - len(whole)


@given(st.binary(max_size=6))
def test_no_character_is_longer_than_what_is_waited_for(data: bytes) -> None:
    left = unfinished_bytes(data)
    assert 0 <= left <= min(3, len(data))
    assert left == 0 or data[-left] >= 0xC0
