"""A conversation with a server: its messages, and the wishes that go with every question."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tandem.app.client.client import Answer, Stream
from tandem.app.client.http import HttpClient

Message = dict[str, str]


class Conversation:
    """Keeps the messages and sends them with each question.

    request: body of a chat request without messages; a change counts from the next question on.
    last: the last answer; None before it.
    """

    def __init__(self, client: HttpClient, request: Mapping[str, Any], system: str | None = None) -> None:
        self.request: dict[str, Any] = copy.deepcopy({"tandem": {}, **request})
        self.last: Answer | None = None
        self._client = client
        self._system = system
        self._said: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """Return all messages so far, a system message first."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._said]

    @property
    def system(self) -> str | None:
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = text

    def restart(self) -> None:
        """Forget everything but the system message and the wishes."""
        self._said, self.last = [], None

    def resume(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Go on from messages of another conversation, in place of this one's."""
        self.restart()
        self._said = [dict(message) for message in messages]
        begins = bool(messages) and messages[0]["role"] == "system"
        self._system = self._said.pop(0)["content"] if begins else None

    @contextmanager
    def ask(self, question: str) -> Iterator[Stream]:
        """Send a question; the answer streams inside the block.

        Question and answer are remembered at the end of the block, as far as the answer came if the block is left by
        Ctrl-C, and not at all if it failed. Raises ClientError.
        """
        asked = {"role": "user", "content": question}
        request = {**self.request, "messages": [*self.messages, asked]}
        with Stream(self._client.chat(request)) as stream:
            try:
                yield stream
            except KeyboardInterrupt:
                if stream.answer.text:
                    self._remember(asked, stream.answer)
                raise
        self._remember(asked, stream.answer)

    def _remember(self, asked: Message, answer: Answer) -> None:
        self.last = answer
        self._said += [asked, {"role": "assistant", "content": answer.text}]
