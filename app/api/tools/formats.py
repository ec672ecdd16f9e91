"""Notations in which model families call tools; the chat template tells the family."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tandem.app.api.tools.forms import FunctionForm
from tandem.app.api.tools.reader import BareReader, FencedReader, ListReader, MarkedReader, ToolReader
from tandem.engine.grammar import json_options

LARK = "%llguidance {}\n"
"""Beginning that tells the notation."""


class ToolFormat(ABC):
    """A family's notation.

    name: of the format.
    marks: special tokens that are part of it.
    told: whether the chat template tells the model of the tools; otherwise a system message does.
    textual: whether calls are text alone, so that one grammar holds them and other answers.
    """

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    told: bool = True
    textual: ClassVar[bool] = True

    @abstractmethod
    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        """Return a reader of one answer.

        names: of the tools.
        most: most calls; None for any number.
        forced: whether the answer has to be calls, see `opening`.
        """

    @abstractmethod
    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        """Return rules in Lark's notation, the first of them `calls`: one call or, if `parallel`, some."""

    def beside(self, parallel: bool) -> str:
        """Return the rule `start` of an answer that may be text with calls in it; empty if the notation has no mark to
        tell them apart."""
        return ""

    def opening(self) -> tuple[str, ...]:
        """Return the special tokens with which an answer begins that has to be calls: the grammar is over text."""
        return ()


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


class Mistral(ToolFormat):
    """Mistral: a special token and a list of objects."""

    name = "mistral"
    marks = ("[TOOL_CALLS]", "[ARGS]")
    textual = False

    def reader(self, names: frozenset[str], most: int | None, forced: bool) -> ToolReader:
        return ListReader(*self.marks, names, most, forced)

    def grammar(self, functions: Sequence[FunctionForm], parallel: bool) -> str:
        more = '(", " object)*' if parallel else ""
        return f'calls: "[" object {more} "]"\n{_calls(functions, "arguments")}'

    def opening(self) -> tuple[str, ...]:
        return self.marks[:1]


def format_of(template: str | None) -> ToolFormat:
    """Return the format that a chat template speaks of; Hermes' for one that knows no tools."""
    template = template or ""
    if "[TOOL_CALLS]" in template:
        return Mistral()
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
        schema = schema_text(_closed(function.parameters), function.strict)
        rules += [f'call_{i}: {head} arguments_{i} "}}"', f"arguments_{i}: %json {schema}"]
    return "\n".join(rules) + "\n"


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
