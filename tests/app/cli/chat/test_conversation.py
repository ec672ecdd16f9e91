"""A conversation: what it remembers, and sends."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tandem.app.cli.chat.session import Chat
from tandem.app.client.http import ClientError
from tests.app.api.null_backend import NullBackend


def asked(backend: NullBackend) -> list[str]:
    return [backend.tokenizer("null").decode(job.prompt) for job in backend.jobs]


def ask(chat: Chat, question: str) -> None:
    with chat.talk.ask(question) as stream:
        list(stream)


def stop(chat: Chat, question: str, after: int) -> str:
    """Press Ctrl-C after so many pieces of the answer; return its text until then."""
    with suppress(KeyboardInterrupt), chat.talk.ask(question) as stream:
        text = "".join(next(stream).text for _ in range(after))
        raise KeyboardInterrupt
    return text


def test_it_remembers_and_forgets(chat: Chat, backend: NullBackend) -> None:
    chat.talk.system = "Sys."
    ask(chat, "One?")
    ask(chat, "Two?")
    chat.talk.restart()
    ask(chat, "Three?")
    assert chat.talk.last is not None
    answer = chat.talk.last.text
    assert asked(backend) == [" Sys. One?", f" Sys. One? {answer} Two?", " Sys. Three?"]


def test_a_stopped_answer_is_remembered_as_far_as_it_came(chat: Chat) -> None:
    text = stop(chat, "One?", after=1)
    assert text
    assert [message["content"] for message in chat.talk.messages] == ["One?", text]
    assert stop(chat, "Two?", after=0) == ""
    assert len(chat.talk.messages) == 2, "nothing had come"


def test_a_failed_answer_is_not(chat: Chat, backend: NullBackend) -> None:
    backend.fail_after = (1, RuntimeError("odd"))
    with pytest.raises(ClientError):
        ask(chat, "One?")
    assert chat.talk.messages == []


def test_it_goes_on_from_other_messages(chat: Chat, backend: NullBackend) -> None:
    said = [
        {"role": "system", "content": "Sys."},
        {"role": "user", "content": "Zero?"},
        {"role": "assistant", "content": "No."},
    ]
    ask(chat, "Forgotten?")
    chat.talk.resume(said)
    assert (chat.talk.messages, chat.talk.system, chat.talk.last) == (said, "Sys.", None)
    ask(chat, "One?")
    chat.talk.resume(said[1:])
    assert (chat.talk.messages, chat.talk.system) == (said[1:], None)
    chat.talk.resume([])
    assert chat.talk.messages == []
    assert asked(backend)[1:] == [" Sys. Zero? No. One?"]
