"""Grammars: what a matcher allows, wherever its output goes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from tandem.engine.base import Grammar, InvalidRequest
from tandem.engine.text.grammar import Grammars, Matcher, check
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.text.test_tokenizer import CONFIG, EOS, SPECIAL, TOKENIZER, definition

ENDS = frozenset({EOS})
VOCAB = TOKENIZER.vocab_size
GRAMMARS = Grammars(TOKENIZER, VOCAB)
PLACE = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "bridges": {"type": "integer"}, "old": {"type": "boolean"}},
    "required": ["town", "bridges", "old"],
    "additionalProperties": False,
}
SCHEMA = Grammar("json_schema", json.dumps(PLACE))
texts = st.text('ab[]{}",:1 \né東🗼', min_size=1, max_size=6)


def spelt(text: str) -> list[int]:
    return TOKENIZER.encode_bytes(text.encode())


def matcher(grammar: Grammar, text: str = "") -> Matcher:
    return GRAMMARS.matcher(grammar, ENDS, spelt(text))


def allowed(grammar: Grammar, text: str = "") -> set[bytes | int]:
    """Return what may follow: bytes, or an end token."""
    ids = np.flatnonzero(~matcher(grammar).forbidden(spelt(text))[0]).tolist()
    return {token if token in ENDS else TOKENIZER.token_bytes(token) for token in ids}


def walk(grammar: Grammar, seed: int, most: int, grammars: Grammars = GRAMMARS) -> list[int]:
    """Return an output of tokens chosen by chance among those allowed, up to the end or `most` tokens; it hurries to
    close what is open."""
    chance, output, m = random.Random(seed), list[int](), grammars.matcher(grammar, ENDS)
    while len(output) < most and EOS not in output:
        ids = np.flatnonzero(~m.forbidden(output)[0]).tolist()
        closing = [t for t in ids if TOKENIZER.token_bytes(t) in (b'"', b"}", b"]", b",", b":") or t == EOS]
        output.append(chance.choice(closing if closing and chance.random() < 0.5 else ids))
    return output


@given(st.lists(texts, min_size=1, max_size=4, unique=True))
def test_a_choice_is_one_of_its_texts(choices):
    grammar = Grammar("choice", json.dumps(choices))
    for text in choices:
        longer = {other for other in choices if other.startswith(text) and other != text}
        after = allowed(grammar, text)
        assert EOS in after
        assert (len(after) > 1) == bool(longer)
        for cut in range(1, len(text)):
            assert (EOS in allowed(grammar, text[:cut])) == (text[:cut] in choices)
    with pytest.raises(InvalidRequest):
        matcher(grammar, "nothing")


@pytest.mark.parametrize(
    ("text", "after"), [("", {b"+", b"1", b"2"}), ("+", {b"1", b"2"}), ("1", {b"1", b"2", EOS})]
)
def test_an_expression(text, after):
    assert allowed(Grammar("regex", r"\+?[12]+"), text) == after


@pytest.mark.parametrize("source", ['start: "a" b+\nb: "b"', 'root ::= "a" b+\nb ::= "b"'])
def test_a_grammar_of_either_notation(source):
    grammar = Grammar("grammar", source)
    assert allowed(grammar) == {b"a"}
    assert allowed(grammar, "ab") == {b"b", EOS}


@pytest.mark.parametrize("seed", range(20))
def test_json_of_a_schema(seed):
    output = walk(SCHEMA, seed, 1000)
    assert output[-1] == EOS
    said = json.loads(TOKENIZER.decode(output))
    assert {name: type(value) for name, value in said.items()} == {"town": str, "bridges": int, "old": bool}


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5e3, {"é東": null}], "b": "\\n🗼"}', "{}", '{"a":true,"b": 1}']
)
def test_any_object(text):
    assert allowed(Grammar("json_object"), text) >= {EOS}
    assert EOS not in allowed(Grammar("json_object"), text[:-1])


@pytest.mark.parametrize("text", ["[", "1", "x", '{"a" 1', "\n{", '{"a":  1}}'])
def test_no_object(text):
    with pytest.raises(InvalidRequest, match="does not follow"):
        matcher(Grammar("json_object"), text)


def test_special_tokens_are_no_text():
    """A grammar that allows any text allows none of them, and the end."""
    found = ~matcher(Grammar("regex", "(?s:.*)")).forbidden([])[0]
    assert np.flatnonzero(found[: len(SPECIAL)]).tolist() == [EOS]
    assert all(found[spelt(chr(character))[0]] for character in range(128))


def test_other_ends_than_eos():
    """A special token where the text may end; an ordinary one wherever it fits, too."""
    other, digit = 3, TOKENIZER.encode_bytes(b"1")[0]
    m = GRAMMARS.matcher(Grammar("regex", "12+"), frozenset({EOS, other, digit}))
    assert np.flatnonzero(~m.forbidden([])[0]).tolist() == [digit]
    m = GRAMMARS.matcher(Grammar("regex", "32+"), frozenset({EOS, other, digit}))
    assert set(np.flatnonzero(~m.forbidden(spelt("32"))[0]).tolist()) == {EOS, other, digit, *spelt("2")}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 5), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_it_goes_wherever_its_output_goes(steps):
    """On, back, and over to another output, with tentative drafts that stand or fall, as a new matcher would."""
    walks = [walk(SCHEMA, seed, 40) for seed in range(4)]
    m = matcher(SCHEMA)
    for which, length, drafts, spoilt in steps:
        output = walks[which][:length]
        proposed = walks[which][length : length + drafts]
        if spoilt:
            proposed = [*proposed, EOS + 1, *proposed]
        if EOS in output:
            continue
        found = m.forbidden(output, proposed)
        for n in range(len(proposed) + 1):
            if any(token in (EOS, EOS + 1) for token in proposed[:n]):
                assert not found[n].any(), "nothing is asked after an end, or a draft that fails"
            else:
                expected = GRAMMARS.matcher(SCHEMA, ENDS, [*output, *proposed[:n]]).forbidden(
                    [*output, *proposed[:n]]
                )
                assert (found[n] == expected[0]).all()
        assert m.failure is None


@pytest.mark.parametrize("begin", ["", "<think>"])
def test_a_copy_goes_its_own_way(begin):
    """On and back, before thoughts end and behind, and leaves the other where it is."""
    form = Grammar(SCHEMA.kind, SCHEMA.source, end="</think>" if begin else "", begin=begin)
    thoughts = spelt("<think>a</think>") if begin else []
    output = [*thoughts, *walk(SCHEMA, 2, 20)]
    m = GRAMMARS.matcher(form, ENDS)
    for length in range(len(output)):
        assert m.follow(output[:length])
        copied = m.copy()
        assert copied.follow(output)
        assert copied.followed == len(output)
        assert m.followed == length
        back = output[: length // 2]
        assert (copied.forbidden(back) == GRAMMARS.matcher(form, ENDS, back).forbidden(back)).all()


def test_an_output_that_left_its_grammar_may_come_back():
    m = matcher(SCHEMA)
    assert not m.follow(spelt('{"to!'))
    assert not m.forbidden(spelt('{"to!')).any()
    assert m.failure is not None
    assert m.follow(spelt('{"town'))
    assert m.forbidden(spelt('{"town')).any()
    assert m.failure is None


UNKNOWN = Grammar("json_schema", '{"type": "array", "uniqueItems": true}')


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (Grammar("regex", "a("), "unclosed group"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "nonsense"),
        (Grammar("json_schema", "{"), "json schema"),
        (Grammar("grammar", "start: missing"), "missing"),
        (Grammar("grammar", "::="), "grammar"),
        (Grammar("choice", "[]x"), "choice"),
        (UNKNOWN, "uniqueItems"),
    ],
)
def test_broken_ones_are_refused(grammar, named):
    with pytest.raises(InvalidRequest, match=named):
        check(grammar)
    with pytest.raises(InvalidRequest, match=named):
        matcher(grammar)


def test_what_cannot_be_enforced_is_ignored_where_that_is_allowed():
    lenient = Grammar("json_schema", UNKNOWN.source, strict=False)
    check(lenient)
    assert EOS in allowed(lenient, "[1, 1]")


def test_a_grammar_is_compiled_once():
    made = Grammars(TOKENIZER, VOCAB)
    first = made.matcher(SCHEMA, ENDS)
    assert first.follow(spelt('{"town"'))
    second = made.matcher(Grammar("json_schema", SCHEMA.source), ENDS)
    assert made._begun.cache_info().misses == 1
    assert (second.forbidden([]) == matcher(SCHEMA).forbidden([])).all(), "copies are apart"


MARKED = '{"a": 1}'
OBJECT = Grammar("json_object")
BEGUN = Grammar("json_object", end="</think>")
MAY_THINK = Grammar("json_object", end="</think>", begin="<think>")


def marked_vocabulary(special: bool) -> Tokenizer:
    """Return a vocabulary with a token for each mark, perhaps special ones."""
    rust = RustTokenizer.from_str(definition())
    marks = [AddedToken(mark, special=special, normalized=False) for mark in ("<think>", "</think>")]
    (rust.add_special_tokens if special else rust.add_tokens)(marks)
    return Tokenizer(rust.to_str(), CONFIG)


@pytest.fixture(params=["spelt", "token", "special"])
def thinker(request):
    """A vocabulary, and a function that spells text in it."""
    vocabulary = TOKENIZER if request.param == "spelt" else marked_vocabulary(request.param == "special")

    def spell(text: str) -> list[int]:
        return spelt(text) if request.param == "spelt" else vocabulary.encode(text)

    return vocabulary, spell


def following(thinker, grammar: Grammar, text: str) -> set[bytes]:
    """Return what may follow, spelt."""
    vocabulary, spell = thinker
    m = Grammars(vocabulary, vocabulary.vocab_size).matcher(grammar, ENDS)
    return {vocabulary.token_bytes(i) for i in np.flatnonzero(~m.forbidden(spell(text))[0]).tolist()}


def test_a_form_begins_behind_thoughts(thinker):
    vocabulary, spell = thinker
    matcher = Grammars(vocabulary, vocabulary.vocab_size).matcher(BEGUN, ENDS)
    output = spell("Well, {1}? </thin king\n</think>\n\n" + MARKED)
    rows = matcher.forbidden([], output)
    assert matcher.failure is None
    assert not rows[range(len(output)), output].any()
    assert rows[: len(output), EOS].all()
    assert not rows[-1, EOS]
    assert matcher.complete
    assert matcher.followed == len(output)
    for cut in range(len(output)):  # it goes back as well, and says the same
        assert (matcher.forbidden(output[:cut])[0] == rows[cut]).all()


def test_any_token_but_the_end_is_thought(thinker):
    everything = {thinker[0].token_bytes(i) for i in range(thinker[0].vocab_size)} - {b"<eos>"}
    assert following(thinker, BEGUN, "") == everything
    assert following(thinker, BEGUN, "what {") == everything
    assert following(thinker, MAY_THINK, "<think>") == everything
    assert following(thinker, BEGUN, "So.</think>") == following(thinker, OBJECT, "") | {
        white for white in everything if white.isspace() and len(white) <= 2
    }
    assert following(thinker, BEGUN, 'So.</think>\n\n{"a') == following(thinker, OBJECT, '{"a')


def test_thoughts_or_the_form_at_once(thinker):
    begins = {data for data in following(thinker, MAY_THINK, "") if b"<think>".startswith(data)}
    assert begins
    assert following(thinker, MAY_THINK, "") == following(thinker, OBJECT, "") | begins
    assert following(thinker, MAY_THINK, '{"a') == following(thinker, OBJECT, '{"a')
    vocabulary, spell = thinker
    grammars = Grammars(vocabulary, vocabulary.vocab_size)
    for text in (MARKED, f"<think>{MARKED}</think>{MARKED}"):
        assert grammars.matcher(MAY_THINK, ENDS, spell(text)).complete
    for text in ("So: ", "</think>", f"<think>So.</think>\n\n\n{MARKED}", "<think>So.</think>So"):
        with pytest.raises(InvalidRequest, match="does not follow"):
            grammars.matcher(MAY_THINK, ENDS, spell(text))


def test_a_form_that_begins_as_the_mark_does():
    grammar = Grammar("regex", "<[ab]>", end="</think>", begin="<think>")
    assert allowed(grammar, "<") == {b"t", b"a", b"b"}
    assert allowed(grammar, "<a>") == {EOS}
    assert EOS not in allowed(grammar, "<th")


def test_thoughts_have_no_end_token():
    with pytest.raises(InvalidRequest, match="does not follow"):
        GRAMMARS.matcher(BEGUN, ENDS, [*spelt("So."), EOS])
