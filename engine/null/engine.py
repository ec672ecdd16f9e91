"""An engine without a model: its next token is a fixed function of the tokens before it.

For tests, and for benchmarks of everything around an engine. It refuses what it cannot do: sampling other than
greedy, penalties, stop strings, logprobs and grammars.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any

from tandem.engine.base import (
    Draft,
    Drafts,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    Forward,
    Forwarded,
    InvalidRequest,
    Operation,
    Sampling,
    Tensor,
    Tokens,
    Verdict,
    Verify,
)
from tandem.engine.sessions.session import BaseSession
from tandem.engine.sessions.table import SessionTable
from tandem.engine.validation import check_request


class NullSession(BaseSession):
    """A session of a NullEngine. Another class can be set as `NullEngine.session_class`."""

    def __init__(
        self, engine: NullEngine, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]
    ) -> None:
        super().__init__(engine.info)
        self._engine = engine
        self.prompt, self.sampling, self.output = list(prompt), sampling, list(log)

    @property
    def finish(self) -> str | None:
        """ "stop" or "length" at the output's end; None before."""
        if self.output and self.output[-1] in self.sampling.stop_tokens:
            return "stop"
        return "length" if len(self.output) >= self.sampling.max_tokens else None

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        try:
            while (finish := self.finish) is None:
                await self._pause(1)
                self._check()
                self.output.append(self._engine.next_token(self.prompt, self.output))
                self._engine.counters.tokens_generated += 1
                finish = self.finish
                yield Tokens([self.output[-1]], finish)
                if finish:
                    return
            yield Tokens([], finish)
        finally:
            self._finish()

    def _run(self, operation: Operation[Any]) -> Awaitable[Any]:
        match operation:
            case Verify():
                return self._verify(operation)
            case Draft():
                return self._draft(operation)
            case Extend():
                return self._extend(operation)
            case Forward():
                return self._forward(operation)
        raise self._lacks(operation.name)

    async def _verify(self, operation: Verify) -> Verdict:
        await self._pause(1)
        self._check()
        ids: list[int] = []
        accepted = 0
        for drafted in [*operation.ids, None]:
            if self.finish:
                break
            own = self._engine.next_token(self.prompt, self.output)
            self.output.append(own)
            ids.append(own)
            if drafted != own:
                break
            accepted += 1
        counters = self._engine.counters
        counters.tokens_verified += len(operation.ids)
        counters.tokens_accepted += accepted
        counters.tokens_generated += len(ids)
        return Verdict(accepted, ids, self.finish)

    async def _draft(self, operation: Draft) -> Drafts:
        self._replace(operation.position, operation.ids)
        ids: list[int] = []
        while len(ids) < operation.window and not self.finish:
            token = self._engine.proposal(self.prompt, self.output)
            self.output.append(token)
            ids.append(token)
        await self._pause(len(ids))
        self._check()
        self._engine.counters.tokens_drafted += len(ids)
        return Drafts(ids)

    async def _extend(self, operation: Extend) -> None:
        self._replace(operation.position, operation.ids)

    async def _forward(self, operation: Forward) -> Forwarded:
        """Return the wanted states as they came."""
        rows = operation.hidden.numpy()
        return Forwarded(Tensor.of(rows[len(rows) - operation.wanted :]), len(rows))

    async def cancel(self) -> None:
        if self._end():
            self._engine.remove(self)

    def stop(self, error: EngineError) -> None:
        """End the session because the engine has closed."""
        self._end(error)

    def _replace(self, position: int, tokens: Sequence[int]) -> None:
        if not 0 <= position <= len(self.output):
            raise InvalidRequest(f"position {position} is outside the output of {len(self.output)} tokens")
        self.output[position:] = tokens

    def _pause(self, tokens: int) -> Coroutine[Any, Any, None]:
        """Wait the duration of `tokens` tokens; at least one turn of the event loop."""
        if pause_s := self._engine.token_s * tokens:
            return self._wait(partial(self._loop.call_later, pause_s))
        return asyncio.sleep(0)


class NullEngine:
    """Deterministic tokens at a settable pace.

    tokens_per_s: pace of a session; None for the event loop's own.
    mistake_every: while drafting, every n-th output position is proposed wrong, so that verification has something to
        reject; 0 for none.
    vocab_size: tokens of the vocabulary.
    context: most tokens of prompt and output together.
    capacity: most open sessions.
    """

    session_class = NullSession

    def __init__(
        self,
        tokens_per_s: float | None = None,
        mistake_every: int = 0,
        vocab_size: int = 2048,
        context: int = 512,
        capacity: int = 1024,
    ) -> None:
        self.info = EngineInfo("null", f"null-{vocab_size}", vocab_size, context, eos=2)
        self.token_s = 0.0 if tokens_per_s is None else 1.0 / tokens_per_s
        self._table = SessionTable[NullSession](capacity)
        self.counters = self._table.counters
        self._mistake_every = mistake_every
        self._stopped = False

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        if self._stopped:
            raise EngineStopped(_CLOSED)
        check_request(prompt, log, sampling, self.info.vocab_size, self.info.context)
        if not sampling.greedy or sampling.stop or sampling.logprobs >= 0 or sampling.grammar is not None:
            raise InvalidRequest("the null engine is greedy and knows no stop strings, logprobs or grammars")
        self._table.check_room()
        session = self.session_class(self, prompt, sampling, log)
        self._table.add(session)
        self.counters.opened += 1
        self.counters.tokens_prefilled += len(prompt) + len(log) - 1
        return session

    def next_token(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Return the token after `output`; never a special one (ids below 16)."""
        last = output[-1] if output else prompt[-1]
        return 16 + (last * 31 + len(prompt) * 7 + len(output) * 13) % (self.info.vocab_size - 16)

    def proposal(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Return the token that a draft proposes after `output`: the next one, or a mistake."""
        token = self.next_token(prompt, output)
        if self._mistake_every and len(output) % self._mistake_every == self._mistake_every - 1:
            return 16 + (token - 15) % (self.info.vocab_size - 16)
        return token

    def remove(self, session: NullSession) -> None:
        """Remove a session that has ended."""
        self._table.remove(session)

    async def stats(self) -> EngineStats:
        return self._table.stats()

    async def close(self) -> None:
        self._stopped = True
        for session in self._table.clear():
            session.stop(EngineStopped(_CLOSED))


_CLOSED = "the null engine is closed"
