"""The prompt of a chat: line editing, several lines, history and completion of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output

CONTINUED = "\\"
"""Last character of a line that the next one belongs to."""


class Prompt:
    """Reads what is typed.

    history: file with what was typed before; None keeps it for this chat alone.
    commands: completed by Tab.
    input, output: terminal; None: the process's, also where stdout is a file.
    """

    def __init__(
        self,
        history: Path | None,
        commands: Sequence[str],
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("bold", "> ")]),
            multiline=True,
            prompt_continuation=FormattedText([("", "  ")]),
            history=InMemoryHistory() if history is None else FileHistory(history),
            completer=completer(commands),
            complete_while_typing=False,
            key_bindings=_keys(),
            input=input,
            output=output or create_output(always_prefer_tty=True),
        )

    def read(self) -> str:
        """Return what was typed. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return self._session.prompt()


def completer(commands: Sequence[str]) -> Completer:
    """Return what Tab completes: a command at the beginning."""
    return WordCompleter(list(commands), sentence=True)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(CONTINUED):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys
