"""Calls in the notation of each family, streamed."""

from __future__ import annotations

import pytest

from tandem.app.api.tools.answer_reader import AnswerReader
from tandem.app.api.tools.formats import Hermes, Llama3, Mistral
from tests.app.api.tools.answers import Read, whole_and_in_pieces

NAMES = frozenset({"weather", "now"})
PARIS, NOW = ("weather", '{"city": "Paris </tool_call>; é"}'), ("now", "{}")
CALL = '{"name": "weather", "arguments": {"city": "Paris </tool_call>; é"}}'


def hermes(text: str, most: int | None = None) -> Read:
    return whole_and_in_pieces(lambda: Hermes().reader(NAMES, most, False), text)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", "", [PARIS]),
        (f"I look.\n\n<tool_call>{CALL}</tool_call>\n", "I look.", [PARIS]),
        (
            f'<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
            "",
            [PARIS, NOW],
        ),
        (f'<tool_call>\n{CALL}\n<tool_call>\n{{"name": "now"}}', "", [PARIS, NOW]),
        (
            '<tool_call>{"arguments": {"a": [{"b": 2}]}, "name": "now"}</tool_call>',
            "",
            [("now", '{"a": [{"b": 2}]}')],
        ),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", '{"a": 1}')]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "null")]),
        ('<tool_call>{"name": "now", "arguments": {"a": 1', "", [("now", '{"a": 1')]),
        ("no call at all <tool", "no call at all <tool", []),
        ("  spaces, and <b>  ", "  spaces, and <b>  ", []),
        ("<tool_call>that is none</tool_call> so", "<tool_call>that is none</tool_call> so", []),
        ('<tool_call>{"name": "unknown"', '<tool_call>{"name": "unknown"', []),
        ('<tool_call>{"na', '<tool_call>{"na', []),
    ],
)
def test_hermes(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = hermes(text)
    assert (found.content, found.calls) == (content, calls)
    assert len(set(found.ids)) == len(calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"```json\n{CALL}\n```", "", [PARIS]),
        (f"\n```json\n{CALL}\n```\n\nThat tells the weather.", "", [PARIS]),
        (f'```json\n{CALL}\n```\n```json\n{{"name": "now", "arguments": {{}}}}\n```', "", [PARIS, NOW]),
        (f'```json\n{CALL}\n{{"name": "now", "arguments": {{}}}}\n```', "", [PARIS, NOW]),
        ('```json\n{"name": "now", "arguments": {"a": 1', "", [("now", '{"a": 1')]),
        ('```json\n{"a": [1, 2]}\n``` is it.', '```json\n{"a": [1, 2]}\n``` is it.', []),
        ('```json\n{"name": "sun"}\n```', '```json\n{"name": "sun"}\n```', []),
        ("```json\n[1]\n```", "```json\n[1]\n```", []),
        ('```json\n{"na', '```json\n{"na', []),
        ("```js", "```js", []),
        ("```json", "```json", []),
        ("```python\nnow()\n```", "```python\nnow()\n```", []),
        (f'```json\n{{"a": 1}}\n```\n<tool_call>{CALL}</tool_call>', '```json\n{"a": 1}\n```', [PARIS]),
    ],
)
def test_blocks_of_code(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = hermes(text)
    assert (found.content, found.calls) == (content, calls)
    assert len(set(found.ids)) == len(calls)


def test_calls_beyond_the_most_are_dropped() -> None:
    found = hermes(f'<tool_call>{CALL}</tool_call><tool_call>{{"name": "now"}}</tool_call>', most=1)
    assert (found.content, found.calls) == ("", [PARIS])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "now", "parameters": {}}', "", [NOW]),
        ('<|python_tag|>{"name": "now", "parameters": {}}', "", [NOW]),
        ('{"type": "function", "name": "now", "parameters": {}}', "", [NOW]),
        (
            '\n{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"a": 1}}\n',
            "",
            [NOW, ("now", '{"a": 1}')],
        ),
        ('{"name": "now", "parameters": {}} That was it.', "", [NOW]),
        ("It rains.", "It rains.", []),
        (' {"weather": "rain"}', '{"weather": "rain"}', []),
        ('{"name": "Marworth", "size": {}}', '{"name": "Marworth", "size": {}}', []),
        ('{"nam', '{"nam', []),
    ],
)
def test_llama3(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = whole_and_in_pieces(lambda: Llama3().reader(NAMES, None, False), text)
    assert (found.content, found.calls) == (content, calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[{"name": "now", "arguments": {}}]', [NOW]),
        ('[{"name": "now", "arguments": {"a": "[ARGS]"}}]', [("now", '{"a": "[ARGS]"}')]),
        (f'[{CALL}, {{"name": "now", "arguments": {{}}}}]', [PARIS, NOW]),
        ("now[ARGS]{}", [NOW]),
        ('now[ARGS]{}[TOOL_CALLS]now[ARGS]{"a": "]"}', [NOW, ("now", '{"a": "]"}')]),
        ("unknown[ARGS]{}", []),
    ],
)
def test_mistral(text: str, calls: list[tuple[str, str]]) -> None:
    found = whole_and_in_pieces(lambda: Mistral().reader(NAMES, None, False), f"[TOOL_CALLS]{text}")
    assert found.calls == calls
    assert all(len(id) == 9 and id.isalnum() for id in found.ids)
    if calls:
        assert found.content == ""


def test_mistrals_ids_are_the_models() -> None:
    said = "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}[TOOL_CALLS]now[CALL_ID]f5g6h7i8j[ARGS]{}"
    found = whole_and_in_pieces(lambda: Mistral().reader(NAMES, None, False), said)
    assert (found.content, found.calls) == ("", [NOW, NOW])
    assert found.ids == ["a1b2c3d4e", "f5g6h7i8j"]


def test_mistral_without_a_call() -> None:
    found = whole_and_in_pieces(lambda: Mistral().reader(NAMES, None, False), "It rains [TOOL_")
    assert (found.content, found.calls) == ("It rains [TOOL_", [])


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nhm <x\n</think>\n\nyes </think>", False, "hm <x", "yes </think>"),
        ("hm\n</think>yes", True, "hm", "yes"),
        ("<think></think>yes", False, "", "yes"),
        ("\n<think>hm", False, "hm", ""),
        ("hm </thi", True, "hm </thi", ""),
        ("<thin", False, "", "<thin"),
        (" yes <think>no</think>", False, "", " yes <think>no</think>"),
    ],
)
def test_thoughts_are_split_off(text: str, begun: bool, reasoning: str, content: str) -> None:
    found = whole_and_in_pieces(lambda: AnswerReader(None, True, begun), text)
    assert (found.reasoning, found.content) == (reasoning, content)


def test_thoughts_then_words_then_a_call() -> None:
    text = f"<think>a <tool_call> perhaps</think>\n\nI look.\n<tool_call>{CALL}</tool_call>"
    found = whole_and_in_pieces(lambda: AnswerReader(Hermes().reader(NAMES, None, False), True), text)
    assert found.reasoning == "a <tool_call> perhaps"
    assert (found.content, found.calls) == ("I look.", [PARIS])
