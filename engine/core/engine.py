"""The engine protocol over a core, which a driver (a thread or a virtual clock) takes through its steps.

The event loop hands over commands, and receives all outcomes of a step together.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from tandem.engine.base import (
    Draft,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    HandedOver,
    Operation,
    Sampling,
    Tokens,
    Verify,
)
from tandem.engine.core.sequence import Sequence as CoreSequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import DraftTask, GenerateTask, VerifyTask
from tandem.engine.core.token_queue import TokenQueue
from tandem.engine.sessions.session import BaseSession
from tandem.engine.text.detokenizer import Spelling, watch_for
from tandem.engine.text.grammar import Grammars, matcher_for
from tandem.engine.validation import check_ids, check_request, check_room, check_window, checked_probs

Command = Callable[[], None]
Receive = Callable[[Any], None]
Run = Callable[[Receive], None]
"""An operation on the core's side; passes its outcome to its argument."""


class Driver(Protocol):
    """Takes a core through its steps, and carries out commands between them."""

    @property
    def running(self) -> bool: ...

    def submit(self, command: Command) -> None:
        """Have a command carried out before the next step; called on the event loop."""
        ...

    def deliver(self, receive: Receive, outcome: Any) -> None:
        """Have the event loop `receive` an outcome after the step; called where the core runs."""
        ...

    async def stop(self) -> None:
        """Take no further step; returns when the last one is over."""
        ...


class CoreEngine:
    """The Engine protocol over one core."""

    def __init__(
        self,
        core: Core,
        driver: Driver,
        info: EngineInfo,
        tokenizer: Spelling | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """tokenizer: recognises stop strings; None refuses requests that have some.
        grammars: of the model's vocabulary; None refuses requests that have one.
        """
        self.info = msgspec.structs.replace(info, context=min(info.context, core.config.kv_tokens))
        self._core, self._driver, self._tokenizer, self._grammars = core, driver, tokenizer, grammars
        self._sequence: type[CoreSequence] = CoreSequence
        self._session: type[CoreSession] = CoreSession
        self._max_open = core.config.max_sessions + core.config.max_waiting
        self._sessions: dict[int, CoreSession] = {}
        self._numbers = 0
        self._closed = False
        self._failure: EngineError | None = None

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> CoreSession:
        self._check_running()
        self.check_request(prompt, log, sampling)
        matcher = await matcher_for(self._grammars, sampling, self.info.eos, log)
        self._check_running()  # meanwhile it may have been closed
        check_room(len(self._sessions), self._max_open)
        stops = watch_for(sampling.stop, self._tokenizer)
        number = self.number()
        sequence = self._sequence(number, list(prompt), list(log), sampling, self.info.eos, stops)
        sequence.matcher = matcher
        session = self._sessions[number] = self._session(self, self._core, self._driver, sequence)
        self._driver.submit(partial(self.begin, sequence))
        return session

    def begin(self, sequence: CoreSequence) -> None:
        """Let the core have a new session; called where it runs."""
        self._core.open(sequence)

    def end(self, sequence: CoreSequence) -> None:
        """Take a session from the core; called where it runs."""
        self._core.cancel(sequence)

    def check_request(self, prompt: Sequence[int], log: Sequence[int], sampling: Sampling) -> None:
        """Raise InvalidRequest or ContextOverflow for a request that this engine does not take."""
        check_request(prompt, log, sampling, self.info.vocab_size, self.info.context)

    def number(self) -> int:
        """Return a new number for a session, or for a branch of one."""
        self._numbers += 1
        return self._numbers

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    @property
    def blocks_used(self) -> int:
        """Number of blocks that sessions hold."""
        pool = self._core.memory.pool
        return pool.num_blocks - pool.available

    @property
    def blocks_total(self) -> int:
        """Number of blocks."""
        return self._core.memory.pool.num_blocks

    @property
    def counters(self) -> EngineStats:
        """Counters since the start. Its gauges are not up to date, see `stats`."""
        return self._core.stats

    async def stats(self) -> EngineStats:
        self._check_running()
        stats = self.gauges()
        stats.sessions = len(self._sessions)
        stats.running = sum(session.busy for session in self._sessions.values())
        return stats

    @property
    def overdue_s(self) -> float:
        """Seconds by which the step under way takes longer than any should."""
        return self._core.overdue_s

    def gauges(self) -> EngineStats:
        """Return counters, and gauges that the core knows, at once."""
        return self._core.gauges()

    async def close(self) -> None:
        self._closed = True
        await self._driver.stop()
        self._core.close()
        self.fail(EngineStopped("the engine was closed"))

    def fail(self, error: EngineError) -> None:
        """Fail every session, on the event loop, because the core has stopped."""
        self._failure = error
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.fail(error)

    def forget(self, sequence: CoreSequence) -> None:
        """Remove a session that has ended."""
        self._sessions.pop(sequence.number, None)

    @property
    def waiting(self) -> int:
        """Number of sessions without a place."""
        return len(self._core.memory.waiting)

    def hand_over(self, count: int) -> None:
        """End `count` sessions that have only waited for a place, the oldest first, with HandedOver."""

        def command() -> None:
            for sequence in self._core.not_begun()[:count]:
                self._core.cancel(sequence)
                self._driver.deliver(self._handed_over, sequence.number)

        self._driver.submit(command)

    def _handed_over(self, number: int) -> None:
        if (session := self._sessions.pop(number, None)) is not None:
            session.fail(HandedOver("others have room", 0.0))

    def _check_running(self) -> None:
        if self._closed or not self._driver.running:
            raise EngineStopped(str(self._failure or "the engine is not running"))


class CoreSession(BaseSession):
    """_pending: takes the outcome of the running operation; None once it has it."""

    def __init__(self, engine: CoreEngine, core: Core, driver: Driver, sequence: CoreSequence) -> None:
        super().__init__(engine.info)
        self._engine, self._core, self._driver, self._sequence = engine, core, driver, sequence
        self._pending: asyncio.Future[Any] | TokenQueue | None = None

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        stream, last = TokenQueue(), None
        task = GenerateTask(partial(self._driver.deliver, stream.put))
        try:
            self._submit(stream, partial(self._core.assign, self._sequence, task))
            while last is None:
                for tokens in await stream.take():
                    if tokens.finish is None:
                        yield tokens
                    else:
                        self._pending, last = None, tokens
        finally:
            self._leave(stream)
            self._finish()
        yield last  # the operation is over even if the consumer stops here

    def _run(self, operation: Operation[Any]) -> Awaitable[Any]:
        return self._ask(self._command(operation))

    def _command(self, operation: Operation[Any]) -> Run:
        """Check an operation, and return what the core does for it."""
        core, sequence, vocab_size = self._core, self._sequence, self._engine.info.vocab_size
        match operation:
            case Verify(ids, probs):
                check_ids(ids, vocab_size)
                drafts, q_ids, q_probs = list(ids), None, None
                if probs is not None:
                    q_ids, q_probs = checked_probs(probs, len(drafts), vocab_size)
                return lambda deliver: core.assign(sequence, VerifyTask(drafts, q_ids, q_probs, deliver))
            case Draft(position, ids, window):
                check_window(window)
                extend = self._command(Extend(position, ids))
                return lambda deliver: extend(lambda _: core.assign(sequence, DraftTask(window, deliver)))
            case Extend(position, ids):
                check_ids(ids, vocab_size)
                tokens = list(ids)

                def extend_then(deliver: Receive) -> None:
                    core.extend(sequence, position, tokens)
                    deliver(None)

                return extend_then
        raise self._lacks(operation.name)

    async def cancel(self) -> None:
        if self._end():
            self._engine.forget(self._sequence)
            self._driver.submit(partial(self._engine.end, self._sequence))
            self._resolve(self._pending, copy.copy(self._ended))

    def fail(self, error: EngineError) -> None:
        """End the session because the engine has stopped."""
        if self._end(error):
            self._resolve(self._pending, copy.copy(error))

    async def _ask(self, run: Run) -> Any:
        """Run an operation that has one outcome, and return it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            receive = partial(self._resolve, future)
            self._submit(future, partial(run, partial(self._driver.deliver, receive)))
            return await future
        finally:
            self._leave(future)
            del future, receive  # an exception holds this frame, and it must not hold the exception

    def _submit(self, pending: asyncio.Future[Any] | TokenQueue, run: Command) -> None:
        """Hand the next operation over; its outcome or error is put into `pending`."""
        self._engine._check_running()
        self._check()
        self._pending = pending

        def command() -> None:
            try:
                run()
            except EngineError as error:
                self._driver.deliver(partial(self._resolve, pending), error.with_traceback(None))

        self._driver.submit(command)

    def _resolve(self, pending: asyncio.Future[Any] | TokenQueue | None, outcome: Any) -> None:
        """Put the outcome or error of an operation into `pending`, on the event loop."""
        if isinstance(pending, TokenQueue):
            pending.put(outcome)
        elif pending is not None and not pending.done():
            if isinstance(outcome, Exception):
                pending.set_exception(outcome)
            else:
                pending.set_result(outcome)
        if self._pending is pending:
            self._pending = None

    def _leave(self, pending: asyncio.Future[Any] | TokenQueue) -> None:
        """Stop the operation of `pending` if it still runs: its caller has left."""
        if self._pending is pending:
            self._pending = None
            self._driver.submit(partial(self._core.pause, self._sequence))
