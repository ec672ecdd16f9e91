"""An engine whose sessions are counted: the tokens, or hidden states, that each took in and gave out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from tandem.engine.base import (
    DraftProbs,
    Drafts,
    Engine,
    EngineInfo,
    EngineStats,
    Forwarded,
    NoCapacity,
    Sampling,
    Session,
    Tensor,
    Tokens,
    Verdict,
)

Book = Callable[[int, int], object]
"""Told of each session, once: tokens taken in, tokens given out."""


class Counted:
    """The Engine protocol over another engine, which is somebody else's to close.

    check: asked before each session; raises EngineError where there may be no more.
    full: told when the engine has no room for one.
    """

    def __init__(
        self,
        engine: Engine,
        book: Book,
        check: Callable[[], object] = lambda: None,
        full: Callable[[], object] = lambda: None,
    ) -> None:
        self._engine, self._book, self._check, self._full = engine, book, check, full

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> CountedSession:
        self._check()
        try:
            session = await self._engine.open(prompt, sampling, log)
        except NoCapacity:
            self._full()
            raise
        return CountedSession(session, len(prompt) + len(log), self._book)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        pass


class CountedSession:
    """The Session protocol over another one."""

    def __init__(self, session: Session, taken_in: int, book: Book) -> None:
        self._session, self._book = session, book
        self._taken_in, self._given_out = taken_in, 0
        self._over = False

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        async with aclosing(self._session.generate()) as stream:
            async for tokens in stream:
                self._given_out += len(tokens.ids)
                yield tokens

    async def verify(self, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        verdict = await self._session.verify(drafts, probs)
        self._given_out += len(verdict.ids)
        return verdict

    async def draft(self, position: int, tokens: Sequence[int], window: int) -> Drafts:
        draft = await self._session.draft(position, tokens, window)
        self._taken_in += len(tokens)
        self._given_out += len(draft.ids)
        return draft

    async def extend(self, position: int, tokens: Sequence[int]) -> None:
        await self._session.extend(position, tokens)
        self._taken_in += len(tokens)

    async def forward(self, position: int, hidden: Tensor, wanted: int) -> Forwarded:
        forwarded = await self._session.forward(position, hidden, wanted)
        self._taken_in += hidden.shape[0]
        return forwarded

    async def cancel(self) -> None:
        if not self._over:
            self._over = True
            self._book(self._taken_in, self._given_out)
        await self._session.cancel()
