"""Reads an answer: what the model thinks first, its content, and its calls of tools."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tandem.app.api.tools.reader import Parts, ToolReader
from tandem.engine.base import Grammar
from tandem.engine.text.detokenizer import unfinished_length

BEGIN, END = "<think>", "</think>"


def may_think(template: str | None) -> bool:
    """Return whether a chat template is of a model that thinks before it answers."""
    return BEGIN in (template or "")


def begins_thinking(prompt: str) -> bool:
    """Return whether a prompt, or its end, begins the model's thoughts."""
    return prompt.rstrip().endswith(BEGIN)


def ends_thinking(prompt: str) -> bool:
    """Return whether a prompt, or its end, ends the model's thoughts, so that it has none."""
    return prompt.rstrip().endswith(END)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Thoughts with which a model may begin its answer. begun: whether the prompt has begun them."""

    begun: bool

    def before(self, grammar: Grammar) -> Grammar:
        """Return the form of an answer that has the grammar behind the thoughts."""
        return msgspec.structs.replace(grammar, end=END, begin="" if self.begun else BEGIN)


class AnswerReader:
    """Splits an answer's text as it comes.

    thought: whether the model has begun to think.
    """

    def __init__(self, tools: ToolReader | None, thinks: bool, begun: bool = False) -> None:
        """tools: reads calls; None if there are no tools.
        thinks: whether the model may begin with what it thinks.
        begun: whether the prompt has begun that.
        """
        self._tools = tools
        self._held = ""
        self.thought = thinks and begun
        self._written = False  # something of what it thinks
        self._place = "content" if not thinks else "thought" if begun else "start"

    @property
    def thinking(self) -> bool:
        """Whether the model thinks, or may be about to."""
        return self._place in ("start", "thought")

    @property
    def called(self) -> bool:
        """Whether the model has called a tool."""
        return self._tools is not None and self._tools.calls > 0

    def push(self, text: str) -> Parts:
        """Return what further text adds."""
        reasoning = ""
        if self._place != "content":
            reasoning, text = self._think(text)
        parts = self._tools.push(text) if self._tools is not None else Parts(text)
        parts.reasoning = reasoning
        return parts

    def flush(self) -> Parts:
        """Return what was held back, at the answer's end."""
        held, self._held = self._held, ""
        if self._place == "thought":
            return Parts(reasoning=held)
        parts = self._tools.flush() if self._tools is not None else Parts()
        parts.content = (held if self._place == "start" else "") + parts.content
        return parts

    def _think(self, text: str) -> tuple[str, str]:
        """Return what of the text, and of what was held back, is thought and what is said."""
        reasoning = ""
        self._held += text
        if self._place == "start":
            ahead = self._held.lstrip()
            if BEGIN.startswith(ahead) and ahead != BEGIN:
                return "", ""
            self._place = "thought" if ahead.startswith(BEGIN) else "content"
            self._held = ahead.removeprefix(BEGIN) if self._place == "thought" else self._held
        if self._place == "thought":
            self.thought = True
            if not self._written:
                self._held = self._held.lstrip()
            self._written = self._written or bool(self._held)
            thought, end, rest = self._held.partition(END)
            if not end:
                safe = len(thought) - unfinished_length(thought, [END])
                safe = len(thought[:safe].rstrip())
                self._held = thought[safe:]
                return thought[:safe], ""
            reasoning, self._held, self._place = thought.rstrip(), rest, "after"
        if self._place == "after":
            self._held = self._held.lstrip()
            if not self._held:
                return reasoning, ""
            self._place = "content"
        said, self._held = self._held, ""
        return reasoning, said
