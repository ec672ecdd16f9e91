"""Splits what a model writes into its content and its calls of tools, as it comes."""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.app.api.tools.scanner import ObjectScanner
from tandem.engine.text.detokenizer import unfinished_length

ARGUMENTS = ("arguments", "parameters")
"""Keys that models give a call's arguments."""


@dataclass(slots=True)
class CallPart:
    """New of a call.

    index: number of the call.
    id, name: of a call that begins; None later.
    arguments: further text of its arguments.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parts:
    """New text of an answer: its content, what the model thinks before that, and calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)

    def add_calls(self, parts: Iterable[CallPart]) -> None:
        """Add new parts of calls. One call's are joined: some clients read only the first part in a chunk."""
        for part in parts:
            if self.calls and self.calls[-1].index == part.index:
                self.calls[-1].arguments += part.arguments
            else:
                self.calls.append(part)


class CallReader:
    """One call that is written as a JSON object with a name and arguments; its arguments come as they are written.

    done: whether the object is complete.
    failed: whether it is no call, or none of these tools.
    begun: whether its name is known, and given out.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """names: of the tools."""
        self._names, self._scanner = names, ObjectScanner()
        self._given = 0  # characters of the arguments
        self.done = self.failed = self.begun = False

    @property
    def raw(self) -> str:
        return self._scanner.raw

    def feed(self, text: str) -> tuple[str | None, str, str]:
        """Return the name once it is known, new text of the arguments, and what is left after the object."""
        scanner = self._scanner
        rest = scanner.feed(text)
        name = None
        if not self.begun and "name" in scanner.complete:
            found = scanner.value("name")
            if isinstance(found, str) and found in self._names:
                self.begun, name = True, found
            else:
                self.failed = True
        self.failed = self.failed or scanner.failed or (scanner.done and not self.begun)
        self.done = scanner.done
        return name, self._arguments() if self.begun else "", rest

    def _arguments(self) -> str:
        """Return new text of the arguments: as they are written if that is an object, at its end if it is a string."""
        scanner = self._scanner
        key = next((key for key in ARGUMENTS if key in scanner.values), None)
        if key is None:
            return "{}" if scanner.done else ""
        text = scanner.values[key]
        if text.startswith('"'):
            if key not in scanner.complete:
                return ""
            text = str(scanner.value(key))
        elif key not in scanner.complete:  # spaces at the end may be none of it
            text = text.rstrip()
        new, self._given = text[self._given :], max(self._given, len(text))
        return new


class NamedCallReader(CallReader):
    """A call whose name is known before its arguments, an object, come."""

    def __init__(self, names: frozenset[str], name: str) -> None:
        super().__init__(names)
        self._name = name

    def feed(self, text: str) -> tuple[str | None, str, str]:
        rest, name = self._scanner.feed(text), None if self.begun else self._name
        self.begun = self._name in self._names
        self.failed = not self.begun or self._scanner.failed
        self.done = self._scanner.done
        new, self._given = self.raw[self._given :], len(self.raw)
        return (name, new.lstrip() if name else new, rest) if self.begun else (None, "", rest)


class ToolReader(ABC):
    """Reads a family's notation.

    calls: number of calls that have begun.
    """

    def __init__(self, names: frozenset[str], most: int | None = None) -> None:
        """names: of the tools.
        most: most calls; further ones are dropped. None for any number.
        """
        self.names, self.most = names, most
        self.calls = 0
        self._text = ""  # not given out yet
        self._plain = False  # the rest is content
        self._call: CallReader | None = None

    def push(self, text: str) -> Parts:
        """Return what further text adds."""
        self._text += text
        parts = Parts()
        while not self._plain and self._step(parts):
            pass
        if self._plain:
            parts.content += self._text
            self._text = ""
        return parts

    @abstractmethod
    def _step(self, parts: Parts) -> bool:
        """Read on by one part of the notation; return whether more may be read."""

    @abstractmethod
    def flush(self) -> Parts:
        """Return what was held back, at the answer's end."""

    def new_id(self) -> str:
        """Return an id for a call."""
        return f"call_{secrets.token_hex(12)}"

    def told(self, name: str | None, arguments: str) -> list[CallPart]:
        """Return the new part of the latest call, which begins with its `name`; nothing beyond the most calls."""
        if name is not None:
            self.calls += 1
        if (self.most is not None and self.calls > self.most) or not (name or arguments):
            return []
        return [CallPart(self.calls - 1, self.new_id() if name else None, name, arguments)]


class MarkedReader(ToolReader):
    """Calls between marks, as Hermes and Qwen write them.

    Text before a call is content, without the white space at its end.
    """

    def __init__(self, begin: str, end: str, names: frozenset[str], most: int | None = None) -> None:
        super().__init__(names, most)
        self._begin, self._end = begin, end
        self._behind = False  # a call, before its end mark

    def flush(self) -> Parts:
        parts = Parts()
        if self._call is not None and not self._call.begun:
            parts.content = self._begin + self._call.raw
        elif self._call is None and not self._behind:
            parts.content = self._text if self._text.strip() or not self.calls else ""
        self._text = ""
        return parts

    def _step(self, parts: Parts) -> bool:
        if self._behind:
            return self._read_end()
        if self._call is not None:
            return self._read_call(self._call, parts)
        found = self._text.find(self._begin)
        if found >= 0:
            before = self._text[:found]
            parts.content += before.rstrip()
            self._text, self._call = self._text[found + len(self._begin) :], CallReader(self.names)
            return True
        safe = len(self._text) - unfinished_length(self._text, [self._begin])
        safe = len(self._text[:safe].rstrip())  # white space may stand before a call
        parts.content += self._text[:safe]
        self._text = self._text[safe:]
        return False

    def _read_call(self, call: CallReader, parts: Parts) -> bool:
        name, arguments, self._text = call.feed(self._text)
        parts.add_calls(self.told(name, arguments))
        if call.failed and not call.begun:
            parts.content += self._begin + call.raw
            self._call = None
            return True
        if call.done or call.failed:
            self._call, self._behind = None, True
            return True
        return False

    def _read_end(self) -> bool:
        """Drop everything up to the end mark; a call may follow without one."""
        found = [(at, mark) for mark in (self._end, self._begin) if (at := self._text.find(mark)) >= 0]
        if not found:
            self._text = self._text[
                len(self._text) - unfinished_length(self._text, [self._end, self._begin]) :
            ]
            return False
        at, mark = min(found)
        self._text = self._text[at + len(mark) * (mark == self._end) :]
        self._behind = False
        return True


class BareReader(ToolReader):
    """An answer that is nothing but calls, as Llama 3 writes them: objects, `;` or white space between them.

    mark: text before the first call, which may be missing.
    """

    def __init__(self, mark: str, names: frozenset[str], most: int | None = None) -> None:
        super().__init__(names, most)
        self._mark = mark

    def flush(self) -> Parts:
        held = self._call.raw if self._call is not None and not self._call.begun else ""
        content = "" if self.calls and not self._plain else held + self._text
        self._text, self._call = "", None
        return Parts(content)

    def _step(self, parts: Parts) -> bool:
        if self._call is not None:
            return self._read_call(self._call, parts)
        ahead = self._text.lstrip(" \t\r\n;" if self.calls else None)
        if not ahead or (self._mark.startswith(ahead) and ahead != self._mark):
            return False
        ahead = ahead.removeprefix(self._mark)
        if not ahead.strip():
            return False
        if ahead.lstrip().startswith("{"):
            self._call, self._text = CallReader(self.names), ahead.lstrip()
        else:
            self._plain = not self.calls  # what follows calls is dropped
            self._text = self._text if self._plain else ""
            return self._plain
        return True

    def _read_call(self, call: CallReader, parts: Parts) -> bool:
        name, arguments, self._text = call.feed(self._text)
        parts.add_calls(self.told(name, arguments))
        if call.failed and not call.begun:
            self._plain, self._call = True, None
            parts.content += call.raw
            return True
        if call.done or call.failed:
            self._call = None
            return True
        return False


class ListReader(ToolReader):
    """Calls after a mark as a JSON list, or each as a name, perhaps another mark and an id, a further mark and its
    arguments, as Mistral writes them.
    """

    def __init__(
        self, mark: str, argued: str, numbered: str, names: frozenset[str], most: int | None = None
    ) -> None:
        super().__init__(names, most)
        self._mark, self._argued, self._numbered = mark, argued, numbered
        self._called = False  # the mark was met
        self._id = ""  # of the next call, if it has one

    def new_id(self) -> str:
        """Return the call's id, or one as their chat templates demand."""
        return self._id or "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def flush(self) -> Parts:
        held = "" if self._called else self._text
        self._text = ""
        return Parts(held)

    def _step(self, parts: Parts) -> bool:
        if self._call is not None:
            return self._read_call(self._call, parts)
        if self._called:
            return self._begin_call(parts)
        found = self._text.find(self._mark)
        if found < 0:
            safe = len(self._text) - unfinished_length(self._text, [self._mark])
            parts.content += self._text[:safe]
            self._text = self._text[safe:]
            return False
        parts.content += self._text[:found].rstrip()
        self._text, self._called = self._text[found + len(self._mark) :], True
        return True

    def _begin_call(self, parts: Parts) -> bool:
        """Begin the next call where its arguments begin; return whether it has."""
        ahead = self._text.lstrip(" \t\r\n[,")
        if ahead.startswith("{"):
            self._call, self._text = CallReader(self.names), ahead
            return True
        if self._argued in self._text:
            name, mark, self._text = self._text.partition(self._argued)
            name, _, self._id = name.replace(self._mark, "").strip().partition(self._numbered)
            if name in self.names:
                self._call = NamedCallReader(self.names, name)
            else:
                self._plain = True
                parts.content += name + mark
            return True
        if ahead.startswith("]"):
            self._text = ""
        return False

    def _read_call(self, call: CallReader, parts: Parts) -> bool:
        name, arguments, self._text = call.feed(self._text)
        parts.add_calls(self.told(name, arguments))
        if call.failed:
            parts.content += "" if call.begun else call.raw
            self._call, self._plain = None, True
            return True
        if call.done:
            self._call = None
            return True
        return False


class FencedReader(ToolReader):
    """A family's notation, or an answer that begins with calls in blocks of code, as Qwen's models for code write them.

    An answer that begins otherwise, or with a block that is no call, is read as the family's. What follows a call and
    is no other is dropped.
    """

    def __init__(self, family: ToolReader) -> None:
        super().__init__(family.names, family.most)
        self._family = family
        self._familiar = False  # the family reads the answer
        self._fence = ""  # before the first object

    def new_id(self) -> str:
        """Return an id as the family's calls have them."""
        return self._family.new_id()

    def push(self, text: str) -> Parts:
        if not self._familiar:
            parts = super().push(text)
            if not self._familiar:
                return parts
            text, self._text = self._text, ""
        parts = self._family.push(text)
        self.calls = self._family.calls
        return parts

    def flush(self) -> Parts:
        if self.calls and not self._familiar:
            return Parts()
        held = "" if self._familiar else self._written()
        parts = [self._family.push(held), self._family.flush()]
        self.calls = self._family.calls
        parts[0].content += parts[1].content
        parts[0].add_calls(parts[1].calls)
        return parts[0]

    def _written(self) -> str:
        """Return what the answer has been so far, if it has no call."""
        return self._fence + ("" if self._call is None else self._call.raw) + self._text

    def _step(self, parts: Parts) -> bool:
        if self._familiar:
            return False
        if self._call is not None:
            return self._read_call(self._call, parts)
        begin = self._object_at()
        if begin is None:
            return False
        if begin < 0:
            self._familiar = not self.calls
            self._text = self._text if self._familiar else ""
            return False
        self._fence, self._text = self._text[:begin], self._text[begin:]
        self._call = CallReader(self.names)
        return True

    def _object_at(self) -> int | None:
        """Return where the next object begins; None if that is not known yet, -1 if none comes."""
        ahead = self._text.lstrip(" \t\r\n`" if self.calls else None)  # also other calls of the same block
        fence = "json" if self.calls else "```json"
        if fence.startswith(ahead):
            return None
        if not (ahead.startswith(fence) or (self.calls and ahead.startswith("{"))):
            return -1
        inside = ahead.removeprefix(fence).lstrip()
        return len(self._text) - len(inside) if inside.startswith("{") else -1 if inside else None

    def _read_call(self, call: CallReader, parts: Parts) -> bool:
        name, arguments, self._text = call.feed(self._text)
        parts.add_calls(self.told(name, arguments))
        if not (call.done or call.failed):
            return False
        if not self.calls:
            self._text, self._familiar = self._written(), True
        self._call = None
        return not self._familiar
