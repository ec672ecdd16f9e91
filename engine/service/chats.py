"""Chats from prompts: the messages that a chat template made a prompt of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandem.engine.base import InvalidRequest
from tandem.engine.text.tokenizer import Tokenizer

Messages = list[dict[str, str]]
_SYSTEM, _ASKED, _ANSWERED, _AGAIN = "Qsystemq", "Qaskedq", "Qansweredq", "Qagainq"


class ChatReader:
    """Reads prompts of one chat template, from what it writes around the messages of an example. Whatever is read is
    rendered again, and counts only if that gives the same prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise ValueError if the tokenizer has no template, or one that shows no messages."""
        self._tokenizer = tokenizer
        try:
            asked = self._shown([("user", _ASKED)])
            told = self._shown([("system", _SYSTEM), ("user", _ASKED)])
            again = self._shown([("user", _ASKED), ("assistant", _ANSWERED), ("user", _AGAIN)])
            self._first, self._end = _cut(asked, _ASKED)
            self._system, self._told, _ = _cut(told, _SYSTEM, _ASKED)
            _, self._answer, self._next, _ = _cut(again, _ASKED, _ANSWERED, _AGAIN)
        except (InvalidRequest, ValueError) as error:
            raise ValueError(f"route: chat needs a tokenizer with a chat template: {error}") from None

    def messages(self, prompt: Sequence[int]) -> Messages:
        """Return a chat's messages. Raise InvalidRequest for a prompt that is no chat of this template."""
        text = self._text(prompt)
        for messages in self._readings(text):
            if self._tokenizer.render_chat(messages) == list(prompt):
                return messages
        raise InvalidRequest(
            "the service takes only chats, and this prompt is no plain chat of the tokenizer's template"
        )

    def _readings(self, text: str) -> Iterator[Messages]:
        """Yield what the text may be: turns, or one message that only looks like them; with a system message or not."""
        if not text.endswith(self._end):
            return
        text = text.removesuffix(self._end)
        if text.startswith(self._first):
            asked = text.removeprefix(self._first)
            yield [*self._turns(asked)]
            yield [_message("user", asked)]
        if text.startswith(self._system):
            told, found, asked = text.removeprefix(self._system).partition(self._told)
            if found:
                yield [_message("system", told), *self._turns(asked)]
                yield [_message("system", told), _message("user", asked)]

    def _turns(self, text: str) -> Iterator[dict[str, str]]:
        while True:
            asked, answered, text = text.partition(self._answer)
            yield _message("user", asked)
            if not answered:
                return
            answer, _, text = text.partition(self._next)
            yield _message("assistant", answer)

    def _shown(self, chat: Sequence[tuple[str, str]]) -> str:
        return self._text(self._tokenizer.render_chat([_message(role, content) for role, content in chat]))

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _cut(text: str, *marks: str) -> list[str]:
    """Return what stands before, between and behind the marks. Raise ValueError if one is missing."""
    parts = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            raise ValueError("the template leaves out messages")
        parts.append(before)
    return [*parts, text]
