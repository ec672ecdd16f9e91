"""Reading of a text, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tandem.app.api.tools.answer_reader import AnswerReader
from tandem.app.api.tools.reader import ToolReader


@dataclass
class Read:
    """An answer: its content, what was thought, and (name, arguments) of its calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def read(make: Callable[[], ToolReader | AnswerReader], pieces: Iterable[str]) -> Read:
    reader, found = make(), Read()
    for parts in (*map(reader.push, pieces), reader.flush()):
        found.content += parts.content
        found.reasoning += parts.reasoning
        for call in parts.calls:
            if call.name is not None:
                assert call.index == len(found.calls)
                found.calls.append((call.name, ""))
                found.ids.append(call.id or "")
            name, arguments = found.calls[call.index]
            found.calls[call.index] = name, arguments + call.arguments
    return found


def whole_and_in_pieces(make: Callable[[], ToolReader | AnswerReader], text: str) -> Read:
    """Return what is read, which may not depend on the pieces."""
    expected = read(make, [text])
    for size in (1, 2, 3, 7):
        found = read(make, [text[at : at + size] for at in range(0, len(text), size)])
        assert (found.content, found.reasoning, found.calls) == (
            expected.content,
            expected.reasoning,
            expected.calls,
        )
    return expected
