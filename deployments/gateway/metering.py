"""An engine whose sessions are counted: the tokens, or hidden states, that each took in and gave out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from tandem.engine.base import (
    Engine,
    EngineInfo,
    EngineStats,
    NoCapacity,
    Operation,
    R,
    Sampling,
    Session,
    Tokens,
)

Book = Callable[[int, int], object]
"""Told of tokens that a session has taken in, and given out, since it was told last: soon after, and at the end."""
BOOK_S = 0.25
"""Longest that tokens are not told of: what a killed process takes along."""


class Counted:
    """Metered engine: the Engine protocol over another engine, which its owner closes.

    check: called before each session; raises EngineError if there may be no more.
    full: called when the engine has no room.
    owner: of its sessions; handles of states that they have kept are this owner's alone.
    """

    def __init__(
        self,
        engine: Engine,
        book: Book,
        check: Callable[[], object] = lambda: None,
        full: Callable[[], object] = lambda: None,
        owner: str = "",
    ) -> None:
        self._engine, self._book, self._check, self._full, self._owner = engine, book, check, full, owner

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> CountedSession:
        self._check()
        if sampling.kept:
            sampling = msgspec.structs.replace(sampling, kept=f"{self._owner}/{sampling.kept}")
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


class CountedSession(Session):
    """The Session protocol over another one."""

    def __init__(self, session: Session, taken_in: int, book: Book) -> None:
        self._session, self._book = session, book
        self._taken_in, self._given_out = taken_in, 0
        self._told = 0, 0  # how many of each were told of
        self._unbilled_in = taken_in  # since the last bill of a service
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._tell_soon()

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        given_out = 0
        async with aclosing(self._session.generate()) as stream:
            async for tokens in stream:
                given_out += len(tokens.ids)
                self._given_out += len(tokens.ids)
                if (usage := tokens.usage) is not None:  # that is what the service asks money for
                    self._given_out += usage.tokens_out - given_out
                    self._taken_in += usage.tokens_in - self._unbilled_in
                    self._unbilled_in = 0
                self._tell_soon()
                yield tokens

    async def call(self, operation: Operation[R]) -> R:
        result = await self._session.call(operation)
        self._taken_in += operation.taken_in
        self._unbilled_in += operation.taken_in
        self._given_out += operation.given_out(result)
        self._tell_soon()
        return result

    async def cancel(self) -> None:
        if not self._over:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
            self._tell()
        await self._session.cancel()

    def _tell_soon(self) -> None:
        if self._timer is None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(BOOK_S, self._tell)

    def _tell(self) -> None:
        """Book what was not told of yet."""
        self._timer = None
        taken_in, given_out = self._taken_in - self._told[0], self._given_out - self._told[1]
        self._told = self._taken_in, self._given_out
        if taken_in or given_out:
            self._book(taken_in, given_out)
