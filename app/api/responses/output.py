"""Output of a response as it comes: items, and the events by which a stream tells of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from tandem.app.api.completions.choice import ChoicePiece, Run, ScoredToken
from tandem.app.api.responses.objects import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
)
from tandem.app.api.tools.reader import CallPart

Event = tuple[str, dict[str, Any]]
"""Type and fields."""
Score = Callable[[Sequence[ScoredToken]], list[dict[str, Any]]]
"""Returns log-probabilities as the API shows them."""


class Output:
    """Items of one response: what the model thinks, its message, and its calls, one after the other.

    items: all of them; the last may be open.
    """

    def __init__(self, score: Score) -> None:
        self.items: list[OutputItem] = []
        self._score = score
        self._open = False  # the last item
        self._written: list[str] = []  # of the open item
        self._logprobs: list[dict[str, Any]] = []  # of the open item
        self._scored: list[ScoredToken] = []  # tokens without text so far
        self._runs: list[Run] = []  # not given out yet

    def push(self, piece: ChoicePiece) -> list[Event]:
        """Take in a piece; return its events. A text beside a new call is taken to stand before it."""
        events: list[Event] = []
        self._runs += piece.runs
        self._scored += piece.scored
        if piece.reasoning:
            if not self._is_open(OutputReasoning):
                events += self._begin(OutputReasoning(id=_new_id("rs_")))
            events += self._add(piece.reasoning)
        going_on = list(takewhile(lambda call: call.id is None, piece.calls))
        events += self._call(going_on)
        if piece.text:
            if not self._is_open(OutputMessage):
                events += self._begin(OutputMessage(id=_new_id("msg_")))
            events += self._add(piece.text)
        events += self._call(piece.calls[len(going_on) :])
        return events

    def end(self, complete: bool) -> list[Event]:
        """Close the output; return its events. complete: whether the model has come to an end."""
        events: list[Event] = []
        if not self.items:
            events += self._begin(OutputMessage(id=_new_id("msg_")))
        if self._scored and self._is_open(OutputMessage):
            events += self._add("")
        return events + self._close(complete)

    def _is_open(self, kind: type[OutputItem]) -> bool:
        return self._open and isinstance(self.items[-1], kind)

    def _call(self, parts: Sequence[CallPart]) -> list[Event]:
        """Return events of parts of calls."""
        events: list[Event] = []
        for part in parts:
            if part.id is not None and part.name is not None:
                events += self._begin(OutputCall(id=_new_id("fc_"), call_id=part.id, name=part.name))
            if part.arguments:
                events += self._add(part.arguments)
        return events

    def _begin(self, item: OutputItem) -> list[Event]:
        """Open an item, after the one before it."""
        events = self._close(complete=True)
        self.items.append(item)
        self._open = True
        added = {"output_index": len(self.items) - 1, "item": item.model_dump()}
        events.append(("response.output_item.added", added))
        if (part := item.part("", [])) is not None:
            events.append(("response.content_part.added", {**self._place(), "part": part.model_dump()}))
        return events

    def _add(self, text: str) -> list[Event]:
        """Add text to the open item."""
        self._written.append(text)
        fields: dict[str, Any] = {"delta": text}
        item = self.items[-1]
        if isinstance(item, OutputMessage):
            fields["logprobs"] = self._score(self._scored)
            self._logprobs += fields["logprobs"]
            self._scored = []
        fields["tandem"] = {"origins": self._runs}
        self._runs = []
        return [(f"response.{item.written}.delta", {**self._place(), **fields})]

    def _close(self, complete: bool) -> list[Event]:
        """Close the last item if it is open."""
        if not self._open:
            return []
        item, text, logprobs = self.items[-1], "".join(self._written), self._logprobs
        self._open, self._written, self._logprobs = False, [], []
        item.status = "completed" if complete else "incomplete"
        part, place = item.part(text, logprobs), self._place()
        done: dict[str, Any] = {"arguments" if part is None else "text": text}
        if isinstance(item, OutputMessage):
            done["logprobs"] = logprobs
        events: list[Event] = [(f"response.{item.written}.done", {**place, **done})]
        item.fill(text, logprobs)
        if part is not None:
            events.append(("response.content_part.done", {**place, "part": part.model_dump()}))
        last = {"output_index": len(self.items) - 1, "item": item.model_dump()}
        return [*events, ("response.output_item.done", last)]

    def _place(self) -> dict[str, Any]:
        """Return the place of the last item's text."""
        item = self.items[-1]
        content = {} if isinstance(item, OutputCall) else {"content_index": 0}
        return {"item_id": item.id, "output_index": len(self.items) - 1, **content}


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)
