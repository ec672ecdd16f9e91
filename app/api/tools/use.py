"""A request's use of tools, in its model's notation: the prompt, the answer's form, and its reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandem.app.api.tools.formats import LARK, ToolFormat, format_of, introduction
from tandem.app.api.tools.forms import Choice, Tool
from tandem.app.api.tools.reader import ToolReader
from tandem.engine.base import Grammar
from tandem.engine.text.tokenizer import Tokenizer

Chat = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that a model may or has to call.

    format: the model's notation.
    tools: those that it is told of.
    choice: whether it has to call one, and which.
    parallel: whether it may call several at once.
    """

    format: ToolFormat
    tools: list[Tool]
    choice: Choice
    parallel: bool

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.choice.type in ("required", "function")

    def chat(self, messages: Chat) -> Chat:
        """Return the messages for the chat template, which tell of the tools if it does not."""
        if self.format.told:
            return messages
        told = introduction([tool.function for tool in self.tools])
        return _with_system(told, [_in_words(message) for message in messages])

    def variables(self) -> dict[str, Any]:
        """Return the chat template's variables."""
        return {"tools": [tool.for_template() for tool in self.tools]} if self.format.told else {}

    def reader(self) -> ToolReader:
        """Return a reader of one answer's calls."""
        names = frozenset(tool.function.name for tool in self.tools)
        return self.format.reader(names, None if self.parallel else 1, self.forced)

    def grammar(self, otherwise: Grammar | None) -> Grammar | None:
        """Return the form of the answer; None for any.

        otherwise: form in JSON of an answer that calls nothing; None for any.
        """
        functions = [tool.function for tool in self.tools]
        if self.choice.function is not None:
            functions = [f for f in functions if f.name == self.choice.function.name]
        rules = self.format.grammar(functions, self.parallel and self.choice.type != "function")
        if self.forced:
            return self._ruled(f"start: calls\n{rules}")
        if otherwise is not None:
            return self._ruled(f"start: calls | other\n{self.format.other(otherwise, functions)}{rules}")
        if any(f.strict for f in functions) and (beside := self.format.beside(self.parallel)):
            return self._ruled(f"{beside}{rules}")
        return None

    def _ruled(self, rules: str) -> Grammar:
        """Return the form of these rules."""
        return Grammar("grammar", LARK + rules, tokens=self.format.tokens)


def tool_use(
    tools: Sequence[Tool], choice: Choice | None, parallel: bool, tokenizer: Tokenizer
) -> ToolUse | None:
    """Return the use of a request's tools; None if there are none, or the model is to call none."""
    choice = choice or Choice(type="auto")
    if not tools or choice.type == "none":
        return None
    return ToolUse(format_of(tokenizer.tool_template), list(tools), choice, parallel)


def _with_system(told: str, messages: Chat) -> Chat:
    """Return the messages with a text at the end of the system's."""
    match messages:
        case [{"role": "system", "content": str(said)} as first, *others]:
            return [{**first, "content": f"{said}\n\n{told}"}, *others]
    return [{"role": "system", "content": told}, *messages]


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with calls and their results as text, for templates that know neither."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = [
        json.dumps({"name": f["name"], "arguments": f["arguments"]}, ensure_ascii=False)
        for f in (call["function"] for call in message["tool_calls"])
    ]
    said = [message["content"]] if message["content"] else []
    content = "\n".join([*said, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
    return {"role": "assistant", "content": content}
