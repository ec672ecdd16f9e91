"""Notations in which model families call tools; the chat template tells the family."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tandem.app.api.tools.forms import FunctionForm
from tandem.app.api.tools.reader import BareReader, FencedReader, ListReader, MarkedReader, ToolReader
from tandem.engine.base import Grammar
from tandem.engine.text.grammar import json_options

LARK = "%llguidance {}\n"
"""Beginning that tells the notation."""


class ToolFormat(ABC):
    """A family's notation.

    name: of the format.
    marks: special tokens that are part of it.
    tokens: those that its grammar names, see `Grammar.tokens`.
    told: whether the chat template tells the model of the tools; otherwise a system message does.
    """

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    tokens: tuple[str, ...] = ()
    told: bool = True

    @abstractmethod
    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        """Return a reader of one answer.

        names: of the tools.
        most: most calls; None for any number.
        forced: whether the answer has to be calls.
        """

    @abstractmethod
    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        """Return rules in Lark's notation, the first of them `calls`: one call or, if `parallel`, some."""

    def beside(self, parallel: bool) -> str:
        """Return the rule `start` of an answer that may be text with calls in it; empty if the notation has no mark to
        tell them apart."""
        return ""

    def other(self, form: Grammar, functions: Sequence[FunctionForm]) -> str:
        """Return the rule `other`, and those that it needs, of an answer in JSON that calls none of the functions."""
        return f"other: %json {schema_text(json.loads(form.source or _ANY_OBJECT), form.strict)}\n"


class Hermes(ToolFormat):
    """NousResearch's Hermes, and Qwen: objects between tags."""

    name = "hermes"

    def __init__(self, told: bool = True) -> None:
        self.told = told

    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        marked = MarkedReader("<tool_call>", "</tool_call>", names, most)
        return marked if forced else FencedReader(marked)

    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        rules = _calls(functions, "arguments")
        more = '("\\n" call)*' if parallel else ""
        return f'calls: call {more}\ncall: "<tool_call>" rest\nrest: "\\n" object "\\n</tool_call>"\n{rules}'

    def beside(self, parallel: bool) -> str:
        many = "*" if parallel else "?"
        return f'start: (head rest){many} TEXT\nhead[lazy]: TEXT "<tool_call>"\nTEXT: /(.|\\n)*/\n'


class Llama3(ToolFormat):
    """Meta's Llama 3.1 to 3.3: the answer is one object."""

    name = "llama3"
    marks = ("<|python_tag|>",)

    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        return BareReader(self.marks[0], names, most)

    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        """Return a grammar of one call: the chat template takes no more in a message."""
        return f"calls: object\n{_calls(functions, 'parameters', apart=True)}"

    def other(self, form: Grammar, functions: Sequence[FunctionForm]) -> str:
        """Return rules of which any object is no call: it has no function's name."""
        if form.kind != "json_object":
            return super().other(form, functions)
        names = " | ".join(json.dumps(json.dumps(function.name)) for function in functions)
        return _NO_CALL.replace("NAMES", names)


class Mistral(ToolFormat):
    """Mistral: a special token and a list of objects.

    Later models write each call by itself: that token, the function's name, perhaps a token and an id, another token
    and the arguments.
    """

    name = "mistral"
    marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def __init__(self, listed: bool = True, numbered: bool = False) -> None:
        """listed: whether calls are a list.
        numbered: whether others have ids.
        """
        self._listed, self._numbered = listed, numbered
        self.tokens = self.marks[: 1 if listed else 3 if numbered else 2]

    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        return ListReader(*self.marks, names, most)

    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        if self._listed:
            more = '(", " object)*' if parallel else ""
            return f'calls: token_0 "[" object {more} "]"\n{_calls(functions, "arguments")}'
        number = "token_2 ID" if self._numbered else ""
        rules = ["calls: call+" if parallel else "calls: call"]
        rules += ["call: token_0 (" + " | ".join(f"call_{i}" for i in range(len(functions))) + ")"]
        rules += ["ID: /[a-zA-Z0-9]{9}/"] if number else []
        for i, function in enumerate(functions):
            rules += [f"call_{i}: {json.dumps(function.name)} {number} token_1 arguments_{i}"]
        return "\n".join([*rules, *_arguments(functions)]) + "\n"

    def beside(self, parallel: bool) -> str:
        return "start: TEXT calls?\nTEXT: /(.|\\n)*/\n"


def format_of(template: str | None) -> ToolFormat:
    """Return the format that a chat template speaks of; Hermes' for one that knows no tools."""
    template = template or ""
    if "[TOOL_CALLS]" in template:
        return Mistral("[ARGS]" not in template, "[CALL_ID]" in template)
    if "<tool_call>" in template:
        return Hermes()
    if '"parameters": ' in template and "ipython" in template:
        return Llama3()
    return Hermes(told="tools" in template)


def _calls(functions: Sequence[FunctionForm], key: str, apart: bool = False) -> str:
    """Return the rule `object`, one call of any of the functions, and those that it needs.

    key: of the arguments.
    apart: whether each sign is a word of its own, as in other JSON: where both may come, one text is not to be two
        sequences of words.
    """
    rules = ["object: " + " | ".join(f"call_{i}" for i in range(len(functions)))]
    if apart:
        rules += [r"COLON: /:\x20?/", r"COMMA: /,\x20?/"]
    for i, function in enumerate(functions):
        name = json.dumps(function.name)
        head = json.dumps(f'{{"name": {name}, "{key}": ')
        if apart:
            brace, key_of_name, value, key_of_arguments = map(json.dumps, ("{", '"name"', name, f'"{key}"'))
            head = f"{brace} {key_of_name} COLON {value} COMMA {key_of_arguments} COLON"
        rules += [f'call_{i}: {head} arguments_{i} "}}"']
    return "\n".join([*rules, *_arguments(functions)]) + "\n"


def _arguments(functions: Sequence[FunctionForm]) -> list[str]:
    """Return the rules of the functions' arguments."""
    return [
        f"arguments_{i}: %json {schema_text(_closed(function.parameters), function.strict)}"
        for i, function in enumerate(functions)
    ]


def _closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of arguments that are all named, unless it says itself what others there may be."""
    opens = {
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
    }
    closed = (
        {"additionalProperties": False} if "properties" in parameters and opens.isdisjoint(parameters) else {}
    )
    return {"type": "object", **parameters, **closed}


def schema_text(schema: Any, strict: bool) -> str:
    """Return a schema for a rule; what cannot be enforced is ignored unless it is strict."""
    written = {**schema, "x-guidance": json_options(strict)} if isinstance(schema, dict) else schema
    return json.dumps(written, ensure_ascii=False)


_ANY_OBJECT = '{"type": "object"}'
_NO_CALL = r"""other: "{" (member (COMMA member)*)? "}"
member: KEY COLON value | "\"name\"" COLON unnamed
KEY: TEXT & ~"\"name\""
unnamed: UNNAMED | plain
UNNAMED: TEXT & ~(NAMES)
value: TEXT | plain
plain: NUMBER | "true" | "false" | "null" | dictionary | array
dictionary: "{" (TEXT COLON value (COMMA TEXT COLON value)*)? "}"
array: "[" (value (COMMA value)*)? "]"
TEXT: /"([^"\\\x00-\x1f]|\\["\\\/bfnrt])*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
"""
_TOLD = """You may call functions to help with the user's query. Their signatures are within <tools></tools>:
<tools>
{tools}
</tools>
For each call, write a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def introduction(functions: Sequence[FunctionForm]) -> str:
    """Return a system message that tells a model of its tools, in Hermes' words."""
    shown = [
        json.dumps(f.model_dump(exclude_none=True, exclude={"strict"}), ensure_ascii=False) for f in functions
    ]
    return _TOLD.format(tools="\n".join(shown))
