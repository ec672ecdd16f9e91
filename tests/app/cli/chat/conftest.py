"""A chat with a null model, and typed lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.app.cli.chat.conversation import Conversation
from tandem.app.cli.chat.session import Chat
from tandem.app.cli.chat.store import Store
from tandem.app.client.http import HttpClient
from tests.app.cli.screens import screen

Typed = Callable[..., Callable[[], str]]


@pytest.fixture
def chat(url: str, tmp_path: Path) -> Iterator[Chat]:
    with HttpClient(url) as client:
        talk = Conversation(client, {"model": "null", "max_tokens": 2})
        yield Chat(client, talk, screen(terminal=False), Store(tmp_path / "data"))


@pytest.fixture
def typed() -> Typed:
    """Make a reader of the prompt that returns these lines, raises these errors, and then is at its end."""

    def make(*lines: str | type[BaseException]) -> Callable[[], str]:
        left = iter(lines)

        def read() -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        return read

    return make
