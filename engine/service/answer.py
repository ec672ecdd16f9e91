"""One answer of a service: from the text that comes to tokens of this side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tandem.engine.base import Tokens, Usage
from tandem.engine.core.token_queue import TokenQueue
from tandem.engine.service.client import ServiceClient
from tandem.engine.service.form import Form
from tandem.engine.text.detokenizer import StopStrings, unfinished_length
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import WordEncoder

FINISHES = ("stop", "length", "content_filter")
"""Ends of an output that a service may name; others count as stop."""


class Answer:
    """One answer of the service, read to its end. begun_s: when the first of it came; None before."""

    def __init__(
        self,
        client: ServiceClient,
        tokenizer: Tokenizer,
        request: tuple[Mapping[str, Any], bytes],
        stops: Stops,
        form: Form | None = None,
        trace: str = "",
    ) -> None:
        """request: as of RequestWriter.write. form: that the text must have. trace: as in Sampling."""
        self.begun_s: float | None = None
        self._client, self._words = client, WordEncoder(tokenizer)
        (self._body, self._half), self._stops, self._form, self._trace = request, stops, form, trace

    async def read(self, stream: TokenQueue) -> None:
        """Put the answer's tokens into the queue. Raise EngineError."""
        finish: str | None = None
        form = self._form
        usage: Usage | None = None
        now_s = asyncio.get_running_loop().time
        async with aclosing(self._client.stream(self._body, self._trace)) as chunks:
            async for chunk in chunks:
                usage = chunk.usage or usage
                text, stopped = self._stops.push(chunk.text if form is None else form.begin(chunk.text))
                over = stopped or (chunk.finish is not None and finish is None)
                if over:
                    finish = "stop" if stopped or chunk.finish not in FINISHES else chunk.finish
                    text += "" if stopped else self._stops.flush()
                data = self._without_half(text.encode("utf-8", "replace"))
                ids = self._words.flush(data) if over else self._words.push(data)
                if ids and (form is None or (ids := form.take(ids))):
                    stream.put(Tokens(ids))
                if over and finish == "stop" and form is not None and not self._stops.given:
                    form.end()
                if chunk.text and self.begun_s is None:
                    self.begun_s = now_s()
                if stopped:
                    break
        stream.put(Tokens([], finish, usage=usage))

    async def text(self) -> bytes:
        """Return the whole answer. Raise EngineError."""
        data = b""
        async with aclosing(self._client.stream(self._body, self._trace)) as chunks:
            async for chunk in chunks:
                data += self._without_half(chunk.text.encode("utf-8", "replace"))
        return data

    def _without_half(self, data: bytes) -> bytes:
        """Return the bytes without those that the output had of their first character."""
        if data and self._half:
            data, self._half = data.removeprefix(self._half), b""
        return data


class Stops:
    """Stop strings in an output, of which some is known. given: whether there are any."""

    def __init__(self, stops: Sequence[str], known: str) -> None:
        self.given = bool(stops)
        self._stops = StopStrings(stops)
        self._known = unfinished_length(known, stops)
        self._stops.push(known[len(known) - self._known :])

    def push(self, text: str) -> tuple[str, bool]:
        """Return text that is safe to give out, and whether a stop string was met."""
        safe, stopped = self._stops.push(text)
        return self._new(safe), stopped

    def flush(self) -> str:
        """Return the text held back, at the output's end."""
        return self._new(self._stops.flush())

    def _new(self, text: str) -> str:
        """Return the text without what was known before."""
        old = min(self._known, len(text))
        self._known -= old
        return text[old:]
