"""The prompt: keys as a terminal sends them; and the whole command on a pseudoterminal, once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from tandem.app.cli.chat.prompt import Prompt, completer
from tests.app.api.null_backend import NullBackend
from tests.app.cli.chat.test_conversation import asked
from tests.app.cli.started import interruptible

ENTER, UP, ALT_ENTER, BACK, CTRL_A = "\r", "\x1b[A", "\x1b\r", "\x7f", "\x01"
Typing = Callable[[str], str]


@pytest.fixture
def backend(tmp_path: Path) -> NullBackend:
    return NullBackend(says="Three words.", ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


def prompt(keyboard: PipeInput, history: Path | None = None) -> Prompt:
    return Prompt(history, ["/help", "/history"], keyboard, DummyOutput())


@pytest.mark.parametrize(
    ("keys", "read"),
    [
        ("Hello?", "Hello?"),
        (f"ello?{CTRL_A}H", "Hello?"),
        (f"Hellp{BACK}o?", "Hello?"),
        (f"one{ALT_ENTER}two", "one\ntwo"),
        (f"one\\{ENTER}two", "one\ntwo"),
        ("\x1b[200~one\rtwo\x1b[201~", "one\ntwo"),
    ],
    ids=["plain", "inserted", "deleted", "alt-enter", "backslash", "pasted"],
)
def test_lines_are_edited(keyboard: PipeInput, keys: str, read: str) -> None:
    keyboard.send_text(keys + ENTER)
    assert prompt(keyboard).read() == read


def test_what_was_typed_comes_back_also_in_the_next_chat(keyboard: PipeInput, tmp_path: Path) -> None:
    first = prompt(keyboard, tmp_path / "history")
    keyboard.send_text(f"one\\{ENTER}two{ENTER}")
    first.read()
    keyboard.send_text(UP + UP + "!" + ENTER)
    assert first.read() == "one!\ntwo", "Up goes through the lines of a question, too"
    keyboard.send_text(UP + ENTER)
    assert prompt(keyboard, tmp_path / "history").read() == "one!\ntwo"


def test_ctrl_d_and_ctrl_c(keyboard: PipeInput) -> None:
    there = prompt(keyboard)
    keyboard.send_text("half\x03")
    with pytest.raises(KeyboardInterrupt):
        there.read()
    keyboard.send_text("\x04")
    with pytest.raises(EOFError):
        there.read()


@pytest.mark.parametrize(
    ("typed", "offered"), [("/h", ["/help", "/history"]), ("/he", ["/help"]), ("why /he", []), ("x", [])]
)
def test_commands_are_completed(typed: str, offered: list[str]) -> None:
    found = completer(["/help", "/history"]).get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == offered


def test_a_chat_on_a_terminal(url: str, backend: NullBackend, tmp_path: Path) -> None:
    """Ctrl-C while an answer is written stops it at the server, too, and the chat goes on."""
    backend.hold_after = 3
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path), "TERM": "xterm", "TANDEM_API_KEY": ""}
    environment |= {"PROMPT_TOOLKIT_NO_CPR": "1"}  # pexpect does not say where the cursor is
    command = [str(Path(sys.executable).with_name("tandem")), "chat", "--url", url, "--model", "null"]
    with interruptible():
        child = pexpect.spawn(
            command[0], command[1:], env=environment, encoding="utf-8", timeout=60, dimensions=(50, 200)
        )
    try:
        child.expect("/help lists.*1m>")
        child.send("Hello?\r")
        child.expect("\x1b\\[94m.*h.*r")  # in the cloud's colour
        child.sendintr()
        child.expect("stopped.*1m>")
        child.send("/hlp\r")
        child.expect("did you mean /help.*1m>")
        child.sendeof()
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 0
    assert asked(backend) == [" Hello?"]
    assert "Hello?" in (tmp_path / "tandem" / "history").read_text()
