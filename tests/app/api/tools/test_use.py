"""A request's tools in its model's notation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from tandem.app.api.tools.answer_reader import AnswerReader
from tandem.app.api.tools.formats import Hermes, Llama3, Mistral, ToolFormat, format_of
from tandem.app.api.tools.forms import Choice, FunctionForm, NamedFunction, Tool
from tandem.app.api.tools.spelling import MarkedSpelling
from tandem.app.api.tools.use import ToolUse
from tandem.engine.base import Grammar, InvalidRequest
from tandem.engine.text.grammar import Grammars, Matcher, check
from tandem.engine.text.tokenizer import Tokenizer
from tests.app.api.tools.answers import read
from tests.engine.text.test_grammar import ENDS, EOS, walk
from tests.engine.text.test_tokenizer import CONFIG, TOKENIZER, definition

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", 'a "::=" b']}},
}
FORMATS = {
    "hermes": Hermes(),
    "llama3": Llama3(),
    "mistral-list": Mistral(),
    "mistral": Mistral(listed=False),
    "mistral-ids": Mistral(listed=False, numbered=True),
}
PARIS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city":"Paris"}}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": {"city":"Paris"}}',
    "mistral-list": '[TOOL_CALLS][{"name": "weather", "arguments": {"city":"Paris"}}]',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city":"Paris"}',
    "mistral-ids": '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city":"Paris"}',
}
"""A call in each format."""
AUTO, REQUIRED = Choice(type="auto"), Choice(type="required")


def tools(strict: bool = False, **more: Any) -> list[Tool]:
    functions = [
        FunctionForm(name="weather", parameters=CITY | more, strict=strict),
        FunctionForm(name="now"),
    ]
    return [Tool(type="function", function=function) for function in functions]


def use(format: ToolFormat, choice: Choice = AUTO, parallel: bool = True, strict: bool = False) -> ToolUse:
    return ToolUse(format, tools(strict), choice, parallel)


def marked_vocabulary() -> Tokenizer:
    """Return a vocabulary with Mistral's special tokens."""
    rust = RustTokenizer.from_str(definition())
    rust.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in Mistral.marks])
    return Tokenizer(rust.to_str(), CONFIG)


VOCABULARY = marked_vocabulary()
GRAMMARS = Grammars(VOCABULARY, VOCABULARY.vocab_size)
SPELLING = MarkedSpelling(VOCABULARY, Mistral.marks)


def spelt(text: str) -> list[int]:
    """Return tokens, special ones for their names."""
    return VOCABULARY.encode(text, add_special_tokens=False)


def matcher(grammar: Grammar, text: str) -> Matcher:
    return GRAMMARS.matcher(grammar, ENDS, spelt(text))


def may_end(grammar: Grammar, text: str) -> bool:
    return not matcher(grammar, text).forbidden(spelt(text))[0][EOS]


@pytest.mark.parametrize(
    ("template", "name", "told"),
    [
        ("{% if tools %}<tools>…<tool_call>", "hermes", True),
        ('{% if tools %}… {"name": …, "parameters": dictionary … ipython', "llama3", True),
        ("{% if tools %}[AVAILABLE_TOOLS]… [TOOL_CALLS]", "mistral", True),
        ("{% if tools %}[AVAILABLE_TOOLS]… [TOOL_CALLS]… [ARGS]", "mistral", True),
        ("{{ messages }}", "hermes", False),
        (None, "hermes", False),
    ],
)
def test_the_template_tells_the_family(template: str | None, name: str, told: bool) -> None:
    found = format_of(template)
    assert (found.name, found.told) == (name, told)


def test_the_template_tells_how_mistral_calls() -> None:
    for template, tokens in (
        ("[TOOL_CALLS]", ("[TOOL_CALLS]",)),
        ("[TOOL_CALLS]… [ARGS]", ("[TOOL_CALLS]", "[ARGS]")),
        ("[TOOL_CALLS]… [CALL_ID]… [ARGS]", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    ):
        assert format_of(template).tokens == tokens


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_an_answer_of_the_grammar_is_read_as_calls(form: ToolFormat, parallel: bool) -> None:
    asked = use(form, REQUIRED, parallel)
    grammar = asked.grammar(None)
    assert grammar is not None
    check(grammar)
    most = 0
    for seed in range(30):
        output = walk(grammar, seed, 600, GRAMMARS)
        pieces = [SPELLING.shown_bytes([token]).decode("utf-8", "replace") for token in output]
        found = read(lambda: AnswerReader(asked.reader(), False), pieces)
        if output[-1] != EOS:
            continue
        assert found.content == ""
        for name, arguments in found.calls:
            given = json.loads(arguments)
            assert name == "now" or given["city"] in ("Paris", 'a "::=" b')
        most = max(most, len(found.calls))
    assert most >= 1
    assert (most > 1) == (parallel and form.name != "llama3")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_named_tool_is_the_only_one(form: ToolFormat) -> None:
    grammar = use(form, Choice(type="function", function=NamedFunction(name="now"))).grammar(None)
    assert grammar is not None
    assert "weather" not in grammar.source
    check(grammar)


def test_strict_calls_follow_their_schema_among_any_text() -> None:
    grammar = use(Hermes(), strict=True).grammar(None)
    assert grammar is not None
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    for text in ("", "It <b>rains</b>.", call, f"I look.\n{call}\n{call}"):
        assert may_end(grammar, text)
    for text in (call.replace("Paris", "Rome"), call.replace("weather", "sun"), "<tool_call>weather"):
        with pytest.raises(InvalidRequest):
            matcher(grammar, text)
    assert use(Hermes()).grammar(None) is None, "without strict, the model is free"
    assert use(Llama3(), strict=True).grammar(None) is None


@pytest.mark.parametrize("name", ["mistral-list", "mistral", "mistral-ids"])
def test_strict_calls_of_mistral_are_behind_any_text(name: str) -> None:
    grammar, call = use(FORMATS[name], strict=True).grammar(None), PARIS[name]
    assert grammar is not None
    for text in ("", "It rains.", "[ARGS is no mark", call, f"I look. {call}"):
        assert may_end(grammar, text)
    assert not may_end(grammar, "I look. [TOOL_CALLS]")
    for text in (
        call.replace("Paris", "Rome"),
        call.replace("weather", "sun"),
        "[ARGS]",
        f"{call} It rains.",
    ):
        with pytest.raises(InvalidRequest):
            matcher(grammar, text)
    written = [*VOCABULARY.encode_bytes(b"[TOOL_CALLS]weather[ARGS]"), *spelt('{"city":"Rome"}')]
    GRAMMARS.matcher(grammar, ENDS, written)  # text that spells a mark is none


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_of_a_form_or_calls(name: str) -> None:
    asked, call = use(FORMATS[name]), PARIS[name]
    grammar = asked.grammar(Grammar("json_schema", '{"type": "object", "required": ["a"]}'))
    assert grammar is not None
    for text in ('{"a": 1}', call):
        assert may_end(grammar, text)
    for text in ("It rains.", '{"b": 1}'):
        with pytest.raises(InvalidRequest):
            matcher(grammar, text)
    found = read(lambda: AnswerReader(asked.reader(), False), ['{"a"', ": 1}"])
    assert (found.content, found.calls) == ('{"a": 1}', [])
    assert read(lambda: AnswerReader(asked.reader(), False), [call]).calls == [
        ("weather", '{"city":"Paris"}')
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_of_any_object_or_calls(name: str) -> None:
    """Tell objects from calls that are objects by the name."""
    asked, call = use(FORMATS[name]), PARIS[name]
    grammar = asked.grammar(Grammar("json_object"))
    assert grammar is not None
    for text in (call, "{}", '{"a": [1, -2.5e3, "\\n", null]}', '{"b": {"name": "now"}, "name": "Marworth"}'):
        assert may_end(grammar, text)
        calls = read(lambda: AnswerReader(asked.reader(), False), [text]).calls
        assert calls == ([("weather", '{"city":"Paris"}')] if text == call else [])
    with pytest.raises(InvalidRequest):
        matcher(grammar, "[]")
    broken = [
        '{"name": "weather", "parameters": {"city": "Rome"}}',
        '{"a": 1, "name": "now"}',
        r'{"n\u0061me": 1}',
    ]
    for text in broken if name == "llama3" else []:
        with pytest.raises(InvalidRequest):
            matcher(grammar, text)


@pytest.mark.parametrize("seed", range(6))
def test_any_object_that_is_no_call_is_json(seed: int) -> None:
    asked = use(Llama3())
    grammar = asked.grammar(Grammar("json_object"))
    assert grammar is not None
    output = walk(grammar, seed, 600, GRAMMARS)
    assert output[-1] == EOS
    text = VOCABULARY.decode(output)
    assert isinstance(json.loads(text), dict)


def test_an_unknown_keyword_is_refused_in_a_strict_tool() -> None:
    strict = ToolUse(Hermes(), tools(True, uniqueItems=True, **{"not": {}}), REQUIRED, True).grammar(None)
    lenient = ToolUse(Hermes(), tools(False, **{"not": {}}), REQUIRED, True).grammar(None)
    assert strict is not None
    assert lenient is not None
    check(lenient)
    with pytest.raises(InvalidRequest, match="not"):
        check(strict)


def test_a_template_without_tools_is_told_in_words() -> None:
    asked = use(Hermes(told=False))
    called = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    chat = asked.chat(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [called]},
            {"role": "tool", "content": "yes", "tool_call_id": "1"},
        ]
    )
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "user"]
    assert chat[0]["content"].startswith("Be brief.\n\n")
    assert '"weather"' in chat[0]["content"]
    assert chat[2] == {
        "role": "assistant",
        "content": 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    }
    assert chat[3]["content"] == "<tool_response>\nyes\n</tool_response>"
    assert asked.variables() == {}
    assert asked.chat([{"role": "user", "content": "Rain?"}])[0]["role"] == "system"


def test_a_template_with_tools_gets_them_as_they_came() -> None:
    asked, chat = use(Hermes()), [{"role": "user", "content": "Rain?"}]
    assert asked.chat(chat) == chat
    assert asked.variables()["tools"][1] == {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }


def test_marks_are_part_of_the_text() -> None:
    spelling = MarkedSpelling(TOKENIZER, ["<|q|>", "[TOOL_CALLS]"])
    q, a = TOKENIZER.special_id("<|q|>"), TOKENIZER.special_id("<|a|>")
    assert spelling.shown_bytes([q, a, *TOKENIZER.encode_bytes(b"cat")]) == b"<|q|>cat"
