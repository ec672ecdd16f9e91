"""An engine without a model: its next token is a fixed function of the tokens before it.

For tests and for benchmarks of everything around an engine. Sampling other than greedy, penalties, stop
strings and logprobs have no meaning here and are refused rather than ignored.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence

from engine.base import (
    Draft,
    DraftProbs,
    EngineInfo,
    EngineStats,
    EngineStopped,
    InvalidRequest,
    NoCapacity,
    Sampling,
    SessionCancelled,
    Tokens,
    UnknownSession,
    Verdict,
)
from engine.checks import check_request


class _Session:
    def __init__(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]) -> None:
        self.prompt, self.sampling, self.output = list(prompt), sampling, list(log)


class NullEngine:
    """Deterministic tokens at a settable pace.

    tokens_per_s: pace of generate, per session; None: as fast as the event loop allows.
    mistake_every: while drafting, every n-th output position is proposed wrong (0: never), so that
        verification has something to reject.
    vocab_size, context, capacity: tokens, tokens, sessions.
    """

    def __init__(
        self,
        tokens_per_s: float | None = None,
        mistake_every: int = 0,
        vocab_size: int = 2048,
        context: int = 512,
        capacity: int = 1024,
    ) -> None:
        self.info = EngineInfo("null", f"null-{vocab_size}", vocab_size, context, eos=2)
        self._pause_s = 0.0 if tokens_per_s is None else 1.0 / tokens_per_s
        self._mistake_every = mistake_every
        self._capacity = capacity
        self._sessions: dict[int, _Session] = {}
        self._stats = EngineStats()
        self._stopped = False

    def next_token(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """The token after `output`; never a special one (ids below 16)."""
        last = output[-1] if output else prompt[-1]
        return 16 + (last * 31 + len(prompt) * 7 + len(output) * 13) % (self.info.vocab_size - 16)

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        if self._stopped:
            raise EngineStopped("the null engine is closed")
        check_request(prompt, log, sampling, self.info.vocab_size, self.info.context)
        if not sampling.greedy or sampling.stop or sampling.logprobs >= 0:
            raise InvalidRequest("the null engine is greedy and knows no stop strings or logprobs")
        if session in self._sessions:
            raise InvalidRequest(f"session {session} is already open")
        if len(self._sessions) >= self._capacity:
            raise NoCapacity(f"all {self._capacity} sessions are taken")
        self._sessions[session] = _Session(prompt, sampling, log)
        self._stats.opened += 1
        self._stats.tokens_prefilled += len(prompt) + len(log)

    def _get(self, session: int) -> _Session:
        if self._stopped:
            raise EngineStopped("the null engine is closed")
        try:
            return self._sessions[session]
        except KeyError:
            raise UnknownSession(f"no session {session} is open") from None

    def _finish(self, s: _Session) -> str | None:
        if s.output and s.output[-1] in s.sampling.stop_tokens:
            return "stop"
        return "length" if len(s.output) >= s.sampling.max_tokens else None

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        s = self._get(session)
        while (finish := self._finish(s)) is None:
            await asyncio.sleep(self._pause_s)
            if self._sessions.get(session) is not s:
                raise SessionCancelled(f"session {session} was cancelled")
            s.output.append(self.next_token(s.prompt, s.output))
            self._stats.tokens_generated += 1
            finish = self._finish(s)
            yield Tokens([s.output[-1]], finish)
            if finish:
                return
        yield Tokens([], finish)

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        s = self._get(session)
        await asyncio.sleep(self._pause_s)
        if self._sessions.get(session) is not s:
            raise SessionCancelled(f"session {session} was cancelled")
        ids: list[int] = []
        accepted = 0
        self._stats.tokens_verified += len(drafts)
        for drafted in [*drafts, None]:
            if self._finish(s):
                break
            own = self.next_token(s.prompt, s.output)
            s.output.append(own)
            ids.append(own)
            if drafted != own:
                break
            accepted += 1
        self._stats.tokens_accepted += accepted
        self._stats.tokens_generated += len(ids)
        return Verdict(accepted, ids, self._finish(s))

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        s = self._get(session)
        if not 0 <= position <= len(s.output):
            raise InvalidRequest(f"position {position} is outside the output of {len(s.output)} tokens")
        s.output[position:] = tokens

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        await self.extend(session, position, tokens)
        s = self._get(session)
        ids: list[int] = []
        for _ in range(window):
            if self._finish(s):
                break
            token = self.next_token(s.prompt, s.output)
            if self._mistake_every and len(s.output) % self._mistake_every == self._mistake_every - 1:
                token = 16 + (token - 15) % (self.info.vocab_size - 16)
            s.output.append(token)
            ids.append(token)
        await asyncio.sleep(self._pause_s * len(ids))
        self._stats.tokens_drafted += len(ids)
        return Draft(ids)

    async def cancel(self, session: int) -> None:
        if self._sessions.pop(session, None):
            self._stats.cancelled += 1

    async def stats(self) -> EngineStats:
        self._stats.sessions = self._stats.running = len(self._sessions)
        return copy.copy(self._stats)

    async def close(self) -> None:
        self._stopped = True
        self._sessions.clear()
