"""Opening: the answer's first sentence, which the target writes from the sketch's first note beside the rest of it.

Its tokens are said as they come. Small models need the whole sketch, the target does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

import msgspec

from tandem.deployments.request.session import EndpointSession
from tandem.engine.base import EngineError, Sampling
from tandem.engine.sketch.base import Question, SketchFormat

IDLE = 0.5
"""Share of the target's places that other requests may have: if all had second sessions, there would be no more."""
LONGEST = 96
"""Tokens beyond which a first sentence counts as endless."""


class Opening:
    """A first sentence in the making.

    said: its tokens that were handed out.
    whole: whether it is at its end, and all of it was handed out.
    """

    def __init__(self, format: SketchFormat, question: Question, session: EndpointSession) -> None:
        self.said: list[int] = []
        self.whole = False
        self._format, self._question, self._session = format, question, session
        self._written: list[int] = []
        self._ended = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Begin to write it. sampling: of the answer."""
        sampling = msgspec.structs.replace(
            sampling,
            max_tokens=min(LONGEST, sampling.max_tokens),
            stop=(),
            stop_tokens=(),
            grammar=self._format.sentence_form(),
        )
        self._task = asyncio.create_task(self._write(prompt, sampling))
        self._task.add_done_callback(lambda _: self._news.set())

    @property
    def begun(self) -> bool:
        """Whether there is a word of it."""
        return bool(self._written)

    def fresh(self) -> list[int]:
        """Return the tokens that were not handed out yet, as handed out."""
        ids = self._format.sentence(self._question, self._written, 0)[len(self.said) :]
        self.said += ids
        self.whole = self._ended
        return ids

    async def rest(self) -> AsyncGenerator[list[int], None]:
        """Yield its tokens as they come, until it is whole or has failed."""
        assert self._task is not None
        while True:
            over = self._task.done()
            self._news.clear()
            if ids := self.fresh():
                yield ids
            if over:
                return
            await self._news.wait()

    def stop(self) -> None:
        """Have the writing end; returns before it has."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Have the writing end, and return when it has."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self, prompt: Sequence[int], sampling: Sampling) -> None:
        with suppress(EngineError):
            try:
                await self._session.open(prompt, sampling)
                async with aclosing(self._session.generate()) as stream:
                    async for tokens in stream:
                        self._written += tokens.ids
                        self._ended = tokens.finish == "stop"
                        self._news.set()
            finally:
                await self._session.close()  # its place is free for others
