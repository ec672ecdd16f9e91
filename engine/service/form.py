"""The form of an answer, checked as its text comes."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.base import FormBroken
from tandem.engine.text.grammar import Matcher
from tandem.engine.text.tokenizer import Tokenizer


class Form:
    """Form of one answer. White space around it is no part of it, and left out."""

    def __init__(
        self, matcher: Matcher, tokenizer: Tokenizer, output: Sequence[int], opening: str = ""
    ) -> None:
        """output: what the answer continues.
        opening: text before a form that begins the answer: the end of thoughts that the prompt has begun, as a service
            keeps thoughts to itself.
        """
        self._opening = [] if output else tokenizer.encode_bytes(opening.encode())
        self._matcher, self._tokenizer = matcher, tokenizer
        self._output, self._begun = list(output), bool(output)

    def begin(self, text: str) -> str:
        """Return a piece of the text without white space before the form."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text

    def take(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens that the form has next. Raise FormBroken if these are none."""
        known, output = len(self._output), [*self._output, *self._opening, *ids]
        self._opening = []
        if not self._matcher.follow(output):
            read = self._matcher.followed
            rest = b"".join(map(self._tokenizer.token_bytes, output[read:])).rstrip()
            output = output[:read] + (self._tokenizer.encode_bytes(rest) if rest else [])
            if not (self._matcher.follow(output) and self._matcher.complete):
                raise FormBroken("the service's text leaves the form that it was asked for")
        self._output = output
        return output[known:]

    def end(self) -> None:
        """Raise FormBroken if the form is not complete."""
        if not self._matcher.complete:
            raise FormBroken("the service's text ends before the form that it was asked for is complete")
