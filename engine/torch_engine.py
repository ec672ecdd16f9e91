"""The torch engine: a continuous batching loop in its own thread behind the asyncio engine protocol.

The event loop hands commands over in a queue and is handed back, once a step, all outcomes of that step.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import queue
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine import weights
from engine.base import (
    Draft,
    DraftProbs,
    EngineError,
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
from engine.checks import check_ids, check_request, checked_probs
from engine.core import Core
from engine.hosttier import TierSettings
from engine.model import Model
from engine.sequence import Generate, Propose, Verify
from engine.sequence import Sequence as Session
from engine.stream import Stream
from engine.text import Detokenizer, StopStrings, Tokenizer
from policies.batching import BatchingPolicy, ChunkedPrefill
from policies.scheduling import SchedulingPolicy

logger = logging.getLogger(__name__)

_Command = Callable[[], None]
_Outcome = tuple[Callable[[Any], None], Any]


_Pending = asyncio.Future[Any] | Stream


class TorchEngine:
    """Engine protocol over one model in this process. Create it with `load`, on the event loop's thread or
    before the loop runs; call its methods on one event loop."""

    def __init__(
        self,
        model: Model,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        *,
        num_blocks: int = 1024,
        block_size: int = 16,
        threads: int | None = None,
        batching: BatchingPolicy | None = None,
        token_budget: int = 512,
        max_sessions: int = 256,
        max_waiting: int = 64,
        scheduling: SchedulingPolicy | None = None,
        max_running: int | None = None,
        tier: TierSettings | None = None,
    ) -> None:
        """num_blocks, block_size: KV cache in blocks of tokens. threads: of torch, for this engine's thread;
        None: torch's default. token_budget: positions a step. max_sessions: sessions that are worked
        on at once; max_waiting: further ones that wait for a place or for KV blocks before one is refused.
        scheduling: who runs while not all can, None: first come, first served; max_running: sessions that it
        lets run at once. tier: host memory beside the KV cache."""
        self.info = info
        self._tokenizer, self._threads = tokenizer, threads
        self._max_open = max_sessions + max_waiting
        self._capacity_tokens = num_blocks * block_size
        self._core = Core(
            model,
            num_blocks,
            block_size,
            batching or ChunkedPrefill(),
            token_budget,
            max_sessions,
            scheduling=scheduling,
            max_running=max_running,
            tier=tier,
        )
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._outcomes: list[_Outcome] = []
        # On the event loop's side: the running operation of each open session.
        self._pending: dict[int, _Pending | None] = {}
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{info.model}", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        name: str | None = None,
        grow: int = 1,
        **settings: Any,
    ) -> TorchEngine:
        """An engine over a local Hugging Face folder: float32 on CPU, bfloat16 on a GPU.

        device: "cpu", "cuda" …; None: a GPU if there is one. name: of the model, by default the folder's.
        grow: run the model with so many times its layers and unchanged outputs (engine.family.grow).
        Further settings as in the constructor. Raises UnsupportedModel.
        """
        folder = Path(folder)
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
        if grow == 1:
            loaded = weights.load(folder, place, dtype)
        else:
            from engine.family.grow import grow as write_grown  # needs transformers: for experiments only

            with tempfile.TemporaryDirectory() as grown:
                write_grown(folder, grow, Path(grown))
                loaded = weights.load(Path(grown), place, dtype)
        tokenizer = Tokenizer.load(folder)
        info = EngineInfo(
            model=name or folder.name,
            vocabulary=tokenizer.vocabulary,
            vocab_size=loaded.config.vocab_size,
            context=loaded.config.context,
            eos=tokenizer.eos,
        )
        return cls(Model(loaded), info, tokenizer, **settings)

    # -- the engine protocol, on the event loop -------------------------------------------------------

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        self._check_running()
        room = min(self.info.context, self._capacity_tokens)
        check_request(prompt, log, sampling, self.info.vocab_size, room)
        if session in self._pending:
            raise InvalidRequest(f"session {session} is already open")
        if len(self._pending) >= self._max_open:
            raise NoCapacity(f"{len(self._pending)} sessions are open; no room for another now")
        self._numbers += 1
        stops = None
        if sampling.stop:
            if self._tokenizer is None:
                raise InvalidRequest("stop strings need an engine with a tokenizer")
            stops = partial(_watch, self._tokenizer, sampling.stop)
        sequence = Session(session, self._numbers, list(prompt), list(log), sampling, self.info.eos, stops)
        self._pending[session] = None
        self._commands.put(lambda: self._core.open(sequence))

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        stream = Stream()
        deliver = self._deliver(stream.put)
        self._begin(session, stream, lambda: self._core.assign(session, Generate(deliver)))
        try:
            while True:
                for tokens in await stream.take():
                    if isinstance(tokens, Exception):
                        raise tokens
                    yield tokens
                    if tokens.finish is not None:
                        return
        finally:
            if self._pending.get(session) is stream:
                self._pending[session] = None
                self._commands.put(lambda: self._core.pause(session))

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        check_ids(drafts, self.info.vocab_size)
        ids = list(drafts)
        q_ids = q_probs = None
        if probs is not None:
            q_ids, q_probs = checked_probs(probs, len(ids), self.info.vocab_size)

        def run(deliver: Callable[[Any], None]) -> None:
            self._core.assign(session, Verify(ids, q_ids, q_probs, deliver))

        verdict: Verdict = await self._operation(session, run)
        return verdict

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        if window < 0:
            raise InvalidRequest(f"window must be 0 or more tokens, not {window}")
        check_ids(tokens, self.info.vocab_size)
        confirmed = list(tokens)

        def run(deliver: Callable[[Any], None]) -> None:
            self._core.extend(session, position, confirmed)
            self._core.assign(session, Propose(window, deliver))

        draft: Draft = await self._operation(session, run)
        return draft

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        check_ids(tokens, self.info.vocab_size)
        confirmed = list(tokens)

        def run(deliver: Callable[[Any], None]) -> None:
            self._core.extend(session, position, confirmed)
            deliver(None)

        await self._operation(session, run)

    async def cancel(self, session: int) -> None:
        if session in self._pending:
            self._settle(
                session, self._pending.pop(session), SessionCancelled(f"session {session} was cancelled")
            )
            self._commands.put(lambda: self._core.cancel(session))

    async def stats(self) -> EngineStats:
        stats = copy.copy(self._core.stats)
        stats.sessions = len(self._pending)
        stats.waiting = len(self._core.memory.waiting)
        stats.running = sum(1 for p in self._pending.values() if p is not None)
        stats.blocks_free = self._core.memory.pool.available
        return stats

    async def close(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._commands.put(lambda: None)
            await asyncio.to_thread(self._thread.join)
        self._fail_all(EngineStopped("the engine was closed"))

    # -- between the event loop and the thread ---------------------------------------------------------

    def _begin(self, session: int, pending: _Pending, run: _Command) -> None:
        """Hand the session's next operation to the thread; its outcome or error ends up in `pending`."""
        self._check_running()
        if session not in self._pending:
            raise UnknownSession(f"no session {session} is open")
        if self._pending[session] is not None:
            raise InvalidRequest(f"session {session} is still at work on its last operation")
        self._pending[session] = pending
        fail = self._deliver(lambda error: self._settle(session, pending, error))

        def command() -> None:
            try:
                run()
            except EngineError as error:
                fail(error)

        self._commands.put(command)

    async def _operation(self, session: int, run: Callable[[Callable[[Any], None]], None]) -> Any:
        """An operation with one outcome, which `run` (on the thread) passes to its argument."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deliver = self._deliver(lambda outcome: self._settle(session, future, outcome))
        self._begin(session, future, lambda: run(deliver))
        return await future

    def _settle(self, session: int, pending: _Pending | None, outcome: Any) -> None:
        """On the event loop: the outcome, or the error, of a session's operation."""
        if isinstance(pending, Stream):
            pending.put(outcome)
        elif pending is not None and not pending.done():
            if isinstance(outcome, Exception):
                pending.set_exception(outcome)
            else:
                pending.set_result(outcome)
        if pending is not None and self._pending.get(session) is pending:
            self._pending[session] = None

    def _deliver(self, receive: Callable[[Any], None]) -> Callable[[Any], None]:
        """What the thread calls with an outcome, for the event loop to `receive` after the step."""
        self._loop = asyncio.get_running_loop()
        return lambda outcome: self._outcomes.append((receive, outcome))

    def _fail_all(self, error: Exception) -> None:
        for session, pending in list(self._pending.items()):
            self._settle(session, pending, error)
        self._pending.clear()

    def _check_running(self) -> None:
        if self._stopping or not self._thread.is_alive():
            raise EngineStopped("the engine is not running")

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            while not self._stopping:
                self._drain()
                if not self._core.step():
                    self._flush()
                    self._wait(self._core.idle_s)
                self._flush()
        except Exception as error:
            # A bug: fail loudly and for good rather than serve on from a state nobody knows.
            logger.exception("the step loop of %s broke down", self.info.model)
            self._stopping = True
            self._outcomes.append((self._fail_all, EngineStopped(f"the engine broke down: {error!r}")))
            self._flush()

    def _wait(self, limit_s: float | None) -> None:
        """Run the next command, but wait for one no longer than this."""
        try:
            command = self._commands.get(timeout=limit_s)
        except queue.Empty:
            return
        command()

    def _drain(self) -> None:
        """Run the commands that are there (not those that come meanwhile: a stream of them must not hold up
        the steps)."""
        for _ in range(self._commands.qsize()):
            self._commands.get_nowait()()

    def _flush(self) -> None:
        """Hand the outcomes so far to the event loop, all in one call."""
        if not self._outcomes or self._loop is None:
            return
        outcomes, self._outcomes = self._outcomes, []
        try:
            self._loop.call_soon_threadsafe(_receive, outcomes)
        except RuntimeError:  # the loop was closed first: nobody waits any more
            self._stopping = True


def _watch(tokenizer: Tokenizer, stop: Sequence[str]) -> tuple[Detokenizer, StopStrings]:
    """What watches a session's output for its stop strings, at the output's beginning."""
    return Detokenizer(tokenizer), StopStrings(stop)


def _receive(outcomes: list[_Outcome]) -> None:
    for receive, outcome in outcomes:
        receive(outcome)
