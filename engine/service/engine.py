"""The engine protocol over a service, which decodes elsewhere: text goes there, text comes back.

Its tokens are those of this side's tokenizer, which need not be the service's: words are given out whole. What the
service bills comes with an output's end, by its own count.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from tandem.engine.base import (
    Draft,
    Drafts,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    InvalidRequest,
    NoCapacity,
    Operation,
    Sampling,
    Tokens,
    Usage,
)
from tandem.engine.core.token_queue import TokenQueue
from tandem.engine.served import Stay
from tandem.engine.service.answer import Answer, Stops
from tandem.engine.service.client import ServiceClient
from tandem.engine.service.config import ServiceConfig
from tandem.engine.service.form import Form
from tandem.engine.service.request import RequestWriter
from tandem.engine.service.throttle import Throttle
from tandem.engine.sessions.output import OutputSession
from tandem.engine.sessions.table import SessionTable
from tandem.engine.text.grammar import Grammars, Matcher, matcher_for
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import unfinished_bytes
from tandem.engine.validation import check_request, check_window
from tandem.policies.estimators.moving_average import MovingAverage

logger = logging.getLogger(__name__)

BILL_S = 2.0
"""Longest wait for the service's count of tokens, once the output has its length on this side."""
_CLOSED = "the engine is closed"


class ServiceEngine:
    """Sessions at one service. Every stream is a request of its own, with prompt and output as text."""

    def __init__(
        self, config: ServiceConfig, tokenizer: Tokenizer, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """transport: in place of the network. Raise ValueError without the key's environment variable, and for a
        tokenizer without chats where the service takes nothing else."""
        self.info = EngineInfo(
            config.model,
            tokenizer.vocabulary,
            tokenizer.vocab_size,
            config.context,
            tokenizer.eos,
            ("generate", "draft") if config.route == "completions" else ("generate",),
            draft_probs=False,
            continuation=config.continuation,
        )
        self._grammars = Grammars(tokenizer, tokenizer.vocab_size)
        self.tokenizer, self.throttle = tokenizer, Throttle(config.rate_limit)
        self.writer, self.client = RequestWriter(config, tokenizer), ServiceClient(config, transport)
        self.first_token_s = MovingAverage()
        self._table = SessionTable[ServiceSession](config.max_sessions)
        self.counters = self._table.counters
        self._stopped = False

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> ServiceSession:
        self._check_running()
        check_request(prompt, log, sampling, self.info.vocab_size, self.info.context)
        self.writer.form(sampling.grammar)
        matcher = await matcher_for(self._grammars, sampling, self.info.eos, log, spaced=True)
        self._check_running()  # meanwhile it may have been closed
        self._table.check_room()
        session = ServiceSession(self, prompt, sampling, log)
        session.matcher = matcher
        self._table.add(session)
        try:
            await self.throttle.enter(len(prompt) + len(log))
            self._check_running()
        except BaseException:
            self._table.discard(session)
            raise
        self.counters.opened += 1
        return session

    def remove(self, session: ServiceSession) -> None:
        """Remove a session that has ended."""
        self._table.remove(session)

    async def stats(self) -> EngineStats:
        self.counters.first_token_s = self.first_token_s.value
        condition = self.client.condition
        self.counters.refusal = condition.refusal
        self.counters.rest_s = max(condition.rest_s, self.throttle.closed_s)
        return self._table.stats()

    async def close(self) -> None:
        self._stopped = True
        for session in self._table.clear():
            await session.end(EngineStopped(_CLOSED))
        await self.client.close()

    def _check_running(self) -> None:
        if self._stopped:
            raise EngineStopped(_CLOSED)


class ServiceSession(OutputSession):
    """A session of a ServiceEngine.

    matcher: of the output's form; None for any.
    _said: why the output ended, as the service says; None before, and after an extend.
    _entered: whether `open` has waited for the limits of the next request.
    """

    def __init__(
        self, engine: ServiceEngine, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]
    ) -> None:
        """Raise InvalidRequest for what the service cannot do."""
        super().__init__(engine.info, sampling, log)
        self._engine, self._prompt = engine, list(prompt)
        engine.writer.write(prompt, log, sampling)
        self.matcher: Matcher | None = None
        self._stay, self._opened_s, self._continues = Stay(), self._loop.time(), bool(log)
        self._said: str | None = None
        self._entered = True
        self._stream: TokenQueue | None = None  # of the running generate
        self._reading: asyncio.Task[Any] | None = None

    @property
    def finish(self) -> str | None:
        return super().finish or self._said

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        try:
            if self.finish is not None:
                yield Tokens([], self.finish)
                return
            stream = self._stream = TokenQueue()
            self._reading = self._loop.create_task(self._read(stream))
            async with aclosing(aiter(stream)) as coming:
                async for tokens in coming:
                    self._check()
                    taken = self._take(tokens)
                    self._said = taken.finish
                    self._engine.counters.tokens_generated += len(taken.ids)
                    self._engine.throttle.spend(len(taken.ids))
                    if taken.finish == "length" and tokens.finish is None:  # so it has at the service
                        yield Tokens(taken.ids)
                        taken = Tokens([], "length", usage=await self._bill(coming))
                    if taken.ids or taken.finish is not None:
                        yield taken
                    if taken.finish is not None:
                        return
        finally:
            await self._stop_reading()
            self._finish()

    async def _bill(self, coming: AsyncGenerator[Tokens, None]) -> Usage | None:
        """Return the service's count at the end of a stream; None if it does not come soon."""
        try:
            async with asyncio.timeout(BILL_S):
                async for tokens in coming:
                    if tokens.finish is not None:
                        return tokens.usage
        except TimeoutError:
            pass
        except EngineError:
            self._check()  # the answer is whole; but the session may have ended
        return None

    async def _read(self, stream: TokenQueue) -> None:
        """Put what the service says into the queue, its failure at last."""
        try:
            await self._request(stream)
        except EngineError as error:
            stream.put(error)
        except Exception:
            logger.exception("reading from %s failed", self._info.model)
            stream.put(EngineError(f"reading from {self._info.model} failed"))

    async def _request(self, stream: TokenQueue) -> None:
        """Ask once, and again if the service has no room and will have some soon."""
        throttle, known = self._engine.throttle, len(self._prompt) + len(self.output)
        if not self._entered:
            await throttle.enter(known)
        self._entered = False
        self._engine.counters.tokens_prefilled += known
        until_s = self._loop.time() + throttle.wait_s
        while True:
            answer, asked_s = self._answer(self.sampling), self._loop.time()
            try:
                await answer.read(stream)
                self._note(answer, asked_s)
                return
            except NoCapacity as refusal:
                throttle.close(refusal.retry_after_s)
                if answer.begun_s is not None or self._loop.time() + refusal.retry_after_s > until_s:
                    raise
                await asyncio.sleep(refusal.retry_after_s)

    def _note(self, answer: Answer, asked_s: float) -> None:
        """Count the times of an answer that has come to its end. asked_s: when it was asked for."""
        if answer.begun_s is None:
            return
        engine = self._engine
        engine.first_token_s.note(answer.begun_s - asked_s)
        if not self._stay.begun:
            served = engine.counters.served
            self._stay.begin(self._opened_s, asked_s, served)
            if not self._continues:
                self._stay.prefilled(answer.begun_s, len(self._prompt), served)
            self._stay.end(self._loop.time(), served)

    async def _run(self, operation: Operation[Any]) -> Any:
        match operation:
            case Extend(position, ids):
                return self._set(position, ids)
            case Draft(position, ids, window):
                check_window(window)
                self._set(position, ids)
                return await self._draft(window)
        raise self._lacks(operation.name)

    def _set(self, position: int, ids: Sequence[int]) -> None:
        self._check_fits(position, ids)
        if self._info.continuation == "none" and (position or ids):
            raise InvalidRequest(f"the service of {self._info.model} cannot continue an answer")
        if position < len(self.output) or ids:
            self._said = None
        self.output[position:] = ids

    async def _draft(self, window: int) -> Drafts:
        """Ask for the next tokens alone. They are drafted greedily: they count as point masses."""
        if window == 0 or self.finish is not None:
            return Drafts([])
        began_s, greedy = self._loop.time(), msgspec.structs.replace(self.sampling, temperature=0.0, stop=())
        answer = self._answer(greedy, window, checked=False)
        self._reading = reading = self._loop.create_task(answer.text())
        try:
            await asyncio.wait((reading,))
            self._check()
            data = reading.result()
        finally:
            await self._stop_reading()
        drafts = self._fitting(
            self._engine.tokenizer.encode_bytes(data[: len(data) - unfinished_bytes(data)])
        )
        self._engine.counters.tokens_drafted += len(drafts[:window])
        return Drafts(drafts[:window], took_s=self._loop.time() - began_s)

    def _answer(self, sampling: Sampling, most: int | None = None, checked: bool = True) -> Answer:
        """Return what the service says after prompt and output. most: most tokens of it. checked: whether it must have
        the output's form."""
        engine, matcher = self._engine, self.matcher
        request = engine.writer.write(self._prompt, self.output, sampling, most)
        stops = Stops(sampling.stop, engine.tokenizer.decode(self.output) if sampling.stop else "")
        form = None
        if matcher is not None and sampling.grammar is not None and checked:
            opening = "" if sampling.grammar.begin else sampling.grammar.end
            form = Form(matcher, engine.tokenizer, self.output, opening)
        return Answer(engine.client, engine.tokenizer, request, stops, form, sampling.trace)

    async def cancel(self) -> None:
        await self.end()

    async def end(self, error: EngineError | None = None) -> None:
        """Cancel the session; what runs raises `error`, by default SessionCancelled."""
        if not self._end(error):
            return
        self._engine.remove(self)
        if self._stream is not None and self._ended is not None:
            self._stream.put(copy.copy(self._ended))
        await self._stop_reading()

    async def _stop_reading(self) -> None:
        """End the request to the service."""
        reading, self._reading, self._stream = self._reading, None, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait((reading,))
